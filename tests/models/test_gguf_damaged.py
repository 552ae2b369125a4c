"""Damaged GGUF files: each is read or refused in one line, at once, in little memory."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from contextlib import suppress

import damage
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from ggufs import write_gguf

from edgespec.errors import CheckpointError
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.sources.vocabulary import read_tokenizer
from edgespec.models import load_checkpoint
from edgespec.models.gguf.header import read_header

FILES, FEWER, SEED = 200, 60, 33
SECONDS, BYTES = 2.0, 16 * 2**20
SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8}
MORE = {
    "gemma4_text": {},
    "gpt_oss": {},
    "granitemoehybrid": {"num_local_experts": 3},
    "lfm2": {},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2},
    "qwen3_5_text": {"num_hidden_layers": 4, "layer_types": None, "linear_key_head_dim": 8},
    "qwen3_moe": {"num_experts": 3, "moe_intermediate_size": 32},
}
"""Families whose files have stacks of experts, states, or rows in another order."""


@pytest.fixture(scope="module", params=["llama", *MORE])
def intact(request, tmp_path_factory):
    folder, sizes = tmp_path_factory.mktemp("intact"), SMALL | MORE.get(request.param, {})
    make_checkpoint(folder / "model", request.param, **sizes)
    write_tokenizer(folder / "model", 331)
    write_gguf(folder / "model", folder / "file.gguf", "Q4_0")
    entries = read_header(folder / "file.gguf").entries.values()
    files = FEWER if request.param in MORE else FILES
    start = min(entry.start for entry in entries)
    return (folder / "file.gguf").read_bytes(), start, files * damage.TIMES


def damaged(intact, chance):
    return damage.damaged(intact[0], intact[1], chance, (8, 16))


def test_no_damaged_file_does_harm(intact, tmp_path):
    chance, file = random.Random(SEED), tmp_path / "file.gguf"
    reasons, read = set(), 0
    file.write_bytes(intact[0])
    read_tokenizer(load_checkpoint(file))  # imports count for nothing
    for number in range(intact[2]):
        content = damaged(intact, chance)
        file.write_bytes(content)
        tracemalloc.start()
        begun = time.perf_counter()
        try:
            checkpoint = load_checkpoint(file)
            for name in checkpoint.decoder.tensors():
                checkpoint.tensors.read(name)
            read_tokenizer(checkpoint)
            read += content != intact[0]
        except CheckpointError as error:
            message = str(error)
            assert str(file) in message, number
            assert "\n" not in message, number
            assert len(message) < 1000, number
            reasons.add(message.replace(str(file), "")[:40])
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert time.perf_counter() - begun < SECONDS, number
        assert peak < BYTES, number
    assert read > intact[2] // 25  # such as those with damaged tokens or numbers
    assert len(reasons) > 15


def test_no_export_of_a_damaged_file_leaves_anything(intact, tmp_path):
    chance, file = random.Random(SEED + 1), tmp_path / "file.gguf"
    options = ExportOptions(precision="fp32", overwrite=True)
    for number in range(40):
        file.write_bytes(damaged(intact, chance))
        output = tmp_path / f"bundle{number}"
        with suppress(CheckpointError):
            export_bundle(file, output, options=options)
            continue
        assert not output.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with GGUF: give a GGUF file or a folder"),
        (b"no model at all", "does not begin with GGUF"),
        (b"GGUF", "truncated or corrupt"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version 1 is not supported: use a little-endian"),
        (b"GGUF" + struct.pack(">I", 3), r"version 50331648 is not supported \(big-endian\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"corrupt \\({2**60} tensors\\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"corrupt \\({2**60} fields\\)"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40), f"corrupt \\({2**40} bytes of text\\)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"general.architecture=\(absent\) is not supp"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    (tmp_path / "file.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "file.gguf")
