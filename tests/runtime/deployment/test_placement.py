"""Layers on devices: what users write, where stages end, and the texts that come out."""

from __future__ import annotations

import json

import pytest
from commandline import PROMPT, fails
from cuts import EMBEDDED, HEAD, LAYERS, cut
from deployments import Placement, load_models, requested
from hypothesis import given
from hypothesis import strategies as st
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, greedy_by_transformers

from edgespec import LLM, bundle
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.costs import profiles
from edgespec.runtime.deployment import selection
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.options import DRAFTS, LoadOptions
from edgespec.runtime.deployment.placement import (
    borders,
    describe,
    describe_stages,
    on_gpu,
    parse,
    stage_devices,
)
from edgespec.runtime.deployment.resolve import engines_for
from edgespec.runtime.execution import exactness

ORT, OV = ENGINES


# What users write


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0-7=cpu", "c" * 8),
        ("-=cpu", "c" * 8),
        ("0-3=cpu,4-=gpu", "ccccgggg"),
        (" 4-7 = gpu , -3 = cpu ", "ccccgggg"),
        ("7=gpu,0-6=cpu", "cccccccg"),
        ("0=gpu,1-2=cpu,3-3=gpu,4-7=cpu", "gccgcccc"),
    ],
)
def test_layers_have_devices(text, devices):
    assert parse(text, LAYERS) == tuple({"c": "cpu", "g": "gpu"}[d] for d in devices)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not LAYERS=DEVICE"),
        ("cpu", "'cpu' is not LAYERS=DEVICE"),
        (f"0-{'9' * 5000}=cpu", "is not LAYERS=DEVICE"),
        ("0-7", "'0-7' is not"),
        ("0-7=", "'0-7=' is not"),
        ("=cpu", "'=cpu' is not"),
        ("0-7=cpu,", "'' is not"),
        ("0-7=cpu=gpu", "'0-7=cpu=gpu' is not"),
        ("0-a=cpu", "'0-a=cpu' is not"),
        ("0--7=cpu", "'0--7=cpu' is not"),
        ("0-8=cpu", "there is no layer 8, the model has layers 0 to 7"),
        ("0-7=cpu,8-=gpu", "there is no layer 8"),
        ("0-2=cpu,4-3=gpu", "'4-3=gpu' ends before it starts"),
        ("0-4=cpu,4-=gpu", "layer 4 is placed twice"),
        ("0-7=cpu,0-7=cpu", "layer 0 is placed twice"),
        ("0-2=cpu,4-=gpu", "layer 3 is not placed: cover 0 to 7"),
    ],
)
def test_places_that_are_refused(text, message):
    with pytest.raises(InputError) as caught:
        parse(text, LAYERS)
    assert str(caught.value).startswith(f"place {text!r}: ")
    assert message in str(caught.value)


@given(st.lists(st.sampled_from(["cpu", "gpu", ORT]), min_size=1, max_size=12))
def test_what_is_described_is_parsed_to_the_same(devices):
    assert parse(describe(devices), len(devices)) == tuple(devices)


@pytest.mark.parametrize(
    ("count", "place"),
    [(0, "0-=cpu"), (1, "0-6=cpu,7-=gpu"), (5, "0-2=cpu,3-=gpu"), (8, "0-=gpu"), (99, "0-=gpu")],
)
def test_the_last_layers_go_to_the_gpu(count, place):
    assert on_gpu(count, LAYERS, "cpu") == parse(place, LAYERS)


# Where stages end


@pytest.mark.parametrize(
    ("starts", "possible"),
    [((), ()), ((8,), (4,)), ((8, 12), (4, 6)), ((3, 4, 7), (2,)), ((8, HEAD), (4,))],
)
def test_devices_can_meet_where_a_layer_begins_a_stage(starts, possible):
    assert borders(cut(*starts).target) == possible


@pytest.mark.parametrize(
    ("starts", "count", "stages"),
    [
        ((), 0, "c"), ((), 8, "g"), ((8, 12), 4, "cgg"), ((8, 12), 2, "ccg"),
        ((3, 8, 11, HEAD), 4, "ccggg"),  # in the midst of layers, and the head alone
    ],
)  # fmt: skip
def test_every_stage_goes_with_its_layers_and_the_head_with_the_last(starts, count, stages):
    role, layers = cut(*starts).target, on_gpu(count, LAYERS, "cpu")
    found = stage_devices(role, layers)
    assert "".join(device[0] for device in found) == stages
    assert describe_stages(role, found) == describe(layers)


@pytest.mark.parametrize(
    ("starts", "place", "parts"),
    [
        ((), "0-3=cpu,4-=gpu", ("before layer 4:", "cut nowhere", "--cut-layers 4`")),
        ((4,), "0=cpu,1-=gpu", ("before layer 1:", "only before layers 2", "--cut-layers 1`")),
        ((8, 12), "0-4=cpu,5-=gpu", ("layer 5:", "only before layers 4, 6", "--cut-layers 5`")),
        ((8,), "0-1=cpu,2-3=gpu,4-6=cpu,7=gpu", ("layer 2, 7:", "--cut-layers 2,4,7`")),
        ((9,), "0-3=cpu,4-=gpu", ("layer 4:", "cut nowhere", "--cut-layers 4`")),
    ],
)
def test_a_border_that_is_missing_is_named_with_the_remedy(starts, place, parts):
    with pytest.raises(InputError) as caught:
        stage_devices(cut(*starts).target, parse(place, LAYERS))
    for part in parts:
        assert part in str(caught.value)


# Texts


PLACES = {
    "one engine": f"0-={ORT}",
    "the other": f"0-={OV}",
    "mixed": f"0={ORT},1={OV}",
    "swapped": f"0={OV},1={ORT}",
}
SOURCES = [name for name in DRAFTS if name not in ("layer-skip", "head")]


@pytest.fixture(scope="module")
def greedy(pairs):
    prompt = pairs.llm("llama", ORT, "none").tokenizer.encode(LONG_PROMPT)
    return greedy_by_transformers(pairs.pair("cut").target, prompt)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_every_draft_gives_the_same_text_wherever_stages_run(pairs, greedy, name):
    """Greedy that is transformers' own, and sampled that of the same stages without a draft."""
    options = {"device": "cpu", "place": PLACES[name]}
    llms = {draft: pairs.llm("cut", ORT, draft, **options) for draft in SOURCES}
    sampling = {"temperature": 0.7, "seed": 5, "max_new_tokens": 64}
    sampled = llms["none"].generate(LONG_PROMPT, **sampling).tokens
    for draft, llm in llms.items():
        assert llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS).tokens == greedy, draft
        assert llm.generate(LONG_PROMPT, **sampling).tokens == sampled, draft
    if name in ("one engine", "the other"):  # cuts alone change nothing
        whole = pairs.llm("llama", llms["none"].target.device, "none")
        assert whole.generate(LONG_PROMPT, **sampling).tokens == sampled


def test_the_result_names_the_engines_and_cpu_is_one_of_them(pairs):
    path = pairs.pair("cut").path
    result = LLM(path, place=f"0={OV},1={ORT}", draft="none").generate(PROMPT, max_new_tokens=2)
    assert result.engine == f"{OV}+{ORT}"
    placed = LLM(path, place=f"0=cpu,1={OV}", draft="none", threads=1)
    assert placed.target.device in (OV, f"{ORT}+{OV}")


# The choice of an engine


def test_a_device_has_one_engine_wherever_it_is_named():
    role = cut(4, 8, 12).target
    both = engines_for(role, ("cpu", OV, "cpu", "cpu"))
    found = [[each.name for each in engines] for engines in both]
    assert found == [[ORT, OV, ORT, ORT], [OV, OV, OV, OV]]
    everywhere = engines_for(role, ("cpu",) * 4)
    assert [{each.name for each in engines} for engines in everywhere] == [{ORT}, {OV}]


def test_each_placement_is_measured_as_it_is_and_once(pairs, own_cache, monkeypatch):
    opened = bundle.load(pairs.pair("cut").path)
    curves = set()
    for device in (ORT, (ORT, OV), (OV, ORT)):
        placement = Placement(device, 1, ((1,),))
        loaded = load_models(opened, {TARGET: placement}, costs=True)[TARGET]
        curves.add(loaded.curve.seconds(1, 256))
        [engines] = requested(opened, TARGET, placement).choices
        assert profiles.recall(opened, TARGET, engines, 1) == loaded.profile
        rows = exactness.recall(opened, TARGET, engines, 1)
        assert rows is not None
        assert rows.exact == loaded.model.exact
    assert len(curves) == 3
    assert len(list((own_cache / "curves").iterdir())) == 2 * 3  # what calls cost, what rows are
    monkeypatch.setattr(selection, "measure_apart", None)
    monkeypatch.setattr(exactness, "measure", None)
    for device in (ORT, (ORT, OV), (OV, ORT)):
        load_models(opened, {TARGET: Placement(device, 1, ((1,),))}, costs=True)


# Options and the command line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"place": "0-=cpu", "device": ORT}, f"device is '{ORT}', but place"),
        ({"place": "0-=cpu", "gpu_layers": 3}, "gpu_layers is 3, but place"),
        ({"place": ["0-=cpu"]}, r"place is \['0-=cpu'\]: give a text such as 0-7=cpu,8-=gpu"),
        ({"draft_memory": 5}, "draft_memory is 5: give a file's name"),
        ({"gpu_layers": -1}, "gpu_layers is -1"),
        ({"memory": "gpu=3GiB,gpu=2GiB"}, "name each device once"),
        ({"memory": "=3GiB"}, "name each device once"),
        ({"memory": "gpu=3"}, "size '3' is not valid"),
        ({"memory": "gpu=3GiB,4GiB"}, "size '' is not valid"),
        ({"memory": {"gpu": 0}}, "memory of gpu is 0"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        LoadOptions(**options)


@pytest.mark.parametrize("command", [["plan"], ["run", PROMPT]])
def test_places_that_cannot_be(cli, command):
    bad = cli(*command, "--place", "0-3=cpu,4-7=cpu:9")
    fails(bad, "device 'cpu:9' is not known: use cpu, gpu, onnxruntime:cpu")
    border = cli(*command, "--place", f"0-3={ORT},4-={OV}")
    fails(border, "cannot change before layer 4", "`--cut-layers 4`")
    many = "9" * 5000
    fails(cli(*command, "--place", f"0-=cuda:{many}"), "is not known: use cpu")
    fails(cli(*command, "--place", f"0-={ORT}#8x{many}"), "give rows and capacities")
    fails(cli(*command, "--place", "0-3=cpu"), "layer 4 is not placed")
    fails(cli(*command, "--place", "0-8=cpu"), "there is no layer 8")
    fails(cli(*command, "--place", "0-=cpu", "--device", OV), f"device is '{OV}'")


def test_a_run_in_two_places(cli, pairs):
    path, words = pairs.pair("cut").path, ["--json", "--draft", "none", "--threads", 1, "-n", 8]
    found = cli("run", path, PROMPT, "--place", f"0={OV},1={ORT}", *words)
    assert found.code == 0
    result = json.loads(found.out)
    whole = json.loads(cli("run", path, PROMPT, "--device", ORT, *words).out)
    assert (result["engine"], result["tokens"]) == (f"{OV}+{ORT}", whole["tokens"])


def test_an_unknown_device_is_said_before_a_missing_border():
    with pytest.raises(DeviceError, match="device 'gpu:9' is not known"):
        deploy(EMBEDDED, LoadOptions(place="0-3=cpu,4-=gpu:9"))
