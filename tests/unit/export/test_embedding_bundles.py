"""Bundles of embedding models: what is in them, and what their exports refuse."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from shutil import copytree

import huggingface_hub
import onnx
import pytest
from checkpoints import make_checkpoint
from commandline import fails
from embeddings import PROMPTS, make_embedding
from manifests import manifest_of
from manifests import refused as refused_bundle

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import MANIFEST
from edgespec.errors import InputError
from edgespec.export import ExportOptions, resolve_checkpoint

LATER_FILES = (
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "1_LogitScore/config.json",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    make_embedding(folder, "qwen3", prompts=PROMPTS)
    return folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """The checkpoint of the same model, as one that writes text."""
    folder = tmp_path_factory.mktemp("writer")
    make_checkpoint(folder, "qwen3")
    return folder


@pytest.fixture(scope="module")
def made(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "bundle"
    export.make(source, folder, options=ExportOptions("fp32"))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return copytree(made, tmp_path / "bundle")


def test_the_graph_ends_with_the_rows_behind_the_last_norm(made):
    target = bundles.load(made).target
    assert target.embedding == bundles.Embedding("last", True, PROMPTS)
    graph = onnx.load(made / target.native.graph, load_external_data=False).graph
    assert [each.name for each in graph.output] == ["last_hidden"]


def test_the_output_projection_takes_no_room(made, writer, tmp_path):
    export.make(writer, tmp_path / "bundle", options=ExportOptions("fp32"))
    whole = bundles.load(tmp_path / "bundle")
    own = bundles.load(made)
    projection = 331 * 64
    assert whole.target.parameters - own.target.parameters == projection
    formats = [each.target.native.formats["f32"] for each in (whole, own)]
    assert formats[0] - formats[1] == projection


@pytest.mark.parametrize("precision", ["int4", "int8", "fp16"])
def test_other_precisions_load(source, tmp_path, precision):
    export.make(source, tmp_path / "bundle", options=ExportOptions(precision))
    bundle = bundles.load(tmp_path / "bundle")
    bundle.verify()
    assert bundle.target.embedding is not None


def test_what_a_manifest_says_of_embeddings_is_checked(folder):
    whole = manifest_of(folder)
    found = whole["roles"]["target"]["embedding"]
    for change, part in (
        ({"pooling": "cls"}, "embedding.pooling is 'cls'"),
        ({"default_prompt": "poem"}, "embedding.default_prompt is 'poem'"),
        ({"width": -1}, "embedding.width is -1"),
        ({"normalized": 1}, "embedding.normalized: expected bool"),
        ({"prompts": {"a": 1}}, "embedding.prompts.a: expected str"),
        ({"surprise": 1}, "embedding.surprise: unknown field"),
    ):
        target = {**whole["roles"]["target"], "embedding": {**found, **change}}
        (folder / MANIFEST).write_text(json.dumps({**whole, "roles": {"target": target}}))
        refused_bundle(folder, part)


def test_a_model_that_writes_text_says_nothing_of_embeddings(writer, tmp_path):
    export.make(writer, tmp_path / "bundle", options=ExportOptions("fp32"))
    assert "embedding" not in manifest_of(tmp_path / "bundle")["roles"]["target"]


def test_drafts_are_refused(source, writer, output):
    for target, draft, options in (
        (source, writer, {}),
        (source, None, {"skip_sets": ("1",)}),
    ):
        with pytest.raises(InputError, match=f"{source} makes embeddings, and no text"):
            export.make(target, output, draft, ExportOptions("fp32", **options))
    with pytest.raises(InputError, match=f"{source} makes embeddings, and a draft has to write"):
        export.make(writer, output, source, ExportOptions("fp32"))
    assert not output.exists()


def test_drafts_of_bundles_are_refused(source, folder, writer, output):
    for draft in (source, writer):
        with pytest.raises(InputError, match="the bundle makes embeddings"):
            export.make(folder, output, draft)
    assert not output.exists()


def test_the_command_says_what_the_bundle_makes(cli, source, tmp_path):
    done = cli("export", source, "-o", tmp_path / "out")
    assert done.code == 0
    said = "makes embeddings of 64 numbers: the last token's row, normalized; prompts: query"
    assert said in done.out
    shown = cli("inspect", tmp_path / "out").out
    assert "the last token's row, normalized" in " ".join(shown.split())
    planned = cli("plan", tmp_path / "out", "--device", "cpu").out
    assert "target on cpu" in planned


def test_the_command_leaves_out_no_layers_of_it(cli, source, tmp_path):
    done = cli("export", source, "-o", tmp_path / "out", "--layer-skip", "auto")
    fails(done, "makes embeddings, and no text")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [("run", "-p", "a"), ("eval", "--text"), ("bench", "--draft", "none")],
    ids=lambda each: each[0],
)
def test_commands_about_texts_refuse_the_bundle(cli, made, tmp_path, command):
    text = tmp_path / "text.txt"
    text.write_text("def add(a, b):\n" * 9)
    name, *rest = command
    more = {"eval": [text], "bench": ["--prompts", text], "run": []}[name]
    done = cli(name, made, *rest, *more)
    assert done.code == 2
    assert "makes embeddings, and no text" in done.err


def test_the_hubs_folders_of_later_steps_are_fetched_too(monkeypatch, tmp_path):
    asked = []

    def download(_repository, allow_patterns, ignore_patterns):
        asked.append((allow_patterns, ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve_checkpoint("owner/name")
    assert len(asked) == 1
    (tmp_path / "modules.json").write_text("[]")
    assert resolve_checkpoint("owner/name") == tmp_path
    wanted, unwanted = asked[-1]
    for name in LATER_FILES:
        assert any(fnmatch(name, each) for each in wanted)
    assert not any(fnmatch("onnx/model.safetensors", each) for each in wanted)
    assert not unwanted
