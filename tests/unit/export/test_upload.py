"""Sending heads to the Hub, by a stand-in of its API, and fetching them again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import hub

from edgespec.errors import InputError
from edgespec.export.sources.upload import set_license, upload_head

CONFIG = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3"}
FETCH = "from edgespec.export.sources.hub import resolve_checkpoint as r; print(r('me/head'))"


@pytest.fixture
def head(tmp_path):
    folder = tmp_path / "head"
    (folder / ".training").mkdir(parents=True)
    (folder / ".training/state.safetensors").write_bytes(b"state")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    (folder / "README.md").write_text("---\nlicense: other\ntags:\n- draft-head\n---\n\n# A head\n")
    return folder


def test_a_head_is_sent_and_comes_back(head, tmp_path):
    with hub() as (address, files):
        here = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "hf_secret"}
        here |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        python = [sys.executable, "-m", "edgespec", "push", head, "me/head", "--license", "mit"]
        run = {"env": {**os.environ, **here}, "capture_output": True, "text": True, "timeout": 300}
        sent = subprocess.run(python, check=False, **run)
        assert sent.returncode == 0, sent.stderr
        assert sent.stdout.startswith(address)
        assert set(files) == {"config.json", "model.safetensors", "README.md"}
        assert files["README.md"].startswith(b"---\nlicense: mit\n")
        fetched = subprocess.run([sys.executable, "-c", FETCH], check=False, **run)
    assert fetched.returncode == 0, fetched.stderr
    folder = Path(fetched.stdout.strip())
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == files[name]


def test_what_is_no_head_or_no_name_is_refused(head, tmp_path):
    with pytest.raises(InputError, match=r"is no draft head: give the folder that train-draft"):
        upload_head(tmp_path, "me/head")
    with pytest.raises(InputError, match="'head' is no repository: give owner/name"):
        upload_head(head, "head")
    (head / "README.md").write_text("# A head\n")
    with pytest.raises(InputError, match="has no line with 'license: ': write one"):
        set_license(head / "README.md", "mit")
