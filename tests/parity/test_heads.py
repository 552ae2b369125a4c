"""Draft heads in bundles: the published definition, both layouts, and heads that are refused."""

from __future__ import annotations

import json
from shutil import copytree

import numpy as np
import onnx
import pytest
import torch
from checkpoints import edit_json, make_checkpoint
from gguf_heads import write_gguf_eagle3
from head_parts import features_of
from head_rows import (
    FORMS,
    SAME,
    attached,
    check_rows,
    features_of_target,
    refused,
    with_features,
)
from heads import (
    HEADS,
    IDS,
    PEAGLE,
    PEAGLES,
    HeadReference,
    taps_of,
    write_head,
    write_target,
)
from nodes import MISSING, same_bits
from parity import PROMPT, Text, distance, load, stored
from safetensors.torch import save_file

from edgespec import LLM, export
from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET_FEATURES
from edgespec.errors import (
    BundleError,
    CheckpointError,
    EdgespecError,
    ExportError,
    UnsupportedModelError,
)
from edgespec.export import ExportOptions

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXT = PROMPT[:60]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_computes_what_its_definition_says(target, tmp_path, name):
    """Rows of the text read the target's features, and two levels of a tree the head's own rows."""
    model, bundle = target
    flat, changes = HEADS[name]
    weights, config = write_head(tmp_path / "head", model.config, flat=flat, **changes)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    features = features_of_target(opened, TEXT)
    if 8 not in (taps := taps_of(config, 8)):  # transformers gives those only behind the last norm
        assert distance(features, features_of(model, TEXT, taps).numpy()) < SAME
    reference = HeadReference(weights, config, model.get_input_embeddings().weight.data)
    with torch.no_grad():
        fused = reference.fuse(torch.tensor(features[:-1]))
    for native in FORMS.values():
        head = with_features(opened, DRAFT, native)
        check_rows(head, reference, TEXT, features[:-1], fused)


def test_taps_off_by_one_are_seen(target, tmp_path):
    """The two fields that name taps differ by one: read alike, one of them would be wrong."""
    model, bundle = target
    after = {"eagle_config": {IDS: [1, 3, 4]}}
    before = {IDS: [2, 4, 5]}
    found = []
    for name, fields in (("after", after), ("before", before)):
        write_head(tmp_path / name, model.config, **fields)
        opened = attached(bundle, tmp_path / f"{name}-bundle", tmp_path / name)
        assert opened.target.taps == opened.draft.taps == (2, 4, 5)
        found.append(features_of_target(opened, TEXT))
    same_bits(*found)
    assert distance(found[0], features_of(model, TEXT, [2, 4, 5]).numpy()) < SAME
    assert distance(found[0], features_of(model, TEXT, [1, 3, 4]).numpy()) > 0.1


def test_offsets_become_ids(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    file = opened.path / opened.draft.native.ids
    expected = weights["d2t"] + torch.arange(96)
    assert np.fromfile(file, "<i4").tolist() == expected.tolist()
    assert set(expected.tolist()) != set(range(96))
    for damage in (lambda ids: ids[:5], lambda ids: ids - 400):
        wrong = copytree(opened.path, tmp_path / "wrong", dirs_exist_ok=True)
        damage(np.fromfile(file, "<i4")).tofile(wrong / file.name)
        bundles.save_manifest(
            wrong,
            bundles.Manifest(**{**vars(opened.manifest), "files": bundles.describe_files(wrong)}),
        )
        with pytest.raises(BundleError, match="must hold 96 tokens below 331"):
            LLM(wrong, draft="head")


def test_a_head_without_a_theta_gets_the_targets(tmp_path, caplog):
    other = make_checkpoint(tmp_path / "checkpoint", "llama", num_hidden_layers=8, rope_theta=5e5)
    options = ExportOptions(precision="fp32")
    export.make(tmp_path / "checkpoint", tmp_path / "exported", None, options)
    write_head(tmp_path / "silent", other.config, rope_theta=None)
    opened = attached(tmp_path / "exported", tmp_path / "one", tmp_path / "silent")
    assert opened.draft.inv_freq == opened.target.inv_freq
    assert "no rope_theta: the target's is used" in caplog.text
    write_head(tmp_path / "usual", other.config, rope_theta=10000.0)
    opened = attached(tmp_path / "exported", tmp_path / "two", tmp_path / "usual")
    assert opened.draft.inv_freq != opened.target.inv_freq
    assert "is not the target's" in caplog.text


def test_a_head_does_not_get_a_rotation_of_a_part_of_each_head(tmp_path, caplog):
    other = make_checkpoint(tmp_path / "checkpoint", "glm4", num_hidden_layers=8)
    options = ExportOptions(precision="fp32")
    export.make(tmp_path / "checkpoint", tmp_path / "exported", None, options)
    write_head(tmp_path / "silent", other.config, rope_theta=None)
    with pytest.raises(CheckpointError, match=r"rope_theta=\(absent\).*only a part of its heads"):
        attached(tmp_path / "exported", tmp_path / "one", tmp_path / "silent")
    write_head(tmp_path / "told", other.config, rope_theta=10000.0)
    opened = attached(tmp_path / "exported", tmp_path / "two", tmp_path / "told")
    assert 0 in opened.target.inv_freq
    assert 0 not in opened.draft.inv_freq
    assert "rope_theta" not in caplog.text


def test_nothing_changes_without_a_head(target, tmp_path):
    """The graph with features computes the same bits, and they are fetched for a head alone."""
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    plain = bundles.load(bundle)
    assert plain.target.taps == ()
    assert plain.manifest.files["target.tiles"] == opened.manifest.files["target.tiles"]
    same_bits(*(Text(load(each)).read(TEXT) for each in (plain, opened)))
    assert plain.target.native == opened.target.native
    assert Text(load(opened)).rows(TEXT).features is None
    plain.verify()  # the copy's new graphs are not links to the old ones
    opened.verify()


def test_a_second_head_replaces_the_first(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "one", model.config)
    write_head(tmp_path / "other", model.config, **{IDS: [3, 8]})
    first = attached(bundle, tmp_path / "first", tmp_path / "one")
    second = attached(first.path, tmp_path / "second", tmp_path / "other")
    assert (first.target.taps, second.target.taps) == ((2, 4, 5), (3, 8))
    assert features_of_target(first, TEXT).shape == (60, 3 * 64)
    assert features_of_target(second, TEXT).shape == (60, 2 * 64)
    first.verify()


def test_the_embedding_is_that_of_the_target(target, tmp_path):
    """Unless the head has its own, which is stored beside the rest."""
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    rows = model.get_input_embeddings().weight.data
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    own = {name: each for name, each in weights.items() if each.dim() == 2}
    assert opened.draft.native.formats == {"f32": sum(each.numel() for each in own.values())}
    save_file({**weights, "embed_tokens.weight": rows}, tmp_path / "head/model.safetensors")
    other = attached(bundle, tmp_path / "own-bundle", tmp_path / "head")
    more = {each.draft.native.formats["f32"] for each in (opened, other)}
    assert max(more) - min(more) == rows.numel()
    found = []
    features = features_of_target(opened, TEXT)[:-1]
    for each in (opened, other):
        head = with_features(each, DRAFT)
        read = Text(head).rows(TEXT[1:])
        read.reads = {"target_features": features}
        found.append(head.forward([read])[0].copy())
    same_bits(*found)


BAD_CONFIGS = [
    ({"architectures": ["LlamaForCausalLM"]}, UnsupportedModelError, "architectures="),
    ({"architectures": None}, UnsupportedModelError, "architectures="),
    ({"vocab_size": 332}, CheckpointError, "must be the target's, 331: it is another's"),
    ({"hidden_size": 32}, CheckpointError, "must be the target's, 64"),
    ({"target_hidden_size": 32}, CheckpointError, "target_hidden_size=32 must be the target's"),
    ({"num_hidden_layers": 2}, UnsupportedModelError, "a head has one layer"),
    ({"norm_before_fc": True}, CheckpointError, "no tensor input_norm.weight"),
    ({"fc_norm": True}, CheckpointError, "no tensor fc_norm.0.weight"),
    ({"draft_vocab_size": 95}, CheckpointError, "lm_head.weight has shape"),
    ({"mlp_bias": True}, UnsupportedModelError, "mlp_bias=True"),
    ({"attention_bias": True}, CheckpointError, "q_proj.bias"),
    ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act='relu'"),
    ({"sliding_window": 512}, UnsupportedModelError, "sliding_window=512"),
    ({"edgespec_fusion": "sum"}, UnsupportedModelError, "edgespec_fusion='sum'"),
    ({IDS: [2, 4, 9]}, CheckpointError, "must be layers of the target, which has 8"),
    ({IDS: [2, 2, 4]}, CheckpointError, "must be layers of the target"),
    ({"rms_norm_eps": -1}, CheckpointError, "rms_norm_eps=-1"),
]


@pytest.mark.parametrize(("fields", "kind", "message"), BAD_CONFIGS, ids=lambda f: str(f)[:40])
def test_heads_of_other_targets_and_formats_are_refused(target, tmp_path, fields, kind, message):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    file = tmp_path / "head/config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


def test_a_missing_flag_of_the_residual_is_refused(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "head", model.config, flat=False, norm_before_residual=None)
    with pytest.raises(CheckpointError, match="norm_before_residual"):
        attached(bundle, tmp_path / "bundle", tmp_path / "head")
    write_head(tmp_path / "later", model.config, flat=False, speculators_model_type="eagle4")
    with pytest.raises(UnsupportedModelError, match="speculators_model_type='eagle4'"):
        attached(bundle, tmp_path / "other", tmp_path / "later")


def damaged(weights, name, change):
    return {**weights, name: change(weights[name].clone())}


def with_nan(rows):
    rows[3, 2] = float("nan")
    return rows


BAD_WEIGHTS = [
    ("fc.weight", with_nan, "fc.weight contains infinity or NaN"),
    ("d2t", lambda t: t[:5], r"d2t has shape \[5\], must be \[96\]"),
    ("d2t", lambda t: t + 1000, "maps outputs to ids from"),
    ("d2t", lambda t: -torch.arange(96), "95 of them twice"),
    ("norm.weight", lambda t: t[:5], "norm.weight has shape"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD_WEIGHTS)
def test_damaged_weights_are_refused(target, tmp_path, name, change, message):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    save_file(damaged(weights, name, change), tmp_path / "head/model.safetensors")
    refused(bundle, tmp_path / "bundle", tmp_path / "head", CheckpointError, message)


def test_files_that_are_truncated_or_missing_are_refused(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    file = tmp_path / "head/model.safetensors"
    save_file(damaged(weights, "d2t", torch.Tensor.float), file)
    with pytest.raises(UnsupportedModelError, match="d2t has dtype F32"):
        attached(bundle, tmp_path / "floats", tmp_path / "head")
    save_file(weights, file)
    whole = file.read_bytes()
    for number, content in enumerate((whole[:-100], whole[:20], b"")):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="truncated or corrupt"):
            attached(bundle, tmp_path / f"{number}", tmp_path / "head")
    save_file({k: v for k, v in weights.items() if k != "d2t"}, file)
    with pytest.raises(CheckpointError, match="no tensor d2t"):
        attached(bundle, tmp_path / "no-ids", tmp_path / "head")
    save_file({**weights, "midlayer.self_attn.q_norm.weight": torch.ones(24)}, file)
    with pytest.raises(UnsupportedModelError, match=r"q_norm\.weight belongs to no part"):
        attached(bundle, tmp_path / "extra", tmp_path / "head")
    with pytest.raises(CheckpointError, match="not a folder"):
        attached(bundle, tmp_path / "nothing", tmp_path / "missing")


def test_a_graph_without_names_cannot_get_a_head(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    other = copytree(bundle, tmp_path / "other")
    opened = bundles.load(bundle)
    file = other / opened.target.native.graph
    graph = onnx.load(file, load_external_data=False)
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("entering.", "Add_") for name in names]
    file.write_bytes(graph.SerializeToString())
    files = bundles.describe_files(other)
    bundles.save_manifest(other, bundles.Manifest(**{**vars(opened.manifest), "files": files}))
    with pytest.raises(ExportError, match="does not name the rows that enter layer"):
        attached(other, tmp_path / "bundle", tmp_path / "head")


@pytest.mark.parametrize("precision", ["int4", "int8", "fp16"])
def test_quantized_heads_stay_close(target, tmp_path, precision):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head", precision)
    exact = attached(bundle, tmp_path / "exact", tmp_path / "head")
    kind = {"int4": "q4_0", "int8": "q8_0", "fp16": "f16"}[precision]
    assert opened.draft.precision.weights == precision
    assert set(opened.draft.native.formats) == {kind}
    rounded = stored(opened, DRAFT)
    whole = stored(exact, DRAFT)
    for name in opened.draft.quantization_error:
        width = whole[name].values.shape[1]
        values = rounded[name].values[:, :width]
        error = distance(values, whole[name].values)
        assert error == pytest.approx(opened.draft.quantization_error[name], rel=1e-3)


def test_manifests_whose_head_and_target_disagree_are_refused(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    file = opened.path / "manifest.json"
    whole = json.loads(file.read_text())
    changes = [
        lambda m: m["roles"]["target"].update(taps=[2, 4]),
        lambda m: m["roles"]["target"].update(taps=[4, 2, 5]),
        lambda m: m["roles"]["draft"].pop("taps"),
        lambda m: m["roles"]["draft"].pop("native"),
    ]
    for change in changes:
        manifest = json.loads(json.dumps(whole))
        change(manifest)
        file.write_text(json.dumps(manifest))
        with pytest.raises(EdgespecError):
            bundles.load(opened.path)


def test_the_command_attaches_heads_to_checkpoints_and_bundles(target, tmp_path, cli):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    checkpoint = bundle.parent / "checkpoint"
    out = tmp_path / "out"
    done = cli("export", checkpoint, "--draft", tmp_path / "head", "-o", out)
    assert "draft head: reads what enters layers 2, 4, 5, proposes 96 tokens" in done.out
    assert bundles.load(out).draft.is_head
    assert bundles.load(out).draft.precision.weights == "int8"
    assert "eagle3 head" in cli("inspect", out).out
    other = tmp_path / "other"
    done = cli(
        "export", out, "--draft", tmp_path / "head", "--draft-precision", "fp32", "-o", other
    )
    assert bundles.load(other).draft.precision.weights == "fp32"
    done = cli("export", out, "--draft", checkpoint, "-o", tmp_path / "pair")
    assert (done.code, bundles.load(tmp_path / "pair").draft.is_head) == (0, False)
    for wrong, message in (
        (("--precision", "int8"), "exported already"),
        (("--layer-skip", "4-6"), "--layer-skip is given, but"),
        (("--calibrate",), "--calibrate is given, but"),
        (("--quality",), "--quality is given, but"),
        (("--draft-precision", "source"), "a head has one of"),
    ):
        done = cli("export", out, "--draft", tmp_path / "head", *wrong, "-o", tmp_path / "no")
        assert done.code == 2
        assert message in done.err
        assert not (tmp_path / "no").exists()
    edit_json(tmp_path / "head/config.json", vocab_size=400)
    done = cli("export", checkpoint, "--draft", tmp_path / "head", "-o", tmp_path / "no")
    assert done.code == 2
    assert "it is another's" in done.err


@pytest.mark.parametrize("name", PEAGLES)
def test_masks_compute_what_the_definition_of_peagle_says(target, tmp_path, name):
    """Behind the newest token, and beside another sequence, with the same bits."""
    model, bundle = target
    changes = {**PEAGLE, **PEAGLES[name]}
    weights, config = write_head(tmp_path / "head", model.config, flat=False, **changes)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    role = opened.draft
    features = features_of_target(opened, TEXT)
    assert (role.architecture, role.block.rows, role.mask_token) == ("peagle", 6, 330)
    told = np.load(opened.path / role.block.features)
    assert np.array_equal(told, weights["mask_hidden"].numpy().ravel())
    head = with_features(opened, DRAFT)

    def masked(n, head=head):
        rows = Text(head).rows([*TEXT[1 : n + 1], *[330] * 5])
        rows.wanted = list(range(n - 1, n + 5))
        rows.reads = {TARGET_FEATURES: np.concatenate([features[:n], np.tile(told, (5, 1))])}
        return rows

    [found] = head.forward([masked(50)])
    found = found.copy()
    same_bits(head.forward([masked(30), masked(50)])[1], found)
    reference = HeadReference(weights, config, model.get_input_embeddings().weight.data)
    read = torch.tensor(np.concatenate([features[:50], np.tile(told, (5, 1))]))
    with torch.no_grad():
        tokens = torch.tensor([*TEXT[1:51], *[330] * 5])
        sees = torch.ones(55, 55).tril().bool()
        logits, _ = reference.step(tokens, reference.fuse(read), torch.arange(55), sees)
    assert distance(found, logits[49:].numpy()) < SAME
    portable = with_features(opened, DRAFT, native=False)
    asked = [masked(n, portable) for n in (30, 50)]
    assert distance(portable.forward(asked)[1], logits[49:].numpy()) < SAME


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"mask_token_id": None}, CheckpointError, r"mask_token_id=\(absent\) must be a token id"),
        ({"mask_token_id": 331}, CheckpointError, "mask_token_id=331 must be a token id from 0"),
        ({"num_hidden_layers": 1}, UnsupportedModelError, r"layers\.1.*belongs to no part"),
        ({"num_hidden_layers": 3}, CheckpointError, r"no tensor layers\.2"),
        ({"speculators_model_type": "eagle3"}, UnsupportedModelError, "mask_hidden belongs to no"),
        ({"speculators_model_type": "peagle2"}, UnsupportedModelError, "'peagle2'"),
        ({"speculators_config": {"proposal_methods": [{"speculative_tokens": 65}]}},
         CheckpointError, "speculative_tokens=65 must be 64 or less"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, CheckpointError, "has shape"),
        ({"vocab_size": 400}, CheckpointError, "it is another's"),
    ],
    ids=str,
)  # fmt: skip
def test_peagle_heads_of_other_targets_and_formats_are_refused(
    target, tmp_path, fields, kind, message
):
    model, bundle = target
    write_head(tmp_path / "head", model.config, flat=False, **PEAGLE)
    file = tmp_path / "head/config.json"
    config = json.loads(file.read_text())
    for name, value in fields.items():
        place = config["transformer_layer_config"] if "num_" in name or "vocab" in name else config
        place[name] = value
    file.write_text(json.dumps(config))
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


def test_damaged_numbers_of_masks_are_refused(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config, flat=False, **PEAGLE)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    np.save(opened.path / opened.draft.block.features, np.full(192, np.nan, np.float32))
    files = bundles.describe_files(opened.path)
    manifest = bundles.Manifest(**{**vars(opened.manifest), "files": files})
    bundles.save_manifest(opened.path, manifest)
    with pytest.raises(BundleError, match="must hold 192 finite numbers"):
        LLM(opened.path, draft="head")
    weights["mask_hidden"][0, 0, 3] = float("inf")
    save_file(weights, tmp_path / "head/model.safetensors")
    with pytest.raises(CheckpointError, match="mask_hidden contains infinity or NaN"):
        attached(bundle, tmp_path / "other", tmp_path / "head")


@pytest.mark.parametrize("norms", [{}, {"norm_before_fc": True, "norm_before_residual": False}])
def test_heads_in_gguf_files_have_the_bits_of_the_original(target, tmp_path, norms):
    model, bundle = target
    weights, config = write_head(tmp_path / "head", model.config, flat=False, **norms)
    write_gguf_eagle3(tmp_path / "head.gguf", weights, config)
    found = []
    for path in (tmp_path / "head", tmp_path / "head.gguf"):
        opened = attached(bundle, tmp_path / f"bundle-{path.name}", path)
        head = with_features(opened, DRAFT)
        rows = Text(head).rows(TEXT[1:])
        rows.reads = {TARGET_FEATURES: features_of_target(opened, TEXT)[:-1]}
        [logits] = head.forward([rows])
        ids = (opened.path / opened.draft.native.ids).read_bytes()
        found.append((logits.copy(), opened.draft.taps, ids))
    same_bits(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_layers": [2, 5, 11]}, "must be layers of the target, which has 8"),
        ({"target_hidden_size": 32}, "target_hidden_size=32 must be the target's, 64"),
        ({"embedding_length": 32}, "must be the target's"),
        ({"block_count": 2}, r"no tensor layers\.1"),
    ],
    ids=str,
)
def test_gguf_heads_of_other_targets_are_refused(target, tmp_path, fields, message):
    model, bundle = target
    weights, config = write_head(tmp_path / "head", model.config, flat=False)
    write_gguf_eagle3(tmp_path / "head.gguf", weights, config, **fields)
    refused(bundle, tmp_path / "bundle", tmp_path / "head.gguf", CheckpointError, message)


def test_norms_of_taps_are_read_by_their_older_names(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config, fc_norm=True)
    opened = attached(bundle, tmp_path / "new", tmp_path / "head")
    edit_json(tmp_path / "head/config.json", fc_norm=None, use_aux_norm=True)
    places = enumerate(("low", "mid", "high"))
    names = {f"fc_norm.{n}.weight": f"aux_norm_{place}.weight" for n, place in places}
    older = {names.get(name, name): each for name, each in weights.items()}
    save_file(older, tmp_path / "head/model.safetensors")
    again = attached(bundle, tmp_path / "old", tmp_path / "head")
    for name in (opened.draft.native.graph, opened.draft.native.data):
        assert (opened.path / name).read_bytes() == (again.path / name).read_bytes()
