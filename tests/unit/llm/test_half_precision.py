"""A role computes in half precision on a device where a trial found that it can."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from checkpoints import make_checkpoint
from gpus import HalvesHostAsGpu
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.llm.load import graphs, halves_trial
from edgespec.llm.load.models import load_model
from edgespec.llm.load.portable import portable_forms
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import webgpu
from edgespec.runtime.plan import Placement
from edgespec.runtime.sequences.model import AFTER, Rows

pytestmark = with_library

ON_GPU = Placement("webgpu:0", native=False)


@pytest.fixture
def there(monkeypatch, own_cache):
    """A GPU; returns the names of the files that are opened on it."""
    monkeypatch.setattr(webgpu, "WebGpu", HalvesHostAsGpu)
    files = []
    open_graph = portable.open_graph

    def listed(device, file, *rest):
        files.append(file.name)
        return open_graph(device, file, *rest)

    monkeypatch.setattr(portable, "open_graph", listed)
    return files


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return made(tmp_path_factory.mktemp("halves"), 12.0)


def made(folder, factor):
    """A bundle whose rows begin larger by a factor, which norms take back."""
    make_checkpoint(folder / "source", "granite", embedding_multiplier=factor)
    export.make(folder / "source", folder / "bundle", options=ExportOptions("int8"))
    return bundles.load(folder / "bundle")


def trial_of(bundle):
    return portable_forms(bundle, TARGET)["webgpu"].trial


def test_it_is_tried_once_and_kept(bundle, there):
    load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there == ["portable.onnx", "halves.onnx", "halves.onnx"]
    trial = trial_of(bundle)
    assert trial.passed
    assert 0 < trial.distance < 0.05
    load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there[3:] == ["halves.onnx"]


def test_what_leaves_its_range_stays_in_single_precision(tmp_path, there, caplog):
    large = made(tmp_path, 1e6)
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            load_model(large, TARGET, ON_GPU, threads=1)
        assert "webgpu:0 computes in single precision" in caplog.text
        assert "no numbers" in caplog.text
        caplog.clear()
    assert there == ["portable.onnx", "halves.onnx", "portable.onnx", "portable.onnx"]
    assert not trial_of(large).passed


def test_what_is_far_apart_stays_in_single_precision(bundle, there, monkeypatch, caplog):
    monkeypatch.setattr(halves_trial, "_MOST", 1e-9)
    load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there[-1] == "portable.onnx"
    assert "deviations apart" in caplog.text


def test_what_a_device_refuses_is_tried_again(bundle, there, own_cache, monkeypatch, caplog):
    with monkeypatch.context() as changed:
        changed.setattr(graphs, "in_halves", lambda graph: graph.with_name("missing.onnx"))
        load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there == ["portable.onnx", "missing.onnx", "portable.onnx"]
    assert "single precision for now: half precision was refused" in caplog.text
    assert not list((own_cache / "portable").glob("*.halves.json"))
    load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there[-1] == "halves.onnx"


@pytest.mark.parametrize(
    "kept", ["another device", "another version", "[" * 9000, "{}", '{"hardware": 3}']
)
def test_other_devices_and_damaged_files_are_tried_anew(bundle, there, own_cache, kept):
    load_model(bundle, TARGET, ON_GPU, threads=1)
    [file] = (own_cache / "portable").glob("*.halves.json")
    first = file.read_text()
    if kept == "another device":
        kept = json.dumps(json.loads(first) | {"hardware": "one"})
    if kept == "another version":
        kept = json.dumps(json.loads(first) | {"version": "0.1"})
    file.write_text(kept)
    load_model(bundle, TARGET, ON_GPU, threads=1)
    assert there[3:] == ["portable.onnx", "halves.onnx", "halves.onnx"]
    assert json.loads(file.read_text()) == json.loads(first)


def test_devices_that_refuse_a_model_are_errors(bundle, there, monkeypatch):
    def refuse(*_):
        raise DeviceError("no room")

    monkeypatch.setattr(portable, "open_graph", refuse)
    with pytest.raises(DeviceError, match="no room"):
        load_model(bundle, TARGET, ON_GPU, threads=1)


def test_texts_are_those_of_plain_decoding(pairs, there):
    with loaded(pairs, "small-caches", "model", draft_device="webgpu:0") as llm:
        pool = inside(llm).models[DRAFT].pool
        assert {each.keys.element_type() for each in pool.arrays.values()} == {10}
        result = cheapen(llm).generate(LONG_PROMPT, max_new_tokens=24)
        assert there[-1] == "halves.onnx"
        assert result.tokens == pairs.greedy("small-caches", LONG_PROMPT)[:24]
        assert result.drafted > 0


def test_inspect_and_devices_tell(bundle, there, cli):
    load_model(bundle, TARGET, ON_GPU, threads=1)
    shown = " ".join(cli("inspect", bundle.path).out.split())
    assert "nodes a layer, in half precision" in shown
    assert "webgpu:0 computes in half precision where a model allows it" in cli("devices").out
    found = {each["name"]: each for each in json.loads(cli("devices", "--json").out)["devices"]}
    assert (found["webgpu:0"]["halves"], found["cpu"]["halves"]) == (True, False)


def test_both_precisions_rank_the_same_tokens(bundle, there, monkeypatch):
    found = []
    for most in (1.0, 0.0):
        monkeypatch.setattr(halves_trial, "_MOST", most)
        model = load_model(bundle, TARGET, ON_GPU, threads=1)
        tokens = np.arange(9).tolist()
        rows = Rows(model.sequence([]), tokens, [AFTER, *range(8)], [*range(9)])
        found.append(model.forward([rows])[0].copy())
    assert 0 < abs(found[0] - found[1]).max() < 0.05 * found[1].std()
