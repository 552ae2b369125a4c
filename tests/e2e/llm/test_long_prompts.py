"""Texts of a target on two devices, of which the second one reads long prompts for all layers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoints import make_checkpoint
from gpus import FusedHostAsGpu, HostAsGpu
from native_llms import cheapen, with_library

from edgespec import LLM, bundle, export
from edgespec.bundle import TARGET
from edgespec.errors import MemoryLimitError
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import find_plan
from edgespec.llm.load.prompt_trial import PromptTrial
from edgespec.llm.load.trials import kept_trial
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu

pytestmark = with_library

TOKENS = np.random.default_rng(2).integers(3, 331, 600).tolist()
LAYERS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    sizes = {"num_hidden_layers": LAYERS, "max_position_embeddings": 1024}
    make_checkpoint(folder / "target", "llama", **sizes)
    make_checkpoint(folder / "draft", "llama", **sizes | {"num_hidden_layers": 1})
    options = ExportOptions("fp32", kv_precision="fp16")
    export.make(folder / "target", folder / "bundle", folder / "draft", options)
    return folder / "bundle"


@pytest.fixture(params=[HostAsGpu, FusedHostAsGpu])
def gpu(request, monkeypatch):
    """Stands for the best GPU."""
    monkeypatch.setattr(portable, "best_gpu", lambda: "webgpu:0")
    monkeypatch.setattr(webgpu, "WebGpu", request.param)
    return request.param


def loaded(path, draft="auto", layers=1):
    return LLM(path, draft=draft, threads=1, gpu_layers=layers)


def test_drafts_change_no_text_and_prompts_are_shared(path, gpu, long_calls):
    with loaded(path, "none") as llm:
        plain = llm.generate(TOKENS, max_new_tokens=40)
        other = llm.generate([*TOKENS[:400], 7], max_new_tokens=20)
    assert long_calls == [300, 300]  # of the second prompt nearly all was read before
    assert other.reused == 400
    long_calls.clear()
    with cheapen(loaded(path)) as llm:
        for source in llm.draft_sources:
            made = llm.generate(TOKENS, max_new_tokens=40, draft_source=source)
            assert made.tokens == plain.tokens
            assert not made.exact
            again = llm.generate([*TOKENS[:400], 7], max_new_tokens=20, draft_source=source)
            assert again.tokens == other.tokens
        assert long_calls == [300, 300]


def test_a_text_that_is_cancelled_leaves_its_prompt_to_others(path, gpu, long_calls):
    with loaded(path, "none") as llm:
        expected = llm.generate(TOKENS, max_new_tokens=8).tokens
    with loaded(path, "none") as llm:
        stream = llm.stream(TOKENS, max_new_tokens=8)
        next(iter(stream))
        stream.cancel()
        for _ in stream:
            pass
        pool = inside(llm).models[TARGET].pool
        made = llm.generate(TOKENS, max_new_tokens=8)
        assert made.tokens == expected
        assert made.reused > 0
        inside(llm).models[TARGET].prefixes.clear()
        assert pool.used == 0


def test_a_trial_at_the_first_load_decides(path, gpu, own_cache, cli, monkeypatch):
    with loaded(path, "none") as llm:
        long = inside(llm).models[TARGET].long_passes
    [file] = (own_cache / "portable").glob("*.prompts.json")
    graph = file.with_name(file.name.removesuffix(".prompts.json")) / "portable.onnx"
    trial = kept_trial(PromptTrial, graph)
    assert trial.layers == LAYERS - 1
    assert trial.distance < 1e-2  # caches are in half precision
    assert (long is not None) == trial.passed
    monkeypatch.setenv("COLUMNS", "240")
    shown = cli("inspect", path).out
    assert f"webgpu, with {LAYERS - 1} layers on the CPU: prompts are read" in shown
    kept = json.loads(file.read_text())
    for there, passed in ((kept["here"] / 2, True), (kept["here"] * 2, False)):
        file.write_text(json.dumps(kept | {"there": there}))
        with loaded(path, "none") as llm:
            assert (inside(llm).models[TARGET].long_passes is not None) == passed


def test_commands_say_where_prompts_are_read(path, gpu, cli):
    shown = cli("plan", path, "--gpu-layers", 1).out
    assert f"from layer {LAYERS - 1} on it is on webgpu:0, which reads prompts of 256" in shown
    assert "webgpu:0 reads prompts with --gpu-layers" in " ".join(cli("devices").out.split())
    short = cli("plan", path, "--gpu-layers", 1, "--context", 200).out
    assert "and layers before that read prompts on cpu" in short


def test_without_room_on_the_gpu_prompts_stay_on_the_cpu(path, gpu):
    def planned(**more):
        return find_plan(bundle.load(path), LoadOptions(draft="none", gpu_layers=1, **more))

    wide = planned()
    assert wide.roles[TARGET].prompts == 512
    [needed] = [each.total for each in wide.demands if each.memory == "gpu"]
    for limit, rows in ((needed, 512), (needed - 1, 0)):
        found = planned(memory={"gpu": limit})
        assert (found.roles[TARGET].prompts, found.context) == (rows, wide.context)
    with pytest.raises(MemoryLimitError):
        planned(memory={"gpu": 1000}).require_fit()
