"""Models with recurrent layers on devices: drafts never change texts, and sessions go on anywhere.

ONNX Runtime's CPU provider stands for a device, by calls of a fixed shape, and for a GPU's pools;
OpenVINO's CPU for the best GPU where layers are on two devices.
"""

from __future__ import annotations

import pytest
from gpus import FusedHostAsGpu, HostAsGpu, usable
from histories import nothing_is_left
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT
from sessions import OPTIONS
from small_configs import RECURRENT

from edgespec.bundle import DRAFT, TARGET
from edgespec.llm.llm import inside
from edgespec.llm.load import place
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu

pytestmark = with_library

FIXED = "cpu#16x768"
MODES = [{"max_new_tokens": 40}, {"max_new_tokens": 40, "temperature": 0.8, "seed": 4}]


@pytest.mark.parametrize(
    ("device", "gpu"), [(FIXED, None), ("webgpu:0", HostAsGpu), ("webgpu:0", FusedHostAsGpu)]
)
@pytest.mark.parametrize("name", RECURRENT)
def test_drafts_never_change_texts(pairs, name, device, gpu, monkeypatch):
    monkeypatch.setattr(webgpu, "WebGpu", gpu)
    there = {"device": device, "draft_device": device}
    with cheapen(loaded(pairs, f"{name}-draft", **there)) as llm:
        assert {each.device for each in inside(llm).models.values()} == {device}
        assert (inside(llm).models[DRAFT].ranking is not None) == (device == "webgpu:0")
        prompts = [LONG_PROMPT, SHORT_PROMPT]
        for how in MODES:
            plain = [llm.generate(each, draft_source="none", **how) for each in prompts]
            for source in ("model", "lookup"):
                drafted = llm.generate(prompts, draft_source=source, **how)
                assert [each.tokens for each in drafted] == [each.tokens for each in plain]
                assert source != "model" or sum(each.accepted for each in drafted) > 9
        llm.forget()
        assert all(nothing_is_left(each) for each in inside(llm).models.values())


@pytest.mark.parametrize("name", RECURRENT)
def test_a_draft_on_a_device_drafts_for_the_cpu(pairs, name):
    with cheapen(loaded(pairs, f"{name}-draft", draft_device=FIXED)) as llm:
        models = inside(llm).models
        assert (models[TARGET].device, models[DRAFT].device) == ("cpu:native", FIXED)
        for how in MODES:
            plain = llm.generate(LONG_PROMPT, draft_source="none", **how)
            result = llm.generate(LONG_PROMPT, draft_source="model", **how)
            assert result.tokens == plain.tokens
            assert result.accepted > 5


def written(pairs, name, **options):
    """The device of a target, and what it writes."""
    with loaded(pairs, name, **options) as llm:
        return inside(llm).models[TARGET].device, llm.generate(LONG_PROMPT, **OPTIONS).tokens


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5_text"])
def test_layers_on_two_devices(pairs, name, layers, monkeypatch):
    gpu = usable("openvino:cpu")
    monkeypatch.setattr(portable, "best_gpu", lambda: gpu)
    _, expected = written(pairs, name, draft="none")
    assert written(pairs, name, gpu_layers=layers) == (f"cpu:native+{gpu}", expected)


def test_without_the_operators_standard_ones_are_used(pairs, monkeypatch):
    _, expected = written(pairs, "granitemoehybrid", draft="none")
    monkeypatch.setattr(place, "library", lambda: None)
    assert written(pairs, "granitemoehybrid") == ("cpu", expected)


@pytest.mark.parametrize("device", [FIXED, "webgpu:0"])
@pytest.mark.parametrize("name", ["nemotron_h", "qwen3_5_text"])
def test_a_session_goes_on_on_another_device(pairs, name, device, tmp_path, monkeypatch):
    """What is kept of rows that may be rejected has another form where operators are fused."""
    monkeypatch.setattr(webgpu, "WebGpu", FusedHostAsGpu)
    with loaded(pairs, name, "none", device=device) as llm, llm.session() as session:
        begun = session.generate(LONG_PROMPT, **OPTIONS)
        session.save(tmp_path / "file")
        prompt = [*session.tokens, 5, 6]
        text = session.generate(prompt, **OPTIONS)
        assert text.reused >= len(prompt) - 3
        assert begun.tokens
    with (
        loaded(pairs, name, "none") as llm,
        llm.load_session(tmp_path / "file") as session,
    ):
        again = session.generate(prompt, **OPTIONS)
        assert (again.tokens, again.reused) == (text.tokens, text.reused)
