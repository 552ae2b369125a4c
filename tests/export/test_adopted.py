"""Models that other programs exported as ONNX: what their bundles compute, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copyfile, copytree

import numpy as np
import onnx
import onnxruntime
import pytest
from adopted import FOLDER, KINDS, WINDOW, make_original
from onnx import TensorProto, helper
from pairs import ENGINES, logits_of

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import CheckpointError, DeviceError, ExportError, UnsupportedModelError
from edgespec.export import find_onnx
from edgespec.export.heads.attach import copy_with_taps
from edgespec.runtime.engines import CallSizes, engine
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.execution.stage_files import require_suited
from edgespec.runtime.speculation.tree import ROOT, TokenTree
from edgespec.tuning.adopting import adopt

SAME = 1e-4
TEXT = np.random.default_rng(5).integers(0, 331, 70).tolist()
PLACES = [
    *(
        (kind, device)
        for kind in KINDS
        for device in ENGINES
        if (kind, device) != ("genai", ENGINES[1])
    )
]


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


def original(graph, text, past=None):
    """Returns ONNX Runtime's logits [n, V] of the file itself, and its present."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    before = 0 if past is None else next(iter(past.values())).shape[2]
    end = before + len(text)
    feeds = {
        "input_ids": np.array([text]),
        "attention_mask": np.ones((1, end), np.int64),
        "position_ids": np.arange(before, end)[None],
    }
    names = [each.name for each in session.get_inputs()]
    heads = next(each.shape[1] for each in session.get_inputs() if each.name.startswith("past"))
    width = 16 if graph.parent.name == "genai" else 8
    empty = np.zeros((1, heads, 0, width), np.float32)
    feeds |= {n: past[n] if past else empty for n in names if n.startswith("past")}
    outputs = [each.name for each in session.get_outputs()]
    found = dict(zip(outputs, session.run(outputs, {n: feeds[n] for n in names}), strict=True))
    present = {n.replace("present", "past_key_values"): v for n, v in found.items()}
    return present.pop("logits")[0], present


@pytest.mark.parametrize(("kind", "device"), PLACES)
def test_logits_are_those_of_the_file(adopted, kind, device):
    model = Model.load(adopted(kind), TARGET, engine(device), 1)
    graph = FOLDER / kind / "model.onnx"
    runner, split = Runner(model), 40  # longer than the window, and padded to 48 rows
    prompt, past = original(graph, TEXT[:split])
    found = runner.prefill(TEXT[:split])["logits"]
    assert found.shape[1:] == prompt.shape[1:]
    assert np.abs(found[0] - prompt[-1]).max() < SAME
    chain, _ = original(graph, TEXT[split:], past)
    rows = Rows.chain(TEXT[split:])
    assert np.abs(runner.verify(rows)["logits"][: len(chain)] - chain).max() < SAME
    runner.commit(range(3))  # the others are forgotten
    alone = runner.verify(Rows.chain(TEXT[split + 3 : split + 4]))["logits"][0]
    assert np.abs(alone - chain[3]).max() < SAME


@pytest.mark.parametrize("kind", ["mistral", "gpt2"])
def test_logits_are_those_of_transformers(adopted, tmp_path, kind):
    expected = logits_of(make_original(tmp_path / "original", kind), TEXT)[WINDOW:]
    runner = Runner(Model.load(adopted(kind), TARGET, engine(ENGINES[0]), 1))
    runner.prefill(TEXT[:WINDOW])
    found = np.concatenate([each["logits"].copy() for each in runner.score(TEXT[WINDOW:], 7)])
    assert np.abs(found - expected).max() < SAME * expected.std()


def test_a_text_may_fill_the_context(adopted):
    """Padding rows would have positions that the model does not know."""
    model = Model.load(adopted("gpt2"), TARGET, engine(ENGINES[0]), 1)
    runner, text = Runner(model), (TEXT * 4)[:256]
    runner.prefill(text[:251])
    logits = runner.verify(Rows.chain(text[251:]))["logits"][4]
    assert np.abs(logits - original(FOLDER / "gpt2/model.onnx", text)[0][-1]).max() < SAME


def test_branches_never_reach_the_model(adopted):
    runner = Runner(Model.load(adopted("mistral"), TARGET, engine(ENGINES[0]), 1))
    runner.prefill(TEXT[:9])
    tree = TokenTree(np.array([5, 6]), np.array([ROOT, ROOT]))
    with pytest.raises(ValueError, match="rows branch"):
        runner.verify(Rows.tree(4, tree))


def test_the_manifest_says_what_the_graph_is(adopted):
    bundle = adopted("genai")
    role = bundle.target
    assert not role.trees
    assert not role.ordered
    assert (role.layers, role.kv_heads, role.head_dim, role.context_length) == (2, 2, 16, 256)
    assert (role.precision.weights, role.precision.lm_head) == ("int4", "int4")
    assert role.precision.block_size == 32
    layer = 32 * 128 + 64 * 32 + 3 * 32 * 64
    assert role.parameters == pytest.approx(2 * 331 * 32 + 2 * layer, rel=0.2)
    bundle.verify()
    assert sorted(bundle.manifest.files) == [
        "target.data", "target.onnx", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


@pytest.mark.parametrize("device", ENGINES)
def test_the_plan_counts_copies_of_the_cache(adopted, device):
    [stage] = stage_sizes(adopted("mistral"), TARGET)
    calls, found = CallSizes(8, 1024, 8), engine(device).footprint
    with_copies, without = found(stage, calls), found(replace(stage, copies_cache=False), calls)
    both = with_copies.workspace + with_copies.shared - without.workspace - without.shared
    cache = 2 * 2 * 2 * 8 * 4 * 1024  # keys and values of two layers, two heads of 8 floats
    assert 2 * cache <= both < 2.1 * cache


def test_draft_heads_and_npus_are_refused(adopted, tmp_path):
    bundle = adopted("mistral")
    with pytest.raises(ExportError, match="does not give the hidden rows that a draft head reads"):
        copy_with_taps(bundle, tmp_path, (1,))
    with pytest.raises(DeviceError, match="shapes change with the text"):
        require_suited(bundle, TARGET, engine("qnn:emulated"))


def test_which_file_is_meant(folder):
    graph = folder / "model.onnx"
    assert find_onnx(str(folder)) == find_onnx(str(graph)) == graph
    copyfile(graph, folder / "model_q4.onnx")
    assert find_onnx(str(folder)) == graph
    (folder / "onnx").mkdir()
    graph.rename(folder / "onnx" / "model.onnx")
    assert find_onnx(str(folder)) == folder / "onnx" / "model.onnx"
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model_fp16.onnx")
    with pytest.raises(
        ExportError, match=r"give the path of one of model_q4.onnx, onnx/model_fp16"
    ):
        find_onnx(str(folder))
    (folder / "model.safetensors").touch()
    assert find_onnx(str(folder)) is None
    assert find_onnx(str(folder / "config.json")) is None
    assert find_onnx("owner/name") is None


def test_a_graph_in_a_folder_of_its_own_with_external_data(folder, tmp_path):
    model = onnx.load(folder / "model.onnx")
    (folder / "onnx").mkdir()
    (folder / "model.onnx").unlink()
    moved = folder / "onnx" / "model_q4.onnx"
    onnx.save(model, moved, save_as_external_data=True, location="q4.data", size_threshold=100)
    adopt(moved, "moved", tmp_path / "output")
    found = Runner(
        Model.load(bundles.load(tmp_path / "output"), TARGET, engine(ENGINES[0]), 1)
    ).prefill(TEXT)
    assert np.abs(found["logits"][0] - original(moved, TEXT)[0][-1]).max() < SAME


def change_input(model, old, new, kind=None):
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    for each in model.graph.input:
        if each.name == old:
            each.name = new
            each.type.tensor_type.elem_type = kind or each.type.tensor_type.elem_type


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


def halve(model):
    """Give the graph caches and logits in half precision."""
    before, after = [], []
    for each in model.graph.input:
        if each.name.startswith("past"):
            each.type.tensor_type.elem_type = TensorProto.FLOAT16
            before.append(helper.make_node("Cast", [each.name], [f"{each.name}:wide"], to=1))
    for each in model.graph.output:
        each.type.tensor_type.elem_type = TensorProto.FLOAT16
        after.append(helper.make_node("Cast", [f"{each.name}:wide"], [each.name], to=10))
    changed = {node.input[0] for node in before} | {node.output[0] for node in after}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}:wide" if name in changed else name for name in names]
    nodes = [*before, *model.graph.node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def test_caches_in_half_precision(folder, tmp_path):
    model = onnx.load(folder / "model.onnx")
    halve(model)
    onnx.save(model, folder / "half.onnx")
    adopt(folder / "half.onnx", "half", tmp_path / "output")
    bundle = bundles.load(tmp_path / "output")
    assert bundle.target.precision.kv == "fp16"
    runner = Runner(Model.load(bundle, TARGET, engine(ENGINES[0]), 1))
    runner.prefill(TEXT[:30])
    found = runner.verify(Rows.chain(TEXT[30:]))["logits"][len(TEXT) - 31]
    expected = original(folder / "model.onnx", TEXT)[0][-1]
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected).max() < 0.01 * expected.std()


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
    adopt(folder / "merged.onnx", "merged", tmp_path / "output")
    bundle = bundles.load(tmp_path / "output")
    found = Runner(Model.load(bundle, TARGET, engine(ENGINES[0]), 1)).prefill(TEXT)["logits"][0]
    assert np.abs(found - original(folder / "model.onnx", TEXT)[0][-1]).max() < SAME


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
    ],
)
def test_configs_that_are_refused(folder, tmp_path, fields, match):
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    with pytest.raises(CheckpointError, match=match):
        adopt(folder / "model.onnx", "changed", tmp_path / "output")


def test_missing_parts_are_refused(folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        adopt(folder / "model.onnx", "without", tmp_path / "output")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config.json beside it"):
        adopt(folder / "model.onnx", "without", tmp_path / "output")
