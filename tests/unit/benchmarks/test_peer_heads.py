"""Draft heads in the form in which peers read them: what is written says the same as the head."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from blocks import MASK, OUTPUTS, BlockReference, write_block
from checkout import BENCHMARKS
from checkpoints import make_checkpoint
from gguf_heads import write_gguf_eagle3
from ggufs import write_gguf
from heads import HeadReference, write_head

from edgespec.export.heads.draft_head import target_sizes
from edgespec.models import load_checkpoint
from edgespec.models.heads.opening import load_head

pytestmark = pytest.mark.slow

sys.path.append(str(BENCHMARKS))  # last: names of ours come first

peers, heads, openvino_genai, openvino_head = map(
    importlib.import_module,
    ("peers", "peers.heads", "peers.openvino_genai", "peers.openvino_head"),
)

# Neither activations nor keys are rounded, as they are by default.
WHOLE = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random target of eight layers, and its GGUF file, which has a mask token of its own."""
    folder = tmp_path_factory.mktemp("target")
    model = make_checkpoint(folder, "llama", num_hidden_layers=8)
    write_gguf(folder, folder / "model.gguf", **{"tokenizer.ggml.mask_token_id": 7})
    return model, folder / "model.gguf"


@pytest.fixture(scope="module", params=[False, True], ids=["speculators", "flat"])
def written(request, target, tmp_path_factory):
    """A random head, its weights and config, and the file that was written."""
    model, file = target
    folder = tmp_path_factory.mktemp("written")
    residual = not request.param
    weights, config = write_head(
        folder / "head", model.config, flat=request.param, norm_before_residual=residual
    )
    found, form = heads.head_of("xllamacpp", folder / "head", file, folder)
    assert form == "eagle3"
    return folder / "head", weights, config, found


@pytest.fixture(scope="module", params=["dflash", "dspark"])
def block(request, target, tmp_path_factory):
    """A random drafter of blocks that proposes some tokens alone, and the file of it."""
    model, file = target
    folder = tmp_path_factory.mktemp("block")
    few = {"draft_vocab_size": OUTPUTS}
    write_block(folder / "head", model.config, request.param, flat=False, **few)
    found, form = heads.head_of("xllamacpp", folder / "head", file, folder)
    assert form == request.param
    return folder / "head", found


def opened(path, file):
    return load_head(path, target_sizes(load_checkpoint(file)))


def same(before, after):
    """Both heads compute the same, up to the rounding of matrices to 8 bits."""
    assert after.head.architecture == before.head.architecture
    assert after.head.taps == before.head.taps
    assert after.head.norm.eps == pytest.approx(before.head.norm.eps)
    np.testing.assert_allclose(after.head.rope.inv_freq, before.head.rope.inv_freq, rtol=1e-5)
    np.testing.assert_array_equal(after.ids, before.ids)
    assert after.head.tensors() == before.head.tensors()
    for name in before.head.tensors():
        values = before.tensors.read(name)
        most = np.abs(values).max() / 127 if values.ndim > 1 else 1e-6
        np.testing.assert_allclose(after.tensors.read(name), values, atol=most)


def rounded(file, target):
    """The weights in the file of a head, with the offsets of the ids of what it proposes."""
    loaded = opened(file, target[1])
    read = {name: torch.tensor(loaded.tensors.read(name)) for name in loaded.head.tensors()}
    return read | {"d2t": torch.tensor(loaded.ids) - torch.arange(len(loaded.ids))}


def test_a_written_head_is_the_head(written, target):
    folder, _, _, found = written
    before, after = (opened(each, target[1]) for each in (folder, found))
    same(before, after)
    assert after.head.layer.norm_before_residual == before.head.layer.norm_before_residual


def test_a_written_block_drafter_is_the_drafter(block, target):
    before, after = (opened(each, target[1]) for each in block)
    same(before, after)
    parts = "size", "mask_token", "from_anchor"
    assert [getattr(after.head, each) for each in parts] == [
        getattr(before.head, each) for each in parts
    ]
    assert after.head.markov == before.head.markov


def test_its_file_has_the_names_and_shapes_of_llama_cpp(written, target):
    reader = gguf.GGUFReader(written[-1])
    facts = {name: field.contents() for name, field in reader.fields.items()}
    config = target[0].config
    hidden, dims = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * dims, config.num_key_value_heads * dims
    assert facts["general.architecture"] == "eagle3"
    assert facts["eagle3.target_layers"] == [2, 4, 5]
    assert facts["eagle3.target_hidden_size"] == hidden
    assert len(facts["tokenizer.ggml.tokens"]) == len(
        gguf.GGUFReader(target[1]).fields["tokenizer.ggml.tokens"].contents()
    )
    found = {each.name: (tuple(each.shape), each.tensor_type.name) for each in reader.tensors}
    assert found["fc.weight"] == ((3 * hidden, hidden), "Q8_0")
    assert found["blk.0.attn_q.weight"] == ((2 * hidden, queries), "Q8_0")
    assert found["blk.0.attn_k.weight"] == ((2 * hidden, keys), "Q8_0")
    assert found["blk.0.attn_norm_2.weight"] == ((hidden,), "F32")
    assert found["output.weight"] == ((hidden, 96), "Q8_0")
    assert found["d2t"] == ((96,), "I64")
    assert len(found) == 14


def test_openvinos_model_of_it_computes_the_definition(written, target, tmp_path):
    openvino = pytest.importorskip("openvino")
    _, _, config, file = written
    openvino_head.write_openvino_head(file, "eagle3", tmp_path, tmp_path / "head")
    model = openvino.Core().read_model(tmp_path / "head/openvino_model.xml")
    embedding = target[0].get_input_embeddings().weight.detach()
    [lookup] = [
        each
        for each in model.get_ordered_ops()
        if each.get_type_name() == "Gather"
        and each.input(0).get_partial_shape() == openvino.PartialShape(list(embedding.shape))
    ]
    lookup.input(0).replace_source_output(openvino.opset13.constant(embedding.numpy()).output(0))
    request = openvino.compile_model(model, "CPU", WHOLE).create_infer_request()
    read = {name.removeprefix("layers.0."): each for name, each in rounded(file, target).items()}
    reference = HeadReference(read, config, embedding)
    tokens = torch.tensor([5, 9, 20, 31, 7, 44])
    features = torch.randn(6, 3 * embedding.shape[1], generator=torch.Generator().manual_seed(0))
    sees = torch.ones(6, 6).tril().bool()
    expected, _ = reference.step(tokens, reference.fuse(features), torch.arange(6), sees)
    for place in range(6):
        request.infer(
            {
                "input_ids": tokens[None, place : place + 1].numpy(),
                "hidden_states": features[None, place : place + 1].numpy(),
                "attention_mask": np.ones((1, place + 1), np.int64),
                "position_ids": np.array([[place]]),
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        found = request.get_tensor("logits").data[0, 0]
        np.testing.assert_allclose(found, expected[place], atol=1e-3, rtol=1e-3)
    np.testing.assert_array_equal(request.get_tensor("d2t").data, read["d2t"])
    assert model.get_rt_info("hidden_layers_list").value == "1 3 4"


@pytest.mark.parametrize(
    "changes", [{}, {"draft_vocab_size": OUTPUTS}, {"sample_from_anchor": True}], ids=str
)
def test_openvinos_model_of_a_block_drafter_computes_the_definition(target, tmp_path, changes):
    openvino = pytest.importorskip("openvino")
    _, config = write_block(tmp_path / "given", target[0].config, flat=False, **changes)
    file, form = heads.head_of("openvino-genai", tmp_path / "given", target[1], tmp_path)
    openvino_head.write_openvino_head(file, form, tmp_path, tmp_path / "head")
    model = openvino.Core().read_model(tmp_path / "head/openvino_model.xml")
    request = openvino.compile_model(model, "CPU", WHOLE).create_infer_request()
    reference = BlockReference(rounded(file, target), config, target[0])
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(MASK, (20,), generator=generator).tolist()
    features = torch.randn(20, 3 * reference.embedding.shape[1], generator=generator)
    tokens = openvino_head.block_of(tmp_path / "head")
    assert tokens == reference.size - (not reference.from_anchor)
    for known, place in (0, 7), (7, 9), (9, 16):
        block = reference.embedding[torch.tensor([text[place]] + tokens * [MASK])]
        request.infer(
            {
                "inputs_embeds": block[None].numpy(),
                "hidden_states": features[None, known:place].numpy(),
                "attention_mask": np.ones((1, place + tokens + 1), np.int64),
                "position_ids": np.arange(known, place + tokens + 1)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        rows = reference.rows(features[:place], text, [place])
        if "draft_vocab_size" in changes:
            expected = torch.full((tokens, target[0].config.vocab_size), -65504.0)
            expected[:, reference.ids] = reference.logits(rows)
        else:  # the target's output projection comes behind it
            expected = reference.predicting(rows)
        [output] = request.model_outputs
        assert output.any_name == (
            "logits" if "draft_vocab_size" in changes else "last_hidden_state"
        )
        np.testing.assert_allclose(
            request.get_tensor(output).data[0], expected, atol=1e-3, rtol=1e-3
        )
    names = "mask_token_id", "target_layer_ids"
    told = [model.get_rt_info(["dflash", each]).value for each in names]
    assert told == [str(MASK), "1,4,5"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"edgespec_fusion": "gated"}, "fusion_gate"),
        ({"fc_norm": True}, r"fc_norm\.0"),
        ({"norm_output": True}, "has norm_output:"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3]}}, r"has taps \(1, 4\):"),
    ],
    ids=str,
)
def test_heads_of_other_kinds_are_left_to_edgespec(target, tmp_path, changes, named):
    model, file = target
    write_head(tmp_path / "head", model.config, **changes)
    with pytest.raises(peers.PeerError, match=f"{named}.*train-draft --kind eagle3"):
        heads.head_of("xllamacpp", tmp_path / "head", file, tmp_path)
    own = heads.head_of("edgespec", tmp_path / "head", file, tmp_path)
    assert own == (tmp_path / "head", None)
    assert not list(tmp_path.glob("*.gguf"))


def test_a_head_in_a_file_is_written_anew_and_again_when_it_changes(target, tmp_path):
    model, file = target
    weights, config = write_head(
        tmp_path / "head", model.config, flat=False, norm_before_residual=False
    )
    given = tmp_path / "head.gguf"
    write_gguf_eagle3(given, weights, config, norm_before_residual=None)
    found, _ = heads.head_of("xllamacpp", given, file, tmp_path / "models")
    facts = gguf.GGUFReader(found).fields
    assert facts["eagle3.norm_before_residual"].contents() is False
    before, after = (opened(each, file) for each in (given, found))
    np.testing.assert_array_equal(after.ids, before.ids)
    os.utime(given, ns=(0, 0))
    again, _ = heads.head_of("openvino-genai", given, file, tmp_path / "models")
    assert again.stem != found.stem


@pytest.mark.parametrize(
    ("changes", "fields", "named"),
    [
        ({"norm_before_fc": True}, {}, r"has input_norm\.weight:"),
        ({"num_hidden_layers": 2}, {}, r"has layers\.1\.input_layernorm\.weight, "),
        ({}, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, "is scaled"),
    ],
    ids=str,
)
def test_what_the_file_of_a_head_says_besides_is_not_dropped(
    target, tmp_path, changes, fields, named
):
    model, file = target
    weights, config = write_head(tmp_path / "head", model.config, flat=False, **changes)
    write_gguf_eagle3(tmp_path / "head.gguf", weights, config, **fields)
    with pytest.raises(peers.PeerError, match=named):
        heads.head_of("openvino-genai", tmp_path / "head.gguf", file, tmp_path / "models")


@pytest.mark.parametrize(
    ("form", "changes", "named"),
    [
        ("dflash2", {}, "architecture dflash2"),
        ("dflash", {"sliding_window": 9, "layer_types": ["sliding_attention"] * 2}, "windows"),
        ("dflash", {"is_causal": True}, "see no later ones"),
    ],
    ids=str,
)
def test_block_drafters_of_other_kinds_are_left_to_edgespec(target, tmp_path, form, changes, named):
    model, file = target
    write_block(tmp_path / "block", model.config, form, **changes)
    with pytest.raises(peers.PeerError, match=f"this one has .*{named}.*: train one by"):
        heads.head_of("xllamacpp", tmp_path / "block", file, tmp_path / "models")


@pytest.fixture
def made_by_openvino(tmp_path):
    """What the library makes of a target, as far as names are concerned."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "openvino_model.xml").write_text(
        '<layer name="model.layers.self_attn.add1.layer0"/>\n'
        '<layer name="model.layers.self_attn.add1.layer11"/>\n'
    )
    (folder / "openvino_model.bin").write_bytes(b"weights")
    (folder / "openvino_tokenizer.xml").write_text("tokens")
    return folder


def test_openvinos_target_has_the_names_that_are_looked_for(made_by_openvino, tmp_path):
    openvino_head.write_openvino_target(made_by_openvino, tmp_path / "named")
    text = (tmp_path / "named/openvino_model.xml").read_text()
    assert text == '<layer name="model.layers.0/add"/>\n<layer name="model.layers.11/add"/>\n'
    assert (tmp_path / "named/openvino_model.bin").read_bytes() == b"weights"
    assert (tmp_path / "named/openvino_tokenizer.xml").read_text() == "tokens"


def loading(found, form="eagle3", **changes):
    """How OpenVINO GenAI is loaded with the file of a head."""
    how = {"threads": 1, "context": 64, "sequences": 1, "folder": "", **changes}
    return peers.Loading("model.gguf", None, "head", head=str(found), form=form, **how)


def test_a_target_with_other_names_is_not_kept(made_by_openvino, written):
    (made_by_openvino / "openvino_model.xml").write_text('<layer name="add1"/>')
    with pytest.raises(ValueError, match=r"target/openvino_model\.xml: no layers are called as"):
        openvino_genai._with_head(str(made_by_openvino), loading(written[-1]))
    assert not made_by_openvino.with_name("target-named").exists()


def test_openvinos_models_with_a_head_are_made_once(made_by_openvino, written):
    pytest.importorskip("openvino")
    begun = made_by_openvino.with_name("target-named.partial")
    begun.mkdir()  # by a run that was ended
    given = str(made_by_openvino), loading(written[-1])
    *folders, drafted = openvino_genai._with_head(*given)
    assert [Path(each).name for each in folders] == ["target-named", written[-1].stem]
    assert drafted == 5
    assert not begun.exists()
    files = [Path(each) / "openvino_model.xml" for each in folders]
    times = [each.stat().st_mtime_ns for each in files]
    assert openvino_genai._with_head(*given) == (*folders, drafted)
    assert [each.stat().st_mtime_ns for each in files] == times
    assert (Path(folders[1]) / "openvino_tokenizer.xml").read_text() == "tokens"


@pytest.mark.parametrize(
    ("form", "changes", "reason"),
    [
        ("dspark", {}, "dspark: OpenVINO GenAI drafts with eagle3 and dflash heads: train one by"),
        ("dflash", {"sequences": 2}, "dflash: .* for one text at a time.*: leave several and"),
        ("dflash", {"keeps": True}, "dflash: .* nothing before: leave several and second out by"),
    ],
    ids=str,
)
def test_what_openvino_does_not_draft_with_is_refused_by_name(
    made_by_openvino, block, form, changes, reason
):
    with pytest.raises(ValueError, match=reason):
        openvino_genai._with_head(str(made_by_openvino), loading(block[-1], form, **changes))
    assert not made_by_openvino.with_name(block[-1].stem).exists()
