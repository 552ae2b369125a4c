"""Damaged models: each is read or refused in one line, at once, in little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from damage import TIMES

from edgespec.errors import CheckpointError
from edgespec.models import load_checkpoint

COMMAND = Path(__file__).with_name("damaged_models.py")
KINDS = "gguf:nemotron_h_moe", "gguf:qwen35", "gguf:hostile", "folder:qwen3_moe", "folder:hostile"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read of Linux")
def test_no_damaged_model_does_harm(tmp_path):
    given = ["--kinds", ",".join(KINDS), "--files", str(120 * TIMES)]
    command = [sys.executable, str(COMMAND), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == found["faults"] == 0, done.stdout
    kinds = {each["kind"]: each for each in found["kinds"]}
    assert kinds.keys() == set(KINDS)
    for kind in KINDS:
        assert kinds[kind]["models"] > 9
        assert kinds[kind]["memory_mib"] > 0
    for kind in ("gguf:qwen35", "folder:qwen3_moe"):
        assert kinds[kind]["exported"] > 0  # such as those with damaged tokens or numbers
        assert kinds[kind]["reasons"] > 4
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with GGUF: give a GGUF file or a folder"),
        (b"no model at all", "does not begin with GGUF"),
        (b"GGUF", r"truncated or corrupt \(it ends too early\)"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version 1 is not supported: use a little-endian"),
        (b"GGUF" + struct.pack(">I", 3), r"version 50331648 is not supported \(big-endian\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"corrupt \\({2**60} tensors\\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"corrupt \\({2**60} fields\\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**18, 0), "more metadata than a file of 24 bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40), f"corrupt \\({2**40} bytes of text\\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"general.architecture=\(absent\) is not supp"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    (tmp_path / "file.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "file.gguf")
