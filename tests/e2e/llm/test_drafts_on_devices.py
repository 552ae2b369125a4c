"""A draft model on a device of its own: it makes chains by itself, and texts stay the target's."""

from __future__ import annotations

import pytest
from gpus import FusedHostAsGpu, HostAsGpu, usable
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT

from edgespec.bundle import DRAFT, TARGET
from edgespec.llm.llm import inside
from edgespec.runtime.engines.portable import webgpu
from edgespec.runtime.engines.portable.queue import QueuedGraph

pytestmark = with_library

MODES = [{}, {"temperature": 0.8, "seed": 4}, {"repetition_penalty": 1.3}]


@pytest.fixture(params=[HostAsGpu, FusedHostAsGpu, None], ids=["standard", "fused", "cuda"])
def there(request, monkeypatch):
    """Options that put the draft on a device; WebGPU in software is too slow for texts."""
    if request.param is None:
        return {"draft_device": usable("cuda:0")}
    monkeypatch.setattr(webgpu, "WebGpu", request.param)
    return {"draft_device": "webgpu:0"}


def queues_of(llm):
    """Lengths of the queues of the draft's passes, which are listed from now on."""
    graph = inside(llm).models[DRAFT].ranking
    assert isinstance(graph, QueuedGraph)
    lengths = []
    best = graph.best

    def listed(calls):
        lengths.append(len(calls))
        return best(calls)

    graph.best = listed
    return lengths


@pytest.mark.parametrize("pipeline", ["serial", "overlap"])
def test_texts_are_those_of_plain_decoding(pairs, there, pipeline):
    with cheapen(loaded(pairs, "llama", "model", pipeline=pipeline, **there)) as llm:
        for how in MODES:
            limit = {"max_new_tokens": 40, **how}
            plain = llm.generate(SHORT_PROMPT, draft_source="none", **limit)
            lengths = queues_of(llm)
            result = llm.generate(SHORT_PROMPT, **limit)
            assert result.tokens == plain.tokens
            assert result.draft_engine == there["draft_device"]
            if not how:
                assert max(lengths) > 2
                assert result.accepted > 0
        prompts = [LONG_PROMPT, SHORT_PROMPT, "def f(x):\n    return x"]
        alone = [llm.generate(each, draft_source="none", max_new_tokens=30) for each in prompts]
        made = llm.generate(prompts, max_new_tokens=30)
        assert [each.tokens for each in made] == [each.tokens for each in alone]
        llm.forget()
        assert {model.pool.used for model in inside(llm).models.values()} == {0}


def test_a_target_on_a_device_is_not_ranked(pairs, monkeypatch):
    """Its whole logits are wanted."""
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    with loaded(pairs, "llama", "model", device="webgpu:0", draft_device="webgpu:0") as llm:
        found = {name: model.ranking is not None for name, model in inside(llm).models.items()}
        assert found == {DRAFT: True, TARGET: False}
