"""What memory each device takes where a target's stages run on several, and what is proposed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from cuts import EMBEDDED, HEAD, Scale, cut, with_gpu
from hypothesis import given
from hypothesis import strategies as st
from pairs import ENGINES

from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.runtime.deployment.demands import MIB
from edgespec.runtime.deployment.deployment import deploy, place_to_use
from edgespec.runtime.deployment.memory import cache_rows
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.engines import CPU_ENGINES, CallSizes, engine
from edgespec.runtime.execution.sizes import stage_sizes

ORT, OV = ENGINES
CUTS = st.sets(st.integers(1, HEAD)).map(sorted)
CALLS = CallSizes(128, 2048, 8)


@given(CUTS)
def test_stages_have_together_what_the_whole_has(starts):
    [whole] = stage_sizes(EMBEDDED, TARGET)
    stages = stage_sizes(cut(*starts), TARGET)
    for part in ("matmul_bytes", "embedding_bytes", "layers", "vocab", "result_bytes"):
        assert sum(getattr(stage, part) for stage in stages) == getattr(whole, part), part
    assert all(stage.matmul_bytes > 0 for stage in stages)
    assert [stage.passed_bytes for stage in stages] == [4 * 256] * len(starts) + [0]
    assert any(stage.tied for stage in stages) == (not starts)
    for stage, start in zip(stages, (0, *starts), strict=True):
        assert (stage.heads > 0) == (stage.layers > 0)
        assert stage.file_bytes == whole.file_bytes
        assert stage.intermediate == (0 if start == HEAD or (start % 2 == 0 and start + 1 in starts)
                                      else 768)  # fmt: skip


def test_a_sublayer_has_its_share_of_the_weights():
    stages, role = stage_sizes(cut(*range(1, HEAD + 1)), TARGET), EMBEDDED.target
    attention, mlp = 2 * 256 * 64 * (role.heads + role.kv_heads), 3 * 256 * 768
    for one, other in zip(stages[:HEAD:2], stages[1:HEAD:2], strict=True):
        assert other.matmul_bytes / one.matmul_bytes == pytest.approx(mlp / attention, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU_ENGINES)
@given(starts=CUTS)
def test_stages_on_one_engine_take_what_one_takes_and_what_each_needs_anew(name, starts):
    [whole] = stage_sizes(EMBEDDED, TARGET)
    one = engine(name).footprint(whole, CALLS)
    many = [engine(name).footprint(stage, CALLS) for stage in stage_sizes(cut(*starts), TARGET)]
    assert sum(each.weights for each in many) == pytest.approx(one.weights, abs=8 * len(many))
    assert sum(each.repacked for each in many) == pytest.approx(one.repacked, abs=8 * len(many))
    assert sum(each.logits for each in many) == one.logits + 128 * 4 * 256 * len(starts)
    assert sum(each.workspace for each in many) >= one.workspace


def test_each_device_holds_its_stages(monkeypatch):
    with_gpu(monkeypatch, Scale("scale:gpu", "gpu"))
    bundle_ = cut(8, 12)
    place = {"place": f"0-3={ORT},4-=gpu", "draft": "none", "context": 2048, "memory": "4GiB"}
    host, gpu = deploy(bundle_, LoadOptions(**place)).devices
    first, *last = stage_sizes(bundle_, TARGET)
    kv = 4 * 2 * 64 * 2 * cache_rows(TARGET, 2048)
    assert (host.kv, gpu.kv) == (4 * kv, 4 * kv)
    assert gpu.weights == sum(stage.matmul_bytes for stage in last)
    assert gpu.logits == 8 * 4096  # of the last stage alone
    assert gpu.workspace == 2 * 64 + 3  # what is shared counts once
    assert (gpu.baseline, gpu.mapped) == (0, 10)
    assert host.logits == 64 * first.passed_bytes  # half a chunk: there are several stages
    taken = engine(ORT).footprint(first, CallSizes(64, 2048, 8))
    assert host.repacked == taken.repacked
    # Biases, angles and score rows, and hidden rows for the stages behind the first.
    inputs = 4 * 64 * 2112 + 4 * 2 * 2112 * 64 + 2 * 8 * 4096 + 2 * 4 * 64 * 256
    assert host.workspace == taken.workspace + taken.shared + inputs
    assert (host.limit, gpu.limit) == (4 << 30, 1 << 40)


def test_what_is_proposed_is_as_many_of_the_last_layers_as_fit(monkeypatch):
    with_gpu(monkeypatch, Scale("scale:gpu", "gpu"))
    bundle_ = cut(3, 4, 8, 12, HEAD)
    wanted = {"draft": "none", "context": 512, "draft_device": ORT}

    def gpu_need(place):
        return deploy(bundle_, LoadOptions(place=place, **wanted)).devices[1].total

    for place, larger in pairwise(["0-5=cpu,6-=gpu", "0-3=cpu,4-=gpu", "0-1=cpu,2-=gpu", "0-=gpu"]):
        for limit in (
            gpu_need(place),
            gpu_need(larger) - MIB // 16,
        ):  # more than smaller calls save
            memory = {"cpu": 1 << 40, "gpu": limit}
            assert place_to_use(bundle_, LoadOptions(memory=memory, **wanted)) == place
    everything = LoadOptions(memory={"gpu": gpu_need("0-=gpu")}, **wanted)
    assert place_to_use(bundle_, everything) == "0-=gpu"
    nothing = LoadOptions(memory={"gpu": 1000}, **wanted)
    assert place_to_use(bundle_, nothing) is None
    named = LoadOptions(device=ORT, **wanted)
    assert place_to_use(bundle_, named) is None


def test_the_draft_and_the_context_give_way_before_the_placement(monkeypatch):
    with_gpu(monkeypatch, Scale("scale:gpu", "gpu"))
    bundle_ = cut(8)
    least = deploy(bundle_, LoadOptions(place="0-=gpu", draft="none", context=256)).devices[1].total
    options = LoadOptions(memory={"gpu": least}, draft="none")
    assert place_to_use(bundle_, options) == "0-=gpu"
    found = deploy(bundle_, replace(options, place="0-=gpu"))
    assert (found.fits, found.context) == (True, 256)


def test_no_gpu_or_one_without_memory_of_its_own_is_not_proposed(monkeypatch):
    assert place_to_use(cut(8), LoadOptions()) is None
    with_gpu(monkeypatch, Scale("scale:gpu", "cpu"))
    assert place_to_use(cut(8), LoadOptions()) is None


def test_a_limit_for_each_device(monkeypatch):
    assert LoadOptions(memory="cpu=8GiB, gpu=3G").memory == {"cpu": 8 << 30, "gpu": 3 << 30}
    with pytest.raises(InputError, match="memory of 'gpu' is limited, but there is only cpu"):
        deploy(EMBEDDED, LoadOptions(memory="gpu=1GiB"))
    found = deploy(EMBEDDED, LoadOptions(memory="cpu=1GiB"))
    assert [demand.limit for demand in found.devices] == [1 << 30]
    with_gpu(monkeypatch, Scale("scale:gpu", "gpu"))  # which nothing has to use
    found = deploy(EMBEDDED, LoadOptions(memory="cpu=1GiB,gpu=1GiB"))
    assert [demand.device for demand in found.devices] == ["cpu"]


def test_a_plan_of_places_and_one_that_is_proposed(cli, pairs, monkeypatch):
    path = pairs.pair("cut").path
    words = ["plan", path, "--draft", "none", "--context", 256]
    given_ = json.loads(cli(*words, "--json", "--place", f"0-0={OV},1-={ORT}").out)
    assert given_["engines"] == {TARGET: f"{OV}+{ORT}"}
    assert given_["place"] == f"0={OV},1-={ORT}"
    assert json.loads(cli(*words, "--json").out)["place"] is None
    with_gpu(monkeypatch, Scale("scale:gpu", "gpu"))
    found = cli(*words, "--json", "--memory", "cpu=1GiB,gpu=1GiB")
    assert json.loads(found.out)["place"] == "0-=gpu"
    assert 'run it with --place "0-=gpu"' in cli(*words).out
    split = json.loads(cli(*words, "--json", "--gpu-layers", 1).out)
    assert [device["device"] for device in split["devices"]] == ["cpu", "gpu"]
    assert split["place"] == "0=cpu,1-=gpu"
