"""The command line as a whole: commands, exit codes, messages, late imports."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import fails

import edgespec
from edgespec.models.embedded import BUNDLE


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "checkpoint"
    make_checkpoint(path, "llama")
    write_tokenizer(path, 331)
    return path


@pytest.mark.parametrize("words", [["cook"], ["export", "here"], ["inspect", "a", "b"]])
def test_commands_that_are_refused(cli, words):
    fails(cli(*words), "--help")


def test_help_says_what_a_command_is_for(cli, capsys):
    with pytest.raises(SystemExit):
        cli("serve", "--help")
    assert "\nServe models on this machine: OpenAI's, Anthropic's" in capsys.readouterr().out


def test_inspect_shows_every_role_and_file(cli):
    result = cli("inspect", "--verify")
    facts = json.loads(cli("inspect", BUNDLE, "--verify", "--json").out)
    assert facts["verified"] is True
    for name, entry in facts["files"].items():
        assert name in result.out
        assert entry["sha256"][:12] in result.out
    for role in facts["roles"].values():
        assert f"{role['parameters']:,}" in result.out
        assert set(role["native"]["formats"]) <= set(re.findall(r"\w+", result.out))
    assert f"all {len(facts['files'])} files are correct" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["qwen[int4]", "a[/b]"])
def test_inspect_shows_brackets_as_they_are(cli, tmp_path, name):
    shutil.copytree(BUNDLE, tmp_path / name)
    found = cli("inspect", tmp_path / name)
    assert found.code == 0
    assert name in "".join(found.out.split())


def test_a_plan_says_what_runs_where_and_what_it_needs(cli):
    words = ["--context", 512, "--sessions", 2]
    shown = cli("plan", *words).out
    facts = json.loads(cli("plan", *words, "--json").out)
    assert (facts["context"], facts["dropped"]) == (512, [])
    assert {name: role["device"] for name, role in facts["roles"].items()} == {
        "target": "cpu",
        "draft": "cpu",
    }
    assert "target on cpu, by its native graph" in shown
    assert "context of 512 tokens" in shown
    (host,) = facts["demands"]
    total = sum(host[part] for part in ("baseline", "weights", "kv", "workspace"))
    assert f"{total / 2**20:,.1f}" in shown
    assert host["mapped"] > 1 << 20
    assert list(json.loads(cli("plan", "--draft=lookup", "--json").out)["roles"]) == ["target"]


def test_a_plan_says_what_gave_way_to_memory(cli):
    result = cli("plan", "--memory", "112MiB")
    assert result.code == 0
    assert "warning: the context is " in result.err
    refused = cli("plan", "--memory", "1MiB")
    assert refused.code == 3
    assert "1 MiB are free: lower --context" in refused.err
    fails(cli("plan", "--context", 9999), "context is 9999")


def test_devices_are_listed_and_others_say_why_not(cli):
    shown = cli("devices").out
    facts = json.loads(cli("devices", "--json").out)
    usable = [each["name"] for each in facts["devices"] if each["reason"] is None]
    assert "cpu" in usable
    for each in facts["devices"]:
        assert each["name"] in shown
        assert (each["reason"] is None) == (each["hardware"] is not None)
    gpu = facts["gpu"]
    used = f"--device gpu runs on {gpu}" if gpu else "no GPU can be used: --device gpu runs on"
    assert used in shown


@pytest.mark.parametrize("name", ["avx512", "avx2", "dotprod", "plain"])
def test_devices_say_what_the_processor_lacks(cli, monkeypatch, name):
    monkeypatch.setattr("edgespec.runtime.kernels.kernel_name", lambda: name)
    monkeypatch.setattr("edgespec.runtime.kernels.usable_kernels", lambda: (name,))
    shown = " ".join(cli("devices").out.split())
    facts = json.loads(cli("devices", "--json").out)
    assert facts["kernels"] == name
    assert f"the cpu computes with kernels for {name}" in shown
    assert (facts["lacking"] is None) == (name == "avx512")
    if name == "avx2":
        assert "neither AVX512-VNNI nor AVX-VNNI: a pass over 8 rows" in shown
    monkeypatch.setattr("edgespec.runtime.kernels.usable_kernels", lambda: ("best", name))
    assert "EDGESPEC_KERNELS has chosen them, though the processor has best" in cli("devices").out


def test_export_says_sizes(cli, checkpoint, tmp_path):
    output = tmp_path / "made"
    words = ["--precision=int8", "--kv-precision=fp16", "--draft", checkpoint]
    result = cli("export", checkpoint, "-o", output, *words, "--draft-precision=fp16")
    assert result.code == 0
    assert result.out.startswith(f"{output}: ")
    assert "% of the checkpoints'" in result.out
    assert not result.err
    roles = json.loads(cli("inspect", output, "--json").out)["roles"]
    assert [role["precision"]["weights"] for role in roles.values()] == ["int8", "fp16"]
    assert [role["precision"]["kv"] for role in roles.values()] == ["fp16", "fp16"]
    fails(cli("export", checkpoint, "-o", output), "exists", "--overwrite")
    assert cli("export", checkpoint, "-o", output, "--overwrite").code == 0
    assert list(json.loads(cli("inspect", output, "--json").out)["roles"]) == ["target"]


@pytest.mark.parametrize("layers", ["a", "1,,2", ""])
def test_layers_that_are_no_numbers(cli, tmp_path, layers):
    words = [BUNDLE, "--text", "a.txt", "-o", tmp_path / "head", f"--taps={layers}"]
    fails(cli("train-draft", *words), f"{layers!r} is not a list of layers", "such as 4 or 4,8")


def test_an_export_option_that_would_do_nothing(cli, tmp_path):
    result = cli("export", tmp_path, "-o", tmp_path / "out", "--draft-precision=int8")
    fails(result, "--draft-precision does nothing without --draft: add it")


@pytest.mark.parametrize("draft", [[], ["--draft", "none"]], ids=str)
def test_export_of_a_bundle_alone(cli, tmp_path, draft):
    result = cli("export", BUNDLE, *draft, "-o", tmp_path / "out")
    fails(result, f"{BUNDLE} is a bundle already: give a model or head as --draft")
    assert not (tmp_path / "out").exists()


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
        ("main(['run', '--help'])", "numpy onnxruntime openvino onnx torch transformers rich"),
        ("main(['chat', '--help'])", "numpy onnxruntime openvino onnx rich"),
        ("main(['serve', '--help'])", "numpy onnxruntime openvino onnx rich"),
        ("main(['export', '--help'])", "numpy onnxruntime openvino onnx rich"),
        ("main(['list'])", "numpy onnxruntime openvino onnx"),
        ("main(['inspect'])", "onnxruntime openvino onnx"),
        ("main(['run', 'x ', '-n', '2'])", "openvino onnx torch transformers rich"),
        ("main(['plan'])", "onnxruntime openvino onnx torch transformers"),
        ("main(['bench', '--help'])", "numpy onnxruntime openvino onnx"),
        ("main(['eval', '--help'])", "numpy onnxruntime openvino onnx"),
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
