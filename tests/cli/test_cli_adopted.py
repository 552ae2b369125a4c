"""Models that other programs exported, on the command line: exported, planned for, measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import copytree

import pytest
from adopted import FOLDER, make_original
from commandline import FAST, PROMPT, fails

from edgespec import bundle as bundles
from edgespec.export.adopted import optimum

# What optimum's command does, as far as a bundle is made of it.
_FAKE = """
import shutil, sys
model, output = sys.argv[sys.argv.index("--model") + 1], sys.argv[-1]
assert sys.argv[1:3] == ["export", "onnx"] and "text-generation-with-past" in sys.argv
if model == "refused/model":
    sys.exit("KeyError: 'odd_type is not supported'")
shutil.copytree(model, output)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with a draft model of the same tokens."""
    from edgespec.cli import main

    folder = tmp_path_factory.mktemp("adopted")
    make_original(folder / "draft", "mistral", noise=0.05)
    words = ["export", FOLDER / "mistral", "--draft", folder / "draft", "-o", folder / "bundle"]
    assert main(list(map(str, [*words, "--no-calibration"]))) == 0
    return folder / "bundle"


@pytest.fixture
def with_optimum(tmp_path, monkeypatch):
    """Make modules of optimum's names found, also by the process that runs its command."""
    for name in ("exporters/onnx", "commands"):
        folder = tmp_path / "packages" / "optimum" / name
        folder.mkdir(parents=True)
        for each in (folder, folder.parent):
            (each / "__init__.py").touch()
    (tmp_path / "packages/optimum/commands/optimum_cli.py").write_text(_FAKE)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setattr(optimum, "version", lambda name: "1.2")
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "optimum"]:
        del sys.modules[name]


def test_it_is_inspected_planned_run_and_measured(cli, bundle, tmp_path):
    shown = cli("inspect", bundle, "--verify")
    assert shown.code == 0
    assert "chains" in shown.out
    plan = json.loads(cli("plan", bundle, *FAST, "--json").out)
    assert plan["engines"].keys() == {"target", "draft"}
    prompts = tmp_path / "prompt.txt"
    prompts.write_text(PROMPT)
    words = ["--prompts", prompts, "--draft", "none,auto,model,lookup", "--repeat", 1, "-n", 24]
    facts = json.loads(cli("bench", bundle, *words, *FAST, "--bits", 4, "--json").out)
    assert len(facts["settings"]) == 4
    assert {line["equal_to_plain"] for line in facts["settings"]} == {"yes"}
    model = next(line for line in facts["settings"] if line["name"] == "model")
    assert model["mean_accepted_length"] > 1.5
    scored = cli("eval", bundle, "--text", prompts, "--device=cpu")
    assert scored.code == 0, scored.err


def test_via_optimum(cli, tmp_path, with_optimum):
    output = tmp_path / "bundle"
    done = cli("export", "--via", "optimum", FOLDER / "gpt2", "-o", output)
    assert (done.code, done.err) == (0, "")
    assert "drafts and verifies in chains" in done.out
    assert bundles.load(output).manifest.provenance["target"] == "gpt2 by optimum-onnx 1.2"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bundle", "packages"]
    refused = cli("export", "--via", "optimum", "refused/model", "-o", tmp_path / "other")
    fails(refused, "refused/model: optimum did not export it", "odd_type is not supported")
    assert not (tmp_path / "other").exists()


def test_without_optimum_it_says_how_to_install_it(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(optimum, "find_spec", lambda name: None)
    done = cli("export", "--via", "optimum", "owner/name", "-o", tmp_path / "bundle")
    fails(done, 'run pip install "edgespec[optimum]" in an environment of its own')


def test_a_broken_installation_of_optimum_is_none(cli, tmp_path, with_optimum, monkeypatch):
    (Path(tmp_path) / "packages/optimum/exporters/onnx/__init__.py").unlink()
    (Path(tmp_path) / "packages/optimum/exporters/onnx").rmdir()
    done = cli("export", "--via", "optimum", "owner/name", "-o", tmp_path / "bundle")
    fails(done, "--via optimum needs optimum's ONNX exporter")


@pytest.mark.parametrize(
    "option",
    [
        ("--precision", "int8"),
        ("--layer-skip", "auto"),
        ("--layer-skip-budget", "9"),
        ("--cut-layers", "1"),
        ("--npu-precision", "fp16"),
        ("--draft-head", str(FOLDER)),
        ("--no-calibration",),
        ("--quality",),
    ],
)
def test_what_a_finished_graph_cannot_have_is_refused(cli, tmp_path, option):
    done = cli("export", FOLDER / "mistral", *option, "-o", tmp_path / "bundle")
    fails(done, f"{option[0]} is given, but", "is exported already")
    assert not (tmp_path / "bundle").exists()


def test_a_model_of_this_kind_is_no_draft(cli, tmp_path):
    make_original(tmp_path / "target", "mistral")
    words = ["--draft", FOLDER / "gpt2", "-o", tmp_path / "bundle"]
    fails(cli("export", tmp_path / "target", *words), "an ONNX export", "can only be a target")


def test_several_files_are_told_apart(cli, tmp_path):
    folder = copytree(FOLDER / "genai", tmp_path / "folder")
    (folder / "model.onnx").rename(folder / "model_q4.onnx")
    (folder / "model_int8.onnx").touch()
    fails(cli("export", folder, "-o", tmp_path / "bundle"), "model_int8.onnx, model_q4.onnx")
    assert cli("export", folder / "model_q4.onnx", "-o", tmp_path / "bundle").code == 0
