"""Models that other programs exported, on the command line: exported, run and measured."""

from __future__ import annotations

import sys

import pytest
from adopted import FOLDER, make_original
from commandline import PROMPT, fails

from edgespec import bundle as bundles
from edgespec.export.adopted import source

# What optimum's command does, as far as a bundle is made of it.
_FAKE = """
import shutil, sys
model, output = sys.argv[sys.argv.index("--model") + 1], sys.argv[-1]
assert sys.argv[1:3] == ["export", "onnx"] and "text-generation-with-past" in sys.argv
if model == "refused/model":
    sys.exit("KeyError: 'odd_type is not supported'")
shutil.copytree(model, output)
"""


@pytest.fixture
def with_optimum(tmp_path, monkeypatch):
    """Make modules of optimum's names found, also by the process that runs its command."""
    packages = tmp_path / "packages"
    for name in ("exporters/onnx", "commands"):
        folder = packages / "optimum" / name
        folder.mkdir(parents=True)
        for each in (folder, folder.parent):
            (each / "__init__.py").touch()
    (packages / "optimum/commands/optimum_cli.py").write_text(_FAKE)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setattr(source, "version", lambda name: "1.2")
    yield packages
    for name in [each for each in sys.modules if each.partition(".")[0] == "optimum"]:
        del sys.modules[name]


def test_it_is_exported_inspected_planned_and_run(cli, tmp_path):
    bundle = tmp_path / "bundle"
    make_original(tmp_path / "draft", "mistral", noise=0.05)
    words = [FOLDER / "mistral", "--draft", tmp_path / "draft", "-o", bundle]
    assert cli("export", *words).code == 0
    assert cli("inspect", bundle, "--verify").code == 0
    assert cli("plan", bundle).code == 0
    texts = [cli("run", bundle, PROMPT, "--draft", each, "-n", 24) for each in ("none", "model")]
    assert texts[0].out == texts[1].out != ""
    assert [each.code for each in texts] == [0, 0]
    fails(cli("run", bundle, PROMPT, "--device", "openvino:cpu"), "runs on the CPU alone")


def test_via_optimum(cli, tmp_path, with_optimum):
    output = tmp_path / "bundle"
    done = cli("export", "--via", "optimum", FOLDER / "gpt2", "-o", output)
    assert (done.code, done.err) == (0, "")
    assert bundles.load(output).manifest.provenance["target"] == "gpt2 by optimum-onnx 1.2"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bundle", "packages"]
    refused = cli("export", "--via", "optimum", "refused/model", "-o", tmp_path / "other")
    fails(refused, "refused/model: optimum did not export it", "odd_type is not supported")
    (with_optimum / "optimum/exporters/onnx/__init__.py").unlink()
    (with_optimum / "optimum/exporters/onnx").rmdir()  # a broken installation is none
    missing = cli("export", "--via", "optimum", "owner/name", "-o", tmp_path / "other")
    fails(missing, 'run pip install ".[optimum]" in a checkout of edgespec, with an environment')
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("option", [("--precision", "int8"), ("--layer-skip", "auto")])
def test_what_a_finished_graph_cannot_have_is_refused(cli, tmp_path, option):
    done = cli("export", FOLDER / "mistral", *option, "-o", tmp_path / "bundle")
    fails(done, f"{option[0]} is given, but", "is exported already")
    assert not (tmp_path / "bundle").exists()


def test_a_finished_graph_has_no_hidden_rows_for_a_head(cli, tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    done = cli("export", FOLDER / "mistral", "--draft", head, "-o", tmp_path / "bundle")
    fails(done, "is a draft head, which reads hidden rows", "give the checkpoint that it was made")
    assert not (tmp_path / "bundle").exists()


def test_a_model_of_this_kind_is_no_draft(cli, tmp_path):
    make_original(tmp_path / "target", "mistral")
    words = ["--draft", FOLDER / "gpt2", "-o", tmp_path / "bundle"]
    fails(cli("export", tmp_path / "target", *words), "an ONNX export", "can only be a target")
