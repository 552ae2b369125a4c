"""The command line as a whole: commands, exit codes, messages, late imports."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import fails
from cuts import cut

import edgespec
from edgespec import bundle as bundles
from edgespec.cli.assignment import StageAssignment, assignment_table
from edgespec.models.embedded import BUNDLE


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "checkpoint"
    make_checkpoint(path, "llama")
    write_tokenizer(path, 331)
    return path


@pytest.mark.parametrize("words", [[], ["cook"], ["export", "here"], ["inspect", "a", "b"]])
def test_commands_that_are_refused(cli, words):
    fails(cli(*words), "--help")


def test_help_says_what_a_command_is_for(cli, capsys):
    with pytest.raises(SystemExit):
        cli("serve", "--help")
    assert "\nServe a bundle on this machine with OpenAI's API" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("here", "shown"),
    [
        ({}, "none"),
        ({"Add": 2, "Mul": 3}, "5: 3 Mul, 2 Add"),
        (dict(zip("abcde", range(1, 6), strict=True)), "15: 5 e, 4 d, 3 c, 2 b, …"),
    ],
)
def test_kinds_of_nodes_that_are_not_named_are_hinted_at(here, shown):
    table = assignment_table("qnn:npu", [StageAssignment("target.onnx", here, ())])
    assert list(table.columns[1].cells) == [shown]


@pytest.mark.parametrize("device", ["cpu", "gpu", "onnxruntime:cpu"])
def test_a_device_that_does_not_tell_what_it_runs(cli, device):
    fails(cli("inspect", "--device", device), f"{device} does not tell", "use one of qnn:npu")


def test_inspect_shows_every_role_and_file(cli):
    result = cli("inspect", "--verify")
    facts = json.loads(cli("inspect", BUNDLE, "--verify", "--json").out)
    assert facts["verified"] is True
    for name, entry in facts["files"].items():
        assert name in result.out
        assert entry["sha256"][:12] in result.out
    for role in facts["roles"].values():
        assert f"{role['parameters']:,}" in result.out
        worst = max(role["quantization_error"].values())
        assert f"{worst:.2%} worst" in result.out
    assert f"all {len(facts['files'])} files are correct" in result.out


@pytest.mark.parametrize("name", ["qwen[int4]", "a[/b]"])
def test_inspect_shows_brackets_as_they_are(cli, tmp_path, name):
    shutil.copytree(BUNDLE, tmp_path / name)
    found = cli("inspect", tmp_path / name)
    assert found.code == 0
    assert name in "".join(found.out.split())


@pytest.mark.parametrize(
    ("cuts", "borders", "shown"),
    [
        ([], [], "1"),
        ([3], [], "2, cut before 1m; one device only"),
        ([4, 9, 16], [2], "4, cut before 2, 4m, the head; can be split between devices before 2"),
    ],
)
def test_inspect_shows_where_stages_end(cli, monkeypatch, cuts, borders, shown):
    monkeypatch.setattr(bundles, "load", lambda path: cut(*cuts))
    facts = json.loads(cli("inspect", "--json").out)
    assert (facts["cuts"], facts["borders"]) == (cuts, borders)
    rows = [line.split("│")[1:-1] for line in cli("inspect").out.splitlines() if "│" in line]
    names = [row[0].strip() for row in rows]
    place = names.index("stages")
    end = names.index("hidden size")
    assert " ".join(row[1].strip() for row in rows[place:end]) == shown


def test_export_says_sizes_and_warns_in_one_line(cli, checkpoint, tmp_path):
    output = tmp_path / "made"
    words = ["--precision=int8", "--block-size=128", "--kv-precision=fp16", "--draft", checkpoint]
    result = cli("export", checkpoint, "-o", output, *words, "--draft-precision=fp16")
    assert result.code == 0
    assert result.out.startswith(f"{output}: ")
    assert "% of the checkpoints'" in result.out
    assert result.err.startswith("edgespec: warning: target: block size 128 does not divide")
    assert len(result.err.splitlines()) == 1
    roles = json.loads(cli("inspect", output, "--json").out)["roles"]
    assert [role["precision"]["weights"] for role in roles.values()] == ["int8", "fp16"]
    assert [role["precision"]["kv"] for role in roles.values()] == ["fp16", "fp16"]
    fails(cli("export", checkpoint, "-o", output), "exists", "--overwrite")
    assert cli("export", checkpoint, "-o", output, "--overwrite").code == 0
    assert list(json.loads(cli("inspect", output, "--json").out)["roles"]) == ["target"]


@pytest.mark.parametrize("layers", ["a", "1,,2", ""])
def test_export_cut_at_what_is_no_number(cli, tmp_path, layers):
    result = cli("export", tmp_path, "-o", tmp_path / "out", f"--cut-layers={layers}")
    fails(result, f"{layers!r} is not a list of layers", "such as 4 or 4,8")


@pytest.mark.parametrize(
    ("alone", "needed"),
    [
        ("--draft-precision=int8", "--draft or --draft-head"),
        ("--compile-shapes=8x128", "--compile-for"),
    ],
)
def test_export_options_that_would_do_nothing(cli, tmp_path, alone, needed):
    result = cli("export", tmp_path, "-o", tmp_path / "out", alone)
    fails(result, f"{alone.split('=')[0]} does nothing without {needed}: add {needed}")


def test_export_of_what_is_not_there(cli, tmp_path):
    fails(cli("export", tmp_path / "a" / "b" / "c", "-o", tmp_path / "out"), "no such folder")


def test_verbose_shows_information_in_one_line_each(cli, monkeypatch):
    def execute(_arguments):
        logging.getLogger("edgespec.any").info("measured\nthis")
        return 0

    monkeypatch.setattr("edgespec.cli.commands.inspect.execute", execute)
    assert cli("inspect").err == ""
    assert cli("inspect", "-v").err == "edgespec: info: measured this\n"
    assert cli("inspect").err == ""


def test_a_fault_of_ours_is_two_lines(cli, monkeypatch):
    def execute(_arguments):
        raise ValueError("first\nsecond")

    monkeypatch.setattr("edgespec.cli.commands.inspect.execute", execute)
    result = cli("inspect")
    fails(result, "internal error: ValueError: first second", __file__, code=1)


def test_names_that_hold_newlines_are_in_one_line(cli, tmp_path):
    for words in (["inspect", tmp_path / "a\nb\nc"], ["run", "-f", tmp_path / "a\nb\nc"]):
        result = cli(*words)
        fails(result, f"{tmp_path / 'a b c'}")
        assert len(result.err.splitlines()) == 1


def test_memory_that_runs_out_is_no_fault_of_ours(cli, monkeypatch):
    """As where another program has taken it since the plan was made."""

    def execute(_arguments):
        raise MemoryError("Unable to allocate 2 GiB")

    monkeypatch.setattr("edgespec.cli.commands.inspect.execute", execute)
    result = cli("inspect")
    fails(result, "memory ran out (Unable to allocate 2 GiB)", "`edgespec plan`", code=3)


def test_version_and_module(tmp_path):
    run = [sys.executable, "-m", "edgespec", "--version"]
    found = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == f"edgespec {edgespec.__version__}\n"


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import edgespec", "numpy onnxruntime openvino onnx"),
        ("main(['--help'])", "numpy onnxruntime openvino onnx rich"),
        ("main(['run', '--help'])", "onnxruntime openvino onnx"),
        ("main(['export', '--help'])", "onnxruntime openvino"),
        ("main(['inspect'])", "onnxruntime openvino onnx"),
        ("main(['profile', '--help'])", "onnxruntime openvino onnx matplotlib"),
        ("main(['bench', '--help'])", "onnxruntime openvino onnx matplotlib"),
        ("main(['eval', '--help'])", "onnxruntime openvino onnx"),
    ],
)
def test_nothing_is_imported_before_it_is_needed(tmp_path, code, unwanted):
    script = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", *set("{unwanted}".split()) & set(sys.modules)))
{"from edgespec.cli import main" if "main" in code else ""}
{code}
"""
    run = [sys.executable, "-c", script]
    found = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1].split() == ["loaded:"]
