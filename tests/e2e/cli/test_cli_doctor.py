"""`edgespec doctor` and `bench --share`: what they say of a machine, a model and llama.cpp."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from types import SimpleNamespace

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import fails
from ggufs import write_gguf
from gpus import FusedHostAsGpu

from edgespec import bundle as bundles
from edgespec.bundle.options import GraphForm
from edgespec.cli.commands import doctor
from edgespec.llm.load.portable import portable_forms, portable_graph
from edgespec.measuring import passes
from edgespec.measuring.llama_cpp import LlamaModel, ServerOptions
from edgespec.measuring.passes import row_bytes
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu
from edgespec.runtime.engines.portable.webgpu import WebGpu
from edgespec.runtime.kernels import multiply_add
from edgespec.system import bandwidth

SHARE = ["--share", "--limit", "1", "--repeat", "1", "-n", "8", "--threads", "1"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Memory of 20 GB/s, of which nothing is read, 100 G products a second, no other programs."""
    monkeypatch.setattr(bandwidth, "bandwidth", lambda threads, seconds: 20e9)
    monkeypatch.setattr(passes, "integer_rate", lambda threads, seconds: 100e9)
    monkeypatch.setattr("edgespec.cli.sharing.bandwidth", lambda threads, seconds: 20e9)
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(doctor, "_power", lambda: None)
    monkeypatch.setattr(portable, "best_gpu", lambda: None)


@pytest.fixture
def beside_a_gpu(monkeypatch):
    monkeypatch.setattr(webgpu, "WebGpu", FusedHostAsGpu)
    monkeypatch.setattr(portable, "best_gpu", lambda: "webgpu:0")


def test_models_are_timed_on_the_gpu_beside_the_cpu(cli, beside_a_gpu):
    shown = cli("doctor", BUNDLE, "--threads", 1).out
    places = re.findall(r"^the (target|draft) on (\S+): a token", shown, re.M)
    both = ("cpu", "webgpu:0")
    assert places == [(role, device) for device in both for role in ("target", "draft")]
    lines = re.findall(r"the target on (\S+) and .* draft.*: ([\d.]+) tokens/s", shown)
    assert sorted(device for device, _ in lines) == [*["cpu"] * 3, *["webgpu:0"] * 3]
    rates = [float(rate) for _, rate in lines]
    assert rates == sorted(rates, reverse=True)
    assert shown.count("\nbest: the target on ") == 1


def test_what_does_not_fit_on_the_gpu_is_said(cli, beside_a_gpu, monkeypatch):
    monkeypatch.setattr(FusedHostAsGpu, "own_bytes", 1 << 10)
    facts = json.loads(cli("doctor", BUNDLE, "--threads", 1, "--json").out)
    assert {each["device"] for each in facts["places"]} == {"cpu"}
    assert len(facts["places_refused"]) == 1
    assert "webgpu:0" in facts["places_refused"][0] or "gpu" in facts["places_refused"][0]


def test_plan_says_why_a_model_runs_where_it_does(cli, beside_a_gpu):
    shown = cli("plan", BUNDLE, "--draft-device", "gpu").out
    assert "since --device names no other: `edgespec doctor MODEL` times it on a GPU, too" in shown
    assert "as it was asked for: `edgespec doctor MODEL` times it on the CPU, too" in shown


def test_inspect_counts_nodes_of_graphs_that_were_made(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    assert "portable graphs" not in cli("inspect", BUNDLE).out
    bundle = bundles.load(BUNDLE)
    portable_graph(bundle, "draft", GraphForm(0, fused=WebGpu.fused))
    portable_graph(bundle, "draft", GraphForm(0))
    found = {device: form.nodes for device, form in portable_forms(bundle, "draft").items()}
    assert found["openvino"] > 2 * found["webgpu"] > 10
    assert f"webgpu: {found['webgpu']:.1f} nodes a layer" in cli("inspect", BUNDLE).out


def test_a_machine_alone(cli):
    result = cli("doctor", "--threads", 1)
    assert (result.code, result.err) == (0, "")
    assert "1 threads of " in result.out
    assert "memory is read with 20.0 GB/s by all threads" in result.out
    assert "* memory is slow: if it is one module" in result.out
    assert "a token takes" not in result.out


def test_a_model_and_its_limit(cli):
    facts = json.loads(cli("doctor", BUNDLE, "--threads", 1, "--json").out)
    assert list(facts["passes_ms"]) == ["1", "2", "4", "8", "16"]
    assert facts["row_bytes"] == row_bytes(bundles.load(BUNDLE))
    seconds = facts["passes_ms"]["1"] / 1e3
    expected = facts["row_bytes"] / seconds / facts["bandwidth"]
    assert facts["memory_share"] == pytest.approx(expected, rel=0.02)
    target = bundles.load(BUNDLE).target
    rate = facts["prompt_rows"] * passes.prompt_products(target) / facts["prompt_seconds"]
    assert facts["prompt_share"] == pytest.approx(rate / 100e9, rel=0.1)
    shown = cli("doctor", BUNDLE, "--threads", 1).out
    assert "integers are multiplied and added with 100 G/s" in shown
    assert "ms from memory (" in shown
    assert re.search(r"^a prompt of 512 tokens takes \d\.\d\d s: \d\.\d\d of what", shown, re.M)


def test_who_waits_for_arithmetic_is_told_so(cli, monkeypatch):
    monkeypatch.setattr(bandwidth, "bandwidth", lambda threads, seconds: 1e15)
    shown = cli("doctor", BUNDLE, "--threads", 1).out
    assert "passes wait for arithmetic" in shown
    assert "what would make it faster:" in shown


def test_who_is_disturbed_is_told_so_and_nothing_of_times(cli, monkeypatch):
    monkeypatch.setattr("psutil.getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(doctor, "_power", lambda: "the computer runs on its battery: plug it in")
    advice = json.loads(cli("doctor", BUNDLE, "--threads", 1, "--json").out)["advice"]
    assert advice[0].startswith("other programs are busy (load 9.0 on ")
    assert advice[1] == "the computer runs on its battery: plug it in"
    assert not any("memory is slow" in line or "arithmetic" in line for line in advice)


def test_a_row_reads_no_embedding_and_the_experts_that_are_chosen(pairs):
    for name in ("llama", "qwen3_moe"):
        bundle = bundles.load(pairs.pair(name).path)
        native = bundle.manifest.roles["target"].native
        assert 0 < row_bytes(bundle) < bundle.manifest.files[native.data].size


def test_a_row_of_a_prompt_is_multiplied_by_all_matrices_but_the_vocabularys(pairs):
    for name in ("llama", "qwen3_moe"):
        target = bundles.load(pairs.pair(name).path).target
        heads = 2 * target.heads + 2 * target.kv_heads
        attention = heads * target.head_dim * target.hidden_size * target.layers
        assert attention < passes.prompt_products(target) < target.active_parameters


def test_integers_are_multiplied(monkeypatch):
    monkeypatch.undo()
    assert multiply_add(3) == 3 * multiply_add(1)
    assert multiply_add(1) % (32 * 16) == 0
    assert 1e6 < passes.integer_rate(1, 0.01) < 1e14


def test_what_is_shared_is_markdown(cli):
    result = cli("bench", *SHARE)
    assert (result.code, result.err) == (0, "")
    heading, passes_of, limit, speeds = result.out.strip().split("\n\n")
    assert heading.startswith("**")
    assert ", 1 threads, kernels for " in heading
    assert heading.endswith("the built-in prompts")
    assert passes_of.splitlines()[0].split()[-2] == "16"
    assert limit.startswith("One row takes ")
    names = [[cell.strip() for cell in line.split("|")[1:3]] for line in speeds.splitlines()[2:]]
    assert names == [["edgespec", "plain"], ["edgespec", "auto"]]


class Server:
    """xllamacpp's, as far as it is asked."""

    def __init__(self, how):
        self.how = how

    def handle_completions(self, asked, take):
        count = asked["n_predict"]
        for token in range(count):
            take({"__verbose": {"tokens": [token]}})
        take({"__verbose": {"tokens": []}, "timings": {"draft_n_accepted": count // 2}})


@pytest.fixture
def xllamacpp(monkeypatch):
    def params():
        return SimpleNamespace(
            model=SimpleNamespace(),
            cpuparams=SimpleNamespace(),
            cpuparams_batch=SimpleNamespace(),
            speculative=SimpleNamespace(),
        )

    kinds = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE="n-grams")
    module = SimpleNamespace(
        CommonParams=params,
        Server=Server,
        common_speculative_type=kinds,
        __spec__=SimpleNamespace(name="xllamacpp"),
        __name__="xllamacpp",
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    known = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda of: "2026.1" if of == "xllamacpp" else known(of)
    )


@pytest.mark.usefixtures("xllamacpp")
def test_llama_cpp_is_shared_where_it_is_installed_and_reads_the_file(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    make_checkpoint(tmp_path, "llama", hidden_size=64, intermediate_size=128, head_dim=32)
    write_tokenizer(tmp_path, 331)
    write_gguf(tmp_path, tmp_path / "model.gguf", "Q8_0")
    result = cli("bench", tmp_path / "model.gguf", *SHARE, "--context", 256)
    assert result.code == 0, result.err
    out = result.out
    assert "| llama.cpp (xllamacpp 2026.1) | plain " in out
    assert "| llama.cpp (xllamacpp 2026.1) | lookup " in out


@pytest.mark.usefixtures("xllamacpp")
def test_llama_cpp_tells_how_many_drafted_tokens_were_accepted():
    model = LlamaModel(ServerOptions("model.gguf", None, "lookup", 1, 256, sequences=2))
    assert model.texts([[1], [2]], 6, 0.0, 0, lambda: None) == [[*range(6)]] * 2
    assert model.accepted == 6  # of both


def test_what_is_refused(cli):
    fails(cli("bench", "--share", "--json"), "not allowed with")
    fails(cli("doctor", "nowhere"), "there is no model 'nowhere'")
    fails(cli("doctor", "--threads", "0"), "threads is 0")
