"""A target on a device without some of its layers drafts there, over the pool of the whole one."""

from __future__ import annotations

import pytest
from gpus import HostAsGpu
from native_llms import cheapen, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT, with_skips

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.llm.llm import inside
from edgespec.llm.load import place
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu

pytestmark = with_library

SKIPPED = {"llama": (2, 3), "gemma4_text": (6, 7, 8, 9, 10, 11)}
FUSED = frozenset({"float32", "float16", "norms", "sinks", "soft_cap"})
MODES = [{}, {"temperature": 0.8, "seed": 4}]


@pytest.fixture(params=["cpu", "cpu#16x768", "webgpu:0", "webgpu:0 fused"])
def device(request, monkeypatch):
    """Where the target runs, and which of its layers' pools are written in order."""
    name, _, fused = request.param.partition(" ")
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    monkeypatch.setattr(HostAsGpu, "fused", FUSED if fused else None)
    monkeypatch.setattr(place, "library", lambda: None)  # the CPU's graph is a portable one, too
    return name


@pytest.mark.parametrize("name", SKIPPED)
def test_texts_are_plain_decodings(pairs, name, device, tmp_path):
    path = with_skips(pairs.pair(name).path, tmp_path / "bundle", SKIPPED[name])
    with cheapen(LLM(path, draft="layer-skip", device=device, threads=1, context=512)) as llm:
        assert {each.device for each in inside(llm).models.values()} == {device}
        prompts = [LONG_PROMPT, SHORT_PROMPT]
        for how in MODES:
            options = {"max_new_tokens": 100, **how}
            plain = [llm.generate(each, draft_source="none", **options) for each in prompts]
            drafted = llm.generate(prompts, **options)
            assert [each.tokens for each in drafted] == [each.tokens for each in plain]
            assert sum(each.accepted for each in drafted) > 3
        llm.forget()
        assert {model.pool.used for model in inside(llm).models.values()} == {0}


def test_devices_have_copies_of_weights_only_where_it_is_asked_for(pairs, tmp_path, monkeypatch):
    path = with_skips(pairs.pair("llama").path, tmp_path / "bundle", SKIPPED["llama"])
    weights = {}
    for draft in ("none", "lookup", "layer-skip"):
        options = LoadOptions(draft=draft, device="cpu#16x768", context=300)
        made = place.find_plan(bundles.load(path), options)
        weights[draft] = made.demands[0].weights
    assert weights["layer-skip"] == 2 * weights["none"] == 2 * weights["lookup"]
    with LLM(path, device="cpu#16x768", threads=1, context=300) as llm:
        assert "layer-skip" not in llm.draft_sources
    monkeypatch.setattr(portable, "best_gpu", lambda: "openvino:cpu")
    with pytest.raises(InputError, match="nothing that drafts by layer-skip"):
        LLM(path, draft="layer-skip", gpu_layers=1, threads=1, context=300)
