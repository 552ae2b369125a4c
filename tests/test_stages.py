"""A target in stages: the same text wherever it is cut, and drafts that leave stages out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer
from parity import PROMPT, devices, distance, tree_rows

from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.calibration import Calibration
from edgespec.runtime.drafters import ModelDrafter, NoDrafter, SkipCalls, TreeBudget
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.generate import Limits, generate
from edgespec.runtime.model import Model, Path, Runner
from edgespec.runtime.sampling import Sampler, SamplingOptions

LAYERS = 4
# Sublayers left out: they cut before and after an attention, an MLP, a layer and the head.
SETS = {
    "whole": (),
    "attention": ((2,),),
    "mlp": ((5,),),
    "layer": ((2, 3),),
    "exit": ((4, 5, 6, 7),),
    "all": ((3, 4), (3, 4, 7)),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    make_checkpoint(folder, "qwen3", num_hidden_layers=LAYERS, tie_word_embeddings=True)
    write_tokenizer(folder, 331)
    return folder


@pytest.fixture(scope="module")
def bundle_of(checkpoint, tmp_path_factory):
    made = {}

    def make(name, **options):
        if name not in made:
            output = tmp_path_factory.mktemp("bundles") / name
            options = ExportOptions("fp32", skip_sets=SETS[name], **options)
            export_bundle(checkpoint, output, options=options)
            made[name] = bundles.load(output)
        return made[name]

    return make


def logits_of(bundle, engines):
    """Of a prompt of several chunks, then of a tree behind it."""
    runner = Runner(Model.load(bundle, bundles.TARGET, engines, 1))
    first = runner.prefill(PROMPT)["logits"][0].copy()
    return np.vstack([first, runner.verify(tree_rows())["logits"][:7]])


@devices
@pytest.mark.parametrize("name", list(SETS)[1:])
def test_stages_compute_what_the_whole_does(bundle_of, name, device):
    bundle = bundle_of(name)
    assert len(bundle.target.stages) > 1
    whole = logits_of(bundle_of("whole"), engine(device))
    assert distance(logits_of(bundle, engine(device)), whole) < 1e-6


def test_stages_may_run_on_different_engines(bundle_of):
    whole = logits_of(bundle_of("whole"), engine(CPU_ENGINES[0]))
    bundle = bundle_of("all")
    mixed = [engine(CPU_ENGINES[number % 2]) for number in range(len(bundle.target.stages))]
    model = Model.load(bundle, bundles.TARGET, mixed, 1)
    assert model.device == "onnxruntime:cpu+openvino:cpu"
    assert distance(logits_of(bundle, mixed), whole) < 1e-5


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("whole", [0]),
        ("attention", [0, 2, 3]),
        ("mlp", [0, 5, 6]),
        ("layer", [0, 2, 4]),
        ("exit", [0, 4, 8]),
        ("all", [0, 3, 5, 7, 8]),
    ],
)
def test_stages_begin_where_a_set_begins_or_ends(bundle_of, name, starts):
    stages = bundle_of(name).target.stages
    assert [stage.start for stage in stages] == starts
    assert [stage.stop for stage in stages] == [*starts[1:], 2 * LAYERS + 1]
    cached = [layer for stage in stages for layer in stage.cached]
    assert cached == list(range(LAYERS))


def test_stages_share_one_file_of_weights(bundle_of):
    """A tied embedding is read by the first stage and by the last, and stored once."""
    whole, cut = bundle_of("whole"), bundle_of("all")
    [data] = {stage.data for stage in cut.target.stages}
    assert cut.manifest.files[data] == whole.manifest.files["target.data"]
    assert [each.skipped for each in cut.manifest.skip_sets] == list(SETS["all"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip_sets": ((),)}, "a skip set is empty"),
        ({"skip_sets": ((1,),)}, "skip set 0m: layer 0 cannot be left out"),
        ({"skip_sets": ((3, 8),)}, "skip set 1m,4a: the model has layers 0 to 3"),
        ({"skip_sets": ((2,), (4,), (6,), (3,))}, "into 7 stages"),
        ({"cut_layers": (0,)}, "cut_layers holds 0"),
        ({"cut_layers": (2, 4)}, "cut_layers holds 4: the model has layers 0 to 3"),
    ],
)
def test_cuts_that_cannot_be_made(checkpoint, tmp_path, options, message, monkeypatch):
    monkeypatch.setattr("edgespec.export.skips.MOST_STAGES", 6)
    with pytest.raises(InputError, match=message):
        export_bundle(checkpoint, tmp_path / "bundle", options=ExportOptions("fp32", **options))
    assert list(tmp_path.iterdir()) == []


# Drafts on the target's own stages


SHARP = 12.0
OPTIONS = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 3.0, "seed": 1},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.9, "seed": 2},
]
NEW_TOKENS = 60


def texts(bundle, device, draft, budget, fields):
    """The tokens of a text, and what was accepted of what was drafted."""
    model = Model.load(bundle, bundles.TARGET, engine(device), 1)
    runner, options = Runner(model), SamplingOptions(**fields)
    drafter = NoDrafter() if draft is None else draft(runner)
    limits = Limits(NEW_TOKENS, bundle.target.context_length, frozenset())
    sampler = Sampler(options, 331)
    rounds = list(generate(runner, drafter, sampler, PROMPT[:20], limits=limits, budget=budget))
    tokens = [token for step in rounds for token in step.tokens]
    return tokens, sum(step.drafted for step in rounds), sum(step.accepted for step in rounds)


def skipping(skipped):
    def drafter(runner):
        calls = SkipCalls(runner, Path.without(runner.model.role, skipped))
        return ModelDrafter(calls, Calibration(), "skip")

    return drafter


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    """Clear choices, which rounding cannot turn; every sublayer says something of its own."""
    folder = tmp_path_factory.mktemp("sharp")
    model = make_checkpoint(folder, "llama", num_hidden_layers=LAYERS, eos_token_id=None, seed=3)
    with torch.no_grad():
        model.lm_head.weight.mul_(SHARP)
    model.save_pretrained(folder)
    write_tokenizer(folder, 331)
    output = tmp_path_factory.mktemp("bundles") / "sharp"
    export_bundle(folder, output, options=ExportOptions("fp32", skip_sets=SETS["all"]))
    return bundles.load(output)


@devices
@pytest.mark.parametrize("skipped", SETS["all"])
@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_drafting_on_the_own_stages_never_changes_the_text(sharp, device, skipped, fields):
    accepted = 0
    plain, _, _ = texts(sharp, device, None, TreeBudget(0, 0, 1), fields)
    for budget in (TreeBudget(3, 3, 1), TreeBudget(7, 7, 3), TreeBudget(12, 4, 2)):
        tokens, drafted, right = texts(sharp, device, skipping(skipped), budget, fields)
        assert tokens == plain
        assert drafted > NEW_TOKENS
        accepted += right
    assert accepted > 0
