"""Products of integers: what is stored, what is computed from it, and who computes it."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import onnx
import pytest
import torch
from commandline import fails
from onnx import numpy_helper
from parity import EMBEDDING, PROMPT, SAME, blocks, distance, load, made, reference
from transformers import AutoModelForCausalLM

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import W8A8
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.deployment import selection
from edgespec.runtime.deployment.resolve import engines_for
from edgespec.runtime.execution.feeds import Rows

DEVICE = "onnxruntime:cpu"
# Token 0 has an embedding of zeros, so that products see a row of them.
SHAPES = {
    "biases": ("qwen2", {"hidden_size": 48, "head_dim": 20, "intermediate_size": 72}),
    "tied": ("llama", {"tie_word_embeddings": True, "hidden_size": 128, "head_dim": 64}),
    "norms": ("qwen3", {"intermediate_size": 192}),
}


class Exported:
    """A bundle, the model that it is of, and one that has the stored values."""

    def __init__(self, folder, architecture, shapes):
        self.original = made(folder / "checkpoint", architecture, **shapes)
        with torch.no_grad():
            self.original.get_parameter(EMBEDDING)[0] = 0
        self.original.save_pretrained(folder / "checkpoint")
        export_bundle(folder / "checkpoint", folder / "bundle", options=ExportOptions(W8A8))
        self.bundle = bundles.load(folder / "bundle")
        graph = onnx.load(str(folder / "bundle" / "target.onnx")).graph
        self.nodes = list(graph.node)
        self.arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.rounded = AutoModelForCausalLM.from_pretrained(folder / "checkpoint").float().eval()
        for name, values in self.matrices():
            self.layer(self.rounded, name).weight = torch.nn.Parameter(torch.from_numpy(values))
        self.rounded.get_parameter(EMBEDDING).data = torch.from_numpy(self.embedding())

    @staticmethod
    def layer(model, name):
        """That a matrix is of: a tied one is the output projection's."""
        module = "lm_head" if name == EMBEDDING else name.removesuffix(".weight")
        return model.get_submodule(module)

    def matrices(self):
        """Each that integer products read, by its name: [N, K] float32."""
        for label in [name for name in self.arrays if name.endswith(".channels")]:
            names = label.removesuffix(".channels").split("+")
            scales = self.arrays[label.replace(".channels", ".scales")].astype(np.float32)
            whole = self.arrays[label].astype(np.float32).T * scales[:, None]
            sizes = [len(self.original.get_parameter(name)) for name in names]
            yield from zip(names, np.split(whole, np.cumsum(sizes)[:-1]), strict=True)

    def embedding(self):
        """[V, D] float32, as ONNX Runtime gives its rows."""
        packed = self.arrays.get(f"{EMBEDDING}.packed/rows")
        if packed is None:
            return self.arrays[EMBEDDING].astype(np.float32)
        scales = self.arrays[f"{EMBEDDING}.scales/rows"]
        values = blocks(packed.reshape(*scales.shape, -1), scales, 8)
        return values.astype(np.float16).astype(np.float32)

    @contextmanager
    def integer_products(self):
        """The rounded model sees activations in 127 steps to either side, by row."""

        def round_rows(_layer, inputs):
            step = inputs[0].abs().amax(-1, keepdim=True).clamp(min=1e-20) / 127
            return (inputs[0] / step).round() * step

        layers = [self.layer(self.rounded, name) for name, _ in self.matrices()]
        hooks = [layer.register_forward_pre_hook(round_rows) for layer in layers]
        yield
        for hook in hooks:
            hook.remove()


@pytest.fixture(scope="module", params=SHAPES)
def exported(request, tmp_path_factory):
    return Exported(tmp_path_factory.mktemp("w8a8"), *SHAPES[request.param])


def test_all_layers_are_products_of_integers(exported):
    precision = exported.bundle.target.precision
    assert (precision.weights, precision.lm_head) == (W8A8, W8A8)
    model = exported.original
    linear = {layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)}
    assert {exported.layer(model, name) for name, _ in exported.matrices()} == linear
    kinds = [node.op_type for node in exported.nodes]
    assert kinds.count("MatMulInteger") == 5 * exported.bundle.target.layers + 1


def test_pairs_of_products_stay_inside_16_bits(exported):
    """Processors without VNNI add two products of a byte and a weight there, and saturate."""
    for name, array in exported.arrays.items():
        if name.endswith(".channels"):
            assert array.dtype == np.int8
            assert 2 * 255 * np.abs(array.astype(int)).max() < 1 << 15
            assert np.abs(array).max() == 63  # all of what is left is used


def test_the_recorded_error_is_that_of_the_stored_bytes(exported):
    recorded = exported.bundle.target.quantization_error
    for name, values in exported.matrices():
        original = exported.original.get_parameter(name).detach().numpy()
        assert recorded[name] == pytest.approx(distance(values, original), rel=1e-3)
        assert recorded[name] < 0.02


def test_logits_are_those_of_the_stored_values_and_rounded_rows(exported):
    runner = load(exported.bundle, DEVICE)
    text = [0, *PROMPT[:40]]
    found = runner.prefill(text)["logits"][0]
    with exported.integer_products():
        explained = reference(exported.rounded, text)
    assert distance(found, explained) < SAME


def test_no_row_depends_on_the_others(exported):
    """With a scale for all rows of a call another neighbour would round this one otherwise."""
    logits = []
    for neighbour in (5, 300):
        runner = load(exported.bundle, DEVICE)
        runner.prefill(PROMPT[:20])
        apart = Rows([7, neighbour], [0, 0], np.eye(2, dtype=np.bool_))
        logits.append(runner.verify(apart)["logits"][:2].copy())
    np.testing.assert_array_equal(logits[0][0], logits[1][0])
    assert not np.array_equal(logits[0][1], logits[1][1])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    made(folder / "target", "llama", seed=1, eos_token_id=None)
    made(folder / "draft", "llama", seed=2, eos_token_id=None, num_hidden_layers=1)
    options = ExportOptions(W8A8, draft_precision="int4", cut_layers=(1,))
    export_bundle(folder / "target", folder / "bundle", folder / "draft", options)
    return folder / "bundle"


@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "seed": 3}])
def test_every_draft_gives_the_text_of_plain_decoding(pair, how):
    texts = {
        draft: LLM(pair, device=DEVICE, draft_device=DEVICE, draft=draft, threads=1)
        .generate([1, 2, 3], max_new_tokens=48, **how)
        .tokens
        for draft in ("none", "model", "lookup", "auto")
    }
    assert len(texts["none"]) == 48
    assert all(tokens == texts["none"] for tokens in texts.values())


def test_cpu_is_the_engine_that_multiplies_integers_and_no_other_is_tried(pair, monkeypatch):
    roles = bundles.load(pair).manifest.roles
    names = {
        role: [engines[0].name for engines in engines_for(roles[role], ("cpu",))] for role in roles
    }
    assert names == {"target": [DEVICE], "draft": [DEVICE, "openvino:cpu"]}
    monkeypatch.setattr(selection, "measure_apart", None)  # a choice of one needs no measurement
    assert LLM(pair, draft="none", threads=1).generate([1], max_new_tokens=2).engine == DEVICE


def test_another_engine_says_what_to_use(pair, cli):
    with pytest.raises(DeviceError, match="w8a8 weights, which only onnxruntime:cpu can run"):
        LLM(pair, device="openvino:cpu", draft="none")
    for words in (["run", pair, "x"], ["plan", pair]):
        result = cli(*words, "--device", "openvino:cpu", "--draft", "none")
        fails(result, "openvino:cpu cannot run the target", "export it again at int8 or int4")


def test_the_output_projection_alone_can_be_products_of_integers(tmp_path):
    made(tmp_path / "checkpoint", "llama")
    options = ExportOptions("int4", lm_head_precision=W8A8)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options=options)
    assert LLM(tmp_path / "bundle", device=DEVICE, draft="none").generate([1], max_new_tokens=2)
    with pytest.raises(DeviceError, match="openvino:cpu cannot run"):
        LLM(tmp_path / "bundle", device="openvino:cpu", draft="none")


@pytest.mark.parametrize(("precision", "heads"), [(W8A8, 4), ("int4", 3)])
def test_a_tied_matrix_that_is_stored_twice_counts_once(tmp_path, precision, heads):
    shapes = {"tie_word_embeddings": True, "hidden_size": 16 * heads, "num_attention_heads": heads}
    made(tmp_path / "checkpoint", "llama", **shapes)
    told = []
    export_bundle(
        tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions(precision),
        progress=lambda role, done, total: told.append((done, total)),
    )  # fmt: skip
    done, total = told[-1]
    assert done == total == bundles.load(tmp_path / "bundle").target.parameters


def test_inspect_says_what_is_in_blocks(pair, cli):
    shown = cli("inspect", pair).out
    assert "w8a8 " in shown
    assert "int4, blocks of 32" in shown
    assert "w8a8, blocks" not in shown
