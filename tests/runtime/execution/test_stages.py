"""Tests of a target in stages: the same text wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from parity import PROMPT, devices, distance, made, tree_rows

from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner

LAYERS = 4
# Sublayers left out: they cut before and after an attention, an MLP, a layer and the head.
SETS = {
    "whole": (),
    "attention": ("1a",),
    "mlp": ("2m",),
    "layer": ("1",),
    "exit": ("2-3",),
    "all": ("1m,2a", "1m,2a,3m"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    made(folder, "qwen3", num_hidden_layers=LAYERS, tie_word_embeddings=True)
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
    """Logits of a prompt of several chunks, then of a tree behind it."""
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


def test_long_calls_leave_no_buffers_behind_where_there_are_other_stages(bundle_of, monkeypatch):
    """Calls of decoding keep their buffers."""
    for name, expected in (("whole", 0), ("all", 1)):
        bundle = bundle_of(name)
        model = Model.load(bundle, bundles.TARGET, engine("openvino:cpu"), 1)
        released = []
        for stage, executable in enumerate(model.executables):
            compiled = Watched(executable._compiled, partial(released.append, stage))
            monkeypatch.setattr(executable, "_compiled", compiled)
        runner = Runner(model)
        runner.prefill(PROMPT[:60])  # in one call
        assert released == list(range(len(model.executables))) * expected
        runner.verify(tree_rows())
        assert len(released) == len(model.executables) * expected


@dataclass(frozen=True)
class Watched:
    """A compiled model that records when its buffers are given back."""

    compiled: Any
    told: Callable[[], None]

    def release_memory(self):
        self.compiled.release_memory()
        self.told()


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
    cached = [n for stage in stages for group in stage.cache_groups for n in group.layers]
    assert cached == list(range(LAYERS))


def test_stages_share_one_file_of_weights(bundle_of):
    """A tied embedding is read by the first and the last stage, and stored once."""
    whole, cut = bundle_of("whole"), bundle_of("all")
    [data] = {stage.data for stage in cut.target.stages}
    assert cut.manifest.files[data] == whole.manifest.files["target.data"]
    names = [cut.target.layout.describe(each.skipped) for each in cut.manifest.skip_sets]
    assert names == list(SETS["all"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip_sets": ("",)}, "'' does not name sublayers"),
        ({"skip_sets": ("0m",)}, "skip set 0m: layer 0 cannot be left out"),
        ({"skip_sets": ("1m,4a",)}, "there is no 4a: the model has layers 0 to 3"),
        ({"skip_sets": ("1a", "2a", "3a", "1m")}, "into 7 stages"),
        ({"cut_layers": (0,)}, "cut_layers contains 0"),
        ({"cut_layers": (2, 4)}, "cut_layers contains 4: the model has layers 0 to 3"),
    ],
)
def test_cuts_that_cannot_be_made(checkpoint, tmp_path, options, message, monkeypatch):
    monkeypatch.setattr("edgespec.export.skipping.sets.MOST_STAGES", 6)
    with pytest.raises(InputError, match=message):
        export_bundle(checkpoint, tmp_path / "bundle", options=ExportOptions("fp32", **options))
    assert list(tmp_path.iterdir()) == []
