"""Variants for NPUs in integer weights and 16-bit activations: their files, values and text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import onnx
import psutil
import pytest
from commandline import fails
from exports import content
from npus import NpuOnCpu
from onnx import TensorProto
from parity import distance, load, tree_logits
from rich.filesize import decimal

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST, NPU, TARGET, Precision
from edgespec.bundle.variants import replace_variant
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import CPU_ENGINES
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning import quantizing
from edgespec.tuning.quantizing import quantize_variant
from edgespec.tuning.texts import PASSAGES, pieces_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(saved_checkpoint):
    return saved_checkpoint("llama")


@pytest.fixture(scope="module", params=["w8a16", "w4a16"])
def quantized(checkpoint, tmp_path_factory, request):
    path = tmp_path_factory.mktemp("bundles") / request.param
    options = ExportOptions(npu_precision="fp32", cut_layers=(1,))
    export_bundle(checkpoint, path, options=options)
    before = {file.name for file in path.iterdir()}
    grown = quantize_variant(path, request.param)
    opened = bundles.load(path)
    return SimpleNamespace(bundle=opened, precision=request.param, before=before, grown=grown)


def test_a_quantized_variant_takes_the_place_of_the_one_it_is_made_from(quantized):
    [variant] = quantized.bundle.manifest.variants
    assert variant.precision == Precision(quantized.precision, quantized.precision, "fp32", 0)
    files = {file.name for file in quantized.bundle.path.iterdir()}
    gone = {"target-npu-0.onnx", "target-npu-1.onnx", "target-npu.data"}
    assert quantized.before - files == gone
    graphs = {f"target-npu-{number}-{quantized.precision}.onnx" for number in range(2)}
    assert files - quantized.before == graphs | {f"{graph}.data" for graph in graphs}
    assert files - {MANIFEST, "README.md"} == quantized.bundle.manifest.files.keys()
    assert quantized.grown < 0
    quantized.bundle.verify()


def test_it_is_calibrated_on_the_text_without_a_gap(checkpoint, tmp_path, monkeypatch):
    read, hidden = [], set()

    class Recorded(Runner):
        def __init__(self, model):
            super().__init__(model)
            read.append(self.tokens)  # a runner would keep the weights mapped
            hidden.add(model.role.bias_off)

    monkeypatch.setattr(quantizing, "Runner", Recorded)
    export_bundle(checkpoint, tmp_path / "fp32", options=ExportOptions(npu_precision="fp32"))
    quantize_variant(tmp_path / "fp32", "w8a16")
    tokenizer = Tokenizer.from_folder(tmp_path / "fp32")
    pieces = pieces_of("\n\n".join(PASSAGES), tokenizer, len(read), "our passages")
    assert read == [list(piece.tokens) for piece in pieces]
    # Scores have the range that they will have.
    assert hidden == {bundles.load(tmp_path / "fp32").variant(TARGET, NPU).bias_off}


@pytest.mark.skipif(not hasattr(psutil.Process, "memory_maps"), reason="macOS does not tell")
def test_plain_weights_are_not_mapped_any_more_when_they_go(checkpoint, tmp_path, monkeypatch):
    def watched(*arguments):
        mapped.update(Path(each.path) for each in psutil.Process().memory_maps())
        return replace_variant(*arguments)

    mapped: set[Path] = set()
    monkeypatch.setattr(quantizing, "replace_variant", watched)
    export_bundle(checkpoint, tmp_path / "fp32", options=ExportOptions(npu_precision="fp32"))
    quantize_variant(tmp_path / "fp32", "w8a16")
    assert mapped
    assert tmp_path.resolve() / "fp32" / "target-npu.data" not in mapped


def test_what_quantizes_has_nothing_to_say(checkpoint, tmp_path, capfd):
    export_bundle(checkpoint, tmp_path / "fp32", options=ExportOptions(npu_precision="fp32"))
    quantize_variant(tmp_path / "fp32", "w8a16")
    assert capfd.readouterr() == ("", "")


def test_its_weights_have_few_bits_and_a_known_error(quantized):
    [variant] = quantized.bundle.manifest.variants
    errors = variant.quantization_error
    assert "lm_head.weight" in errors
    assert len(errors) == 2 * 5 + 1  # queries, keys and values are one matrix
    low, high = {"w8a16": (1e-3, 2e-2), "w4a16": (5e-2, 0.2)}[quantized.precision]
    assert all(low < error < high for error in errors.values())
    graph = str(quantized.bundle.path / variant.stages[1].graph)
    types = Counter(tensor.data_type for tensor in onnx.load(graph).graph.initializer
                    if len(tensor.dims) == 2)  # fmt: skip
    kind = {"w8a16": TensorProto.INT8, "w4a16": TensorProto.INT4}[quantized.precision]
    assert types == {kind: 6}


def test_it_computes_nearly_the_same_and_hides_what_is_hidden(checkpoint, quantized, tmp_path):
    export_bundle(checkpoint, tmp_path / "whole", options=ExportOptions("fp32"))
    wanted = tree_logits(load(bundles.load(tmp_path / "whole"), CPU_ENGINES[0]))
    model = Model.load(quantized.bundle, TARGET, NpuOnCpu(), 1)
    assert model.role.bias_off == -100
    most = {"w8a16": 0.15, "w4a16": 0.6}[quantized.precision]
    assert distance(tree_logits(Runner(model)), wanted) < most


def test_the_calibration_text_is_the_users(cli, checkpoint, tmp_path):
    text, output = tmp_path / "text.txt", tmp_path / "bundle"
    words = ["export", checkpoint, "-o", output, "--calibration", text]
    fails(cli(*words, "--npu-precision", "w8a16"), f"{text}: No such file")
    assert not output.exists()
    text.write_text("too short")
    fails(cli(*words), f"{text}: ", "tokens: give at least 64")
    fails(cli(*words, "--npu-precision", "w8a16"), f"{text}: ", "tokens: give at least 64")
    assert list(tmp_path.iterdir()) == [text]
    text.write_text("def twice(x):\n    return x * 2\n" * 40)
    found = cli(*words, "--npu-precision", "w8a16")
    assert found.code == 0
    made = bundles.load(output).manifest
    assert made.variants[0].precision.weights == "w8a16"
    stored = sum(entry.size for entry in made.files.values())
    assert found.out.startswith(f"{output}: {decimal(stored)}, ")
    assert "w8a16" in cli("inspect", output).out
    text.write_text("too short")
    before = content(tmp_path)
    fails(cli(*words, "--npu-precision", "w4a16", "--overwrite"), "tokens: give at least 64")
    assert content(tmp_path) == before
