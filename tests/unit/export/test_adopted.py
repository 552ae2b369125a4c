"""Models that other programs exported as ONNX: what their bundles compute, and what is refused."""

from __future__ import annotations

from shutil import copyfile, copytree

import numpy as np
import onnx
import pytest
from adopted import FOLDER, KINDS, WINDOW, Original, adopted_model, make_original
from checkpoints import edit_json
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from pairs import logits_of

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.errors import (
    CheckpointError,
    DeviceError,
    ExportError,
    InputError,
    UnsupportedModelError,
)
from edgespec.export import find_onnx
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.training.target_graph import TargetGraph
from edgespec.tuning.adopting import adopt

SAME = 1e-4
TEXT = np.random.default_rng(5).integers(0, 331, 70).tolist()


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """Returns the bundle of a kind."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "bundle"
            made[kind].mkdir()
            adopt(find_onnx(str(FOLDER / kind)), kind, made[kind])
        return bundles.load(made[kind])

    return get


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "output").mkdir()
    return copytree(FOLDER / "mistral", tmp_path / "mistral")


def read(model, sequence, tokens, wanted=None):
    """The logits of a sequence's next tokens, which it keeps."""
    count = len(tokens)
    rows = Rows(sequence, tokens, [AFTER, *range(count - 1)], wanted or list(range(count)))
    [logits] = model.forward([rows])
    rows.accept(range(count))
    return logits


def assert_same(graph, folder, original=None, most=SAME):
    """Adopt a graph, and compare its logits of a text that is read in two parts."""
    adopt(graph, "name", folder)
    model = adopted_model(bundles.load(folder))
    sequence = model.sequence([])
    read(model, sequence, TEXT[:30])
    found = read(model, sequence, TEXT[30:])
    assert found.dtype == np.float32
    expected = Original(original or graph).logits(TEXT)[30:]
    assert np.abs(found - expected).max() < most * expected.std()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_file(adopted, kind):
    model = adopted_model(adopted(kind))
    original = Original(FOLDER / kind / "model.onnx")
    split = 40  # longer than the window
    expected = original.logits(TEXT)
    sequence = model.sequence([])
    other = model.sequence([])
    assert np.abs(read(model, sequence, TEXT[:split]) - expected[:split]).max() < SAME
    read(model, other, TEXT[:7])
    # A tree with two branches, one of which goes on, beside rows of another sequence.
    tokens = [*TEXT[split : split + 2], 5, 6, 7]
    parents = [AFTER, 0, AFTER, 0, 3]
    trees = (
        Rows(sequence, tokens, parents, [4, 1, 2, 0]),
        Rows(other, TEXT[7:9], [AFTER, 0], [1]),
    )
    found, beside = model.forward(trees)
    assert np.abs(beside[0] - expected[8]).max() < SAME
    paths = [[TEXT[split], 6, 7], TEXT[split : split + 2], [5], [TEXT[split]]]
    for row, path in zip(found, paths, strict=True):
        assert np.abs(row - original.logits(TEXT[:split] + path)[-1]).max() < SAME
    trees[0].accept([0, 1])
    assert np.abs(read(model, sequence, TEXT[42:]) - expected[42:]).max() < SAME
    trees[1].accept([])
    assert np.abs(read(model, other, TEXT[7:8]) - expected[7]).max() < SAME


@pytest.mark.parametrize("kind", ["mistral", "gpt2"])
def test_logits_are_those_of_transformers(adopted, tmp_path, kind):
    expected = logits_of(make_original(tmp_path / "original", kind), TEXT)
    model = adopted_model(adopted(kind))
    sequence = model.sequence([])
    found = [read(model, sequence, part) for part in (TEXT[:WINDOW], TEXT[WINDOW:30], TEXT[30:])]
    assert np.abs(np.concatenate(found) - expected).max() < SAME * expected.std()


def test_the_manifest_says_what_the_graph_is(adopted):
    bundle = adopted("genai")
    role = bundle.target
    assert role.native.adopted
    assert (role.layers, role.kv_heads, role.head_dim, role.context_length) == (2, 2, 16, 256)
    assert (role.precision.weights, role.precision.lm_head) == ("int4", "int4")
    assert role.precision.block_size == 32
    layer = 32 * 128 + 64 * 32 + 3 * 32 * 64
    assert role.parameters == pytest.approx(2 * 331 * 32 + 2 * layer, rel=0.2)
    bundle.verify()
    assert sorted(bundle.manifest.files) == [
        "target.data",
        "target.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_training_of_heads_and_other_devices_are_refused(adopted):
    bundle = adopted("mistral")
    with pytest.raises(InputError, match="training needs a target that edgespec exported"):
        TargetGraph(bundle)
    with pytest.raises(DeviceError, match="runs on the CPU alone, not on openvino:cpu"):
        LLM(bundle.path, device="openvino:cpu")


def test_which_file_is_meant(folder):
    graph = folder / "model.onnx"
    inner = folder / "onnx"
    assert find_onnx(str(folder)) == find_onnx(str(graph)) == graph
    copyfile(graph, folder / "model_q4.onnx")
    assert find_onnx(str(folder)) == graph
    inner.mkdir()
    graph.rename(inner / "model.onnx")
    assert find_onnx(str(folder)) == inner / "model.onnx"
    (inner / "model.onnx").rename(inner / "model_fp16.onnx")
    with pytest.raises(ExportError, match=r"the path of one of model_q4.onnx, onnx/model_fp16"):
        find_onnx(str(folder))
    (folder / "model.safetensors").touch()
    for other in (folder, folder / "config.json", "owner/name"):
        assert find_onnx(str(other)) is None


def test_a_graph_in_a_folder_of_its_own_with_external_data(folder, tmp_path):
    model = onnx.load(folder / "model.onnx")
    (folder / "onnx").mkdir()
    (folder / "model.onnx").unlink()
    moved = folder / "onnx" / "model_q4.onnx"
    onnx.save(model, moved, save_as_external_data=True, location="q4.data", size_threshold=100)
    assert_same(moved, tmp_path / "output")


def change_input(model, old, new):
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    next(each for each in model.graph.input if each.name == old).name = new


def without_past(model):
    for values in (model.graph.input, model.graph.output):
        kept = [each for each in values if not each.name.startswith(("past", "present"))]
        del values[:]
        values.extend(kept)


def double_past(model):
    for each in model.graph.input:
        if each.name.startswith("past"):
            each.type.tensor_type.elem_type = TensorProto.DOUBLE


def one_scale(model):
    outputs = ["q", "scale", "zero"]
    model.graph.node.append(helper.make_node("DynamicQuantizeLinear", ["logits"], outputs))


def neighbours(model):
    """Let a row's logits depend on the rows beside it."""
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "own"
    model.graph.node.append(helper.make_node("CumSum", ["own", "axis"], ["logits"], reverse=1))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "axis"))


def test_caches_in_half_precision(folder, tmp_path):
    model = onnx.load(folder / "model.onnx")
    onnx.save(convert_float_to_float16(model), folder / "half.onnx")
    assert_same(folder / "half.onnx", tmp_path / "output", folder / "model.onnx", 0.05)
    assert bundles.load(tmp_path / "output").target.precision.kv == "fp16"


def test_inputs_that_choose_a_branch_are_set(folder, tmp_path):
    """Older exports have a branch for texts without a past, newer ones a number of logits."""
    model = onnx.load(folder / "model.onnx")
    values = [helper.make_tensor_value_info("all", TensorProto.FLOAT, None)]
    branches = {
        name: helper.make_graph([helper.make_node(kind, ["own"], ["all"])], name, [], values)
        for name, kind in (("then_branch", "Identity"), ("else_branch", "Neg"))
    }
    next(node for node in model.graph.node if "logits" in node.output).output[0] = "own"
    model.graph.node.extend(
        [
            helper.make_node("If", ["use_cache_branch"], ["chosen"], **branches),
            helper.make_node("Cast", ["num_logits_to_keep"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["chosen", "number"], ["logits"]),
        ]
    )
    for name, kind in (("use_cache_branch", TensorProto.BOOL), ("num_logits_to_keep", 7)):
        shape = [1] if kind == TensorProto.BOOL else []
        model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    onnx.save(model, folder / "merged.onnx")
    assert_same(folder / "merged.onnx", tmp_path / "output", folder / "model.onnx")


REFUSED = [
    (without_past, "no past_key_values among its inputs: export it with `optimum-cli export onnx"),
    (lambda m: change_input(m, "input_ids", "inputs_embeds"), "unknown input 'inputs_embeds'"),
    (lambda m: change_input(m, "position_ids", "encoder_hidden_states"), "'encoder_hidden_states'"),
    (lambda m: m.graph.output.pop(), "has no 'present.1.value' for each layer"),
    (double_past, "past_key_values.0.key is double"),
    (one_scale, "DynamicQuantizeLinear, which rounds all rows of a call by one scale"),
    (lambda m: setattr(m.opset_import[0], "version", 11), "has opset 11: 13 is the oldest"),
    (neighbours, "its cache is not understood"),
    (lambda m: m.graph.node.pop(), "cannot be run"),
]


@pytest.mark.parametrize(("change", "match"), REFUSED)
def test_graphs_that_are_refused(folder, tmp_path, change, match):
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(UnsupportedModelError, match=match):
        adopt(folder / "model.onnx", "changed", tmp_path / "output")


def test_damaged_files_are_refused(folder, tmp_path):
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "big.onnx", save_as_external_data=True, location="big.data")
    data = folder / "big.data"
    data.write_bytes(data.read_bytes()[:100_000])
    with pytest.raises(CheckpointError, match=r"big.data has 100000 bytes, .* needs"):
        adopt(folder / "big.onnx", "short", tmp_path / "output")
    data.unlink()
    with pytest.raises(CheckpointError, match=r"big.data is missing"):
        adopt(folder / "big.onnx", "missing", tmp_path / "output")
    model = onnx.load(folder / "big.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entry.value.replace("big.data", "../config.json")
    onnx.save(model, folder / "big.onnx")
    with pytest.raises(CheckpointError, match="outside the folder"):
        adopt(folder / "big.onnx", "outside", tmp_path / "output")
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="is not an ONNX model"):
        adopt(folder / "model.onnx", "text", tmp_path / "output")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True is not supported"),
        ({"max_position_embeddings": None}, "max_position_embeddings=.absent. must be"),
        ({"vocab_size": 200}, "token id 330 exceeds vocab_size 200"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("config.json", "has no config.json beside it"),
    ],
)
def test_configs_and_missing_files_that_are_refused(folder, tmp_path, fields, match):
    if isinstance(fields, str):
        (folder / fields).unlink()
    else:
        edit_json(folder / "config.json", **fields)
    with pytest.raises(CheckpointError, match=match):
        adopt(folder / "model.onnx", "changed", tmp_path / "output")
