"""Heads of all kinds with all engines: texts are never changed, and drafts are the same.

ONNX Runtime's CPU provider stands for a device, by calls of a fixed shape, which pad rows.
OpenVINO's CPU stands for the best GPU where a target's layers are on two devices. Where there is a
GPU of NVIDIA's, all of it happens there, too.
"""

from __future__ import annotations

from functools import cache

import pytest
from gpus import HostAsGpu, usable
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT, with_eos
from sessions import OPTIONS, turns

from edgespec import LLM
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError
from edgespec.llm.llm import inside
from edgespec.llm.load import place
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu

pytestmark = with_library

NATIVE = "cpu:native"
STAND_IN = "cpu#32x768"
CUDA = "cuda:0"
BEST = {STAND_IN: "openvino:cpu", CUDA: CUDA}  # devices, and the best GPU of their machines
KINDS = ("head", "peagle", "dflash", "dflash2", "dspark", "mtp", "assistant")
MODES = [{"max_new_tokens": 60}, {"max_new_tokens": 60, "temperature": 0.8, "seed": 4}]


def places(device):
    """By place: options, the engines of target and head, and by kind how it is refused there."""
    gpu = BEST[device]
    both = {"device": device, "draft_device": device}
    reads = f"its gemma4_assistant head reads keys .* on {device} while that runs on "
    return {
        "target on a device": ({"device": device}, device, NATIVE, {}),
        "head on a device": (
            {"draft_device": device},
            NATIVE,
            device,
            {"assistant": f"{reads}cpu: leave"},
        ),
        "both on a device": (both, device, device, {}),
        "target on two": (
            {"gpu_layers": 2, "draft_device": device},
            f"cpu:native+{gpu}",
            device,
            {"assistant": reads},
        ),
    }


@pytest.fixture(params=BEST)
def device(request, monkeypatch):
    """Where heads or targets run, on a machine with such a GPU."""
    monkeypatch.setattr(portable, "best_gpu", lambda: usable(BEST[request.param]))
    return usable(request.param)


@pytest.fixture(scope="module")
def expected(pairs):
    """Texts without drafts, and with a head that runs on the CPU beside its target, by kind."""

    @cache
    def texts(kind):
        with cheapen(loaded(pairs, kind, "head")) as llm:
            plain = [llm.generate(LONG_PROMPT, draft_source="none", **how) for how in MODES]
            return [(each.tokens, anew(llm, **how)) for each, how in zip(plain, MODES, strict=True)]

    return texts


def anew(llm, prompt=LONG_PROMPT, **how):
    """What a model writes that has read nothing: of a prompt that it shares a head has no rows."""
    llm.forget()
    return llm.generate(prompt, **how)


@pytest.mark.parametrize("place", places(STAND_IN))
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_drafts_the_same_with_any_engine(pairs, expected, device, kind, place):
    options, target, head, refused = places(device)[place]
    if kind in refused:
        with pytest.raises(DeviceError, match=refused[kind]) as error:
            loaded(pairs, kind, "head", **options)
        assert "\n" not in str(error.value)
        return
    with cheapen(loaded(pairs, kind, "head", **options)) as llm:
        roles = inside(llm).models
        assert roles[TARGET].device == target
        assert roles[DRAFT].device == (target if kind == "assistant" else head)
        for how, (plain, there) in zip(MODES, expected(kind), strict=True):
            assert there.tokens == plain
            own = plain  # a GPU has logits of its own
            if CUDA in target:
                own = llm.generate(LONG_PROMPT, draft_source="none", **how).tokens
            result = anew(llm, **how)
            assert result.tokens == own
            assert abs(result.accepted - there.accepted) < 4  # near-ties and late passes


@pytest.mark.parametrize("kind", ["head", "dflash2", "assistant"])
def test_a_head_drafts_the_same_where_pools_stay_on_a_device(pairs, expected, monkeypatch, kind):
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    there = {"device": "webgpu:0", "draft_device": "webgpu:0"}
    with cheapen(loaded(pairs, kind, "head", **there)) as llm:
        result, (plain, like) = anew(llm, **MODES[0]), expected(kind)[0]
        assert {each.device for each in inside(llm).models.values()} == {"webgpu:0"}
        assert result.tokens == plain
        assert abs(result.accepted - like.accepted) < 4


@pytest.mark.parametrize("kind", ["head", "peagle", "dspark", "assistant"])
def test_batches_sessions_and_grammars_on_a_device(pairs, tmp_path, device, kind):
    path = with_eos(pairs.pair(kind).path, tmp_path / "bundle", 0)
    place = {"device": device, "draft_device": device, "threads": 1, "context": 512}
    with cheapen(LLM(path, draft="head", **place)) as llm:
        for how in MODES:
            prompts = [LONG_PROMPT, SHORT_PROMPT, "def f(x):\n    return x"]
            alone = [llm.generate(each, draft_source="none", **how).tokens for each in prompts]
            made = llm.generate(prompts, **how)
            assert [each.tokens for each in made] == alone
            assert sum(each.drafted for each in made) > 0
        with llm.session() as session:
            for prompt in turns(llm, 4):
                plain = llm.generate(prompt, draft_source="none", **OPTIONS)
                assert session.generate(prompt, **OPTIONS).tokens == plain.tokens
        how = {"max_new_tokens": 40, "regex": "(hello world ){20}"}
        plain = llm.generate(SHORT_PROMPT, draft_source="none", **how)
        assert llm.generate(SHORT_PROMPT, **how).tokens == plain.tokens
        llm.forget()
        assert {model.pool.used for model in inside(llm).models.values()} == {0}


def test_a_block_is_never_cut(pairs):
    message = (
        "its dflash head drafts blocks of 6 rows, and calls of cpu#4x512 have 4: name it with "
        "more, as cpu#6x512"
    )
    with pytest.raises(DeviceError, match=message):
        loaded(pairs, "dflash", "head", draft_device="cpu#4x512")
    with cheapen(loaded(pairs, "dflash", "head", draft_device="cpu#7x512")) as llm:
        plain = llm.generate(LONG_PROMPT, draft_source="none", max_new_tokens=30)
        result = anew(llm, [LONG_PROMPT] * 2, max_new_tokens=30)
        assert [each.tokens for each in result] == [plain.tokens] * 2
        assert sum(each.accepted for each in result) > 20


def test_without_the_operators_heads_run_by_standard_ones(pairs, expected, monkeypatch):
    monkeypatch.setattr(place, "library", lambda: None)
    with cheapen(loaded(pairs, "head", "head")) as llm:
        plain, there = expected("head")[0]
        result = llm.generate(LONG_PROMPT, **MODES[0])
        assert (result.engine, result.draft_engine, result.tokens) == ("cpu", "cpu", plain)
        assert abs(result.accepted - there.accepted) < 4
