"""Checkpoints from the Hub: what is downloaded of a repository, and what a bundle calls it."""

from __future__ import annotations

import errno
import shutil
from socket import gaierror

import httpx
import huggingface_hub
import pytest
from checkpoints import make_checkpoint
from hubs import hub
from huggingface_hub.utils import filter_repo_objects

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import ExportError
from edgespec.export import resolve_checkpoint
from edgespec.export.sources.hub import source_name

NAME, REVISION = "mistralai/Mistral-7B-v0.3", "d8cadc02ac76bd617a919d50b092e59d2d110aff"
# As Mistral, Meta and others lay out repositories.
USED = {
    "config.json", "generation_config.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
}  # fmt: skip
UNUSED = {
    "README.md", "consolidated.safetensors", "consolidated.safetensors.index.json",
    "checkpoint-500/model.safetensors", "original/consolidated.00.pth", "original/params.json",
    "onnx/model.onnx", "pytorch_model.bin", "tokenizer.model",
}  # fmt: skip


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The names of what is downloaded; in its place comes a small checkpoint."""
    names = []
    folder = tmp_path / "models--mistralai--Mistral-7B-v0.3" / "snapshots" / REVISION
    make_checkpoint(folder, "mistral")

    def download(repo, **patterns):
        assert repo == NAME
        names.extend(filter_repo_objects(sorted(USED | UNUSED), **patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return names


def test_weights_are_downloaded_once_and_nothing_in_vain(downloads):
    resolve_checkpoint(NAME)
    assert set(downloads) == USED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (httpx.RemoteProtocolError("peer closed\nconnection"), "peer closed"),  # no OSError
        (httpx.ReadTimeout(""), "ReadTimeout"),
    ],
)
def test_a_download_that_breaks_off_is_no_fault_of_ours(monkeypatch, error, reason):
    def download(repo, **patterns):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ExportError, match=rf"failed \({reason}\): check the name"):
        resolve_checkpoint(NAME)


def test_a_hub_that_nobody_reaches_is_not_tried_again_and_again(monkeypatch, tmp_path):
    """As its client does, which waits longer and longer meanwhile."""
    waited = []
    with hub() as closed:
        closed.take_the_place(monkeypatch, tmp_path)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waited.append)
    for name in ("owner/name", "owner/name:model.gguf", "owner/name:Q4_K_M"):
        with pytest.raises(ExportError, match="the Hub cannot be reached: connect to the network"):
            resolve_checkpoint(name)
    assert waited == []


@pytest.mark.parametrize(
    "why",
    [gaierror(-3, "try again"), OSError(errno.ENETUNREACH, "no way"), ConnectionRefusedError()],
)
def test_neither_is_one_of_no_address_or_without_a_way_to_it(monkeypatch, why):
    asked = []

    def fails(*_, **how):
        asked.append(how.get("local_files_only"))
        raise RuntimeError("the client's") from why

    monkeypatch.setattr("huggingface_hub.model_info", fails)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fails)
    with pytest.raises((ExportError, RuntimeError)):
        resolve_checkpoint("owner/name:model.gguf")
    assert asked == [None, True]


@pytest.mark.parametrize("folder", ["mine/snapshots/small", "models--one--two/mine/small"])
def test_a_folder_that_is_not_the_hubs_cache_has_its_own_name(tmp_path, folder):
    assert source_name(tmp_path / folder) == "small"


@pytest.mark.usefixtures("downloads")
def test_a_bundle_names_the_repository_and_its_revision(tmp_path):
    source = resolve_checkpoint(NAME)
    copied = shutil.copytree(source, tmp_path / "copied")
    export.make(source, tmp_path / "bundle", copied)
    made = bundles.load(tmp_path / "bundle").manifest.provenance
    assert (made["target"], made["draft"]) == (f"{NAME}@{REVISION}", "copied")
