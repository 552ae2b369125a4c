"""A user's walk from a GGUF file to text: the same as from the checkpoint it was made from."""

from __future__ import annotations

import huggingface_hub
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, fails
from ggufs import write_gguf
from hubs import list_files

from edgespec import bundle as bundles
from edgespec.cli import main
from edgespec.export import resolve_checkpoint
from edgespec.export.sources.hub import source_name

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
PROMPT = "def wrap(text):"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target and a draft, each as a checkpoint, in fp32 and in blocks of 8 bits."""
    folder = tmp_path_factory.mktemp("gguf")
    for seed, name in enumerate(("target", "draft")):
        make_checkpoint(folder / name, "llama", seed=seed, **SIZES)
        write_tokenizer(folder / name, 331)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE)
        for encoding in ("F32", "Q8_0"):
            chat = {"tokenizer.chat_template": TEMPLATE}
            write_gguf(folder / name, folder / f"{name}-{encoding}.gguf", encoding, **chat)
    for name, *options in (
        ("target", "--precision=fp32"),
        ("target-F32.gguf", "--precision=fp32", "--draft", str(folder / "draft-F32.gguf")),
        ("target-Q8_0.gguf",),
    ):
        arguments = [str(folder / name), "-o", str(folder / f"of-{name}"), *options]
        assert main(["export", *arguments]) == 0
    return folder


def text_of(cli, bundle, *options):
    result = cli("run", bundle, "--raw", *options, *FAST, "-n", "24", PROMPT)
    assert result.code == 0, result.err
    return result.out


def test_the_text_is_that_of_the_checkpoint(cli, folder):
    expected = text_of(cli, folder / "of-target", "--draft=none")
    assert len(expected) > 20
    for draft in ("none", "model"):
        assert text_of(cli, folder / "of-target-F32.gguf", f"--draft={draft}") == expected


def test_blocks_of_8_bits_stay_as_they_are(folder):
    manifest = bundles.load(folder / "of-target-Q8_0.gguf").manifest
    role = manifest.roles[bundles.TARGET]
    assert manifest.provenance[bundles.TARGET] == "target-Q8_0.gguf"
    assert set(role.native.formats) == {"q8_0"}
    assert set(role.quantization_error.values()) == {0}


def test_what_is_no_model_is_said(cli, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF and no more")
    output = tmp_path / "out"
    fails(cli("export", tmp_path / "x.gguf", "-o", output), "GGUF version", "is not supported")
    (tmp_path / "notes.txt").write_text("notes")
    fails(cli("export", tmp_path / "notes.txt", "-o", output), "does not begin with GGUF")
    fails(cli("export", tmp_path / "y.gguf", "-o", output), "no such folder or GGUF file")
    assert not output.exists()


@pytest.fixture
def downloads(tmp_path, folder, monkeypatch):
    """The files that are downloaded; in their place come links to the small file."""
    names = []
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123abcd"

    def download(repository, name):
        names.append((repository, name))
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(folder / "target-F32.gguf")
        return str(snapshot / name)

    listed = ["a/mmproj-F16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf", "model.Q8_0.gguf"]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    list_files(monkeypatch, listed)
    return names


def test_a_file_on_the_hub(downloads):
    found = resolve_checkpoint("owner/name:model.Q8_0.gguf")
    assert found.name == "model.Q8_0.gguf"
    assert downloads == [("owner/name", f"{each}.gguf") for each in ("model.Q8_0", "mmproj-F16")]
    assert source_name(found) == "owner/name@0123abcd:model.Q8_0.gguf"


def test_all_parts_of_a_file_on_the_hub(downloads):
    found = resolve_checkpoint("owner/name:big-00002-of-00003.gguf")
    assert found.name == "big-00001-of-00003.gguf"
    assert [name for _, name in downloads] == [
        *(f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)),
        "mmproj-F16.gguf",
    ]
