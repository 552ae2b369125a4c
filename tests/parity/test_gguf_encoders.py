"""Encoders in GGUF files: the vectors and tokens of the checkpoints that they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from encoders import SIZES, TEXTS, make_encoder, make_ranker
from gguf import GGUFWriter, TokenType
from jinas import make_jina, make_jina_ranker
from native_llms import with_library
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import Precompiled
from tokenizers.pre_tokenizers import Metaspace, Sequence, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from edgespec import LLM, export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import SafetensorsFolder, load_checkpoint

pytestmark = with_library
PLAIN = {"threads": 1}
KINDS = {
    "bert": gguf.MODEL_ARCH.BERT,
    "jina_embeddings_v3": gguf.MODEL_ARCH.JINA_BERT_V3,
    "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
}
FIRST_PLACE = 2  # of XLM-RoBERTa's table, behind that of the token that pads
PIECES = ["\u2581the", "\u2581tree", "\u2581a", "\u2581", *"abcdefghijklmnopqrstuvwxyzATE,!"]
QUERY = "what is a tree"


def write_encoder(
    folder: Path, file: Path, pooling: int | None, causal: bool = False, form: str = ""
) -> None:
    """Write a checkpoint as llama.cpp's converter does.

    Args:
        folder: the checkpoint.
        file: the file.
        pooling: llama.cpp's number of the way to pool; None: the file has none.
        causal: whether rows see those before them alone.
        form: what else files have: `apart`, the two matrices of Jina's gates as the first
            converters wrote them, or `whole`, one for queries, keys and values.
    """
    config = json.loads((folder / "config.json").read_text())
    kind = KINDS[config["model_type"]]
    if config.get("position_embedding_type") == "alibi":
        kind = gguf.MODEL_ARCH.JINA_BERT_V2
    writer = GGUFWriter(str(file), gguf.MODEL_ARCH_NAMES[kind])
    left_out = FIRST_PLACE if config["model_type"] == "xlm-roberta" else 0
    writer.add_context_length(SIZES["max_position_embeddings"] - left_out)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(causal)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if "rope_parameters" in config:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    write_words = write_unigrams if config["model_type"] == "xlm-roberta" else write_vocabulary
    write_words(writer, folder)
    tensors = SafetensorsFolder(folder)
    names = gguf.get_tensor_name_map(kind, SIZES["num_hidden_layers"])
    read = {
        name.removeprefix("roberta.").removeprefix("bert."): tensors.read(name)
        for name in tensors.names
        if "pooler" not in name
    }
    if left_out:
        places = "embeddings.position_embeddings.weight"
        read[places] = read[places][left_out:]
    made = {"apart": apart, "whole": whole}.get(form, fused)
    for name, values in made(read).items():
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place, name
        writer.add_tensor(place, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fused(read):
    """Return tensors with queries, keys and values of Nomic's in one, as its files have them."""
    for index in range(SIZES["num_hidden_layers"]):
        name = f"layers.{index}.self_attn"
        parts = [read.pop(f"{name}.{each}_proj.weight", None) for each in "qkv"]
        if parts[0] is not None:
            read[f"encoder.layers.{index}.attn.Wqkv.weight"] = np.concatenate(parts)
    return read


def whole(read):
    """Return tensors of XLM-RoBERTa with queries, keys and values in one."""
    for index in range(SIZES["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            name = f"encoder.layer.{index}.attention.self"
            parts = [read.pop(f"{name}.{each}.{kind}") for each in ("query", "key", "value")]
            read[f"encoder.layers.{index}.mixer.Wqkv.{kind}"] = np.concatenate(parts)
    return read


def apart(read):
    """Return tensors of Jina's model for code, whose gates have matrices of their own."""
    for index in range(SIZES["num_hidden_layers"]):
        name = f"encoder.layer.{index}.mlp"
        up, gate = np.split(read.pop(f"{name}.up_gated_layer.weight"), 2)
        read |= {f"{name}.gated_layers_v.weight": up, f"{name}.gated_layers_w.weight": gate}
    return read


def character_table():
    """Return SentencePiece's table of characters with a single entry, a wide A that becomes A.

    It is a trie as an array of units (darts-clone): a byte leads from a place to that exclusive-or
    the byte and the unit's offset.
    """
    units = np.zeros(1024, np.uint32)
    place, base = 0, 0x100
    units[place] = base << 10
    for byte, following in zip("\uff21".encode(), (0x200, 0x300, 0x3FF), strict=True):
        place = base ^ byte
        units[place] = (place ^ following) << 10 | byte
        base = following
    units[place] |= 1 << 8  # a value follows
    units[base] = 1 << 31  # of 0, the place of the text
    return np.uint32(units.nbytes).tobytes() + units.tobytes() + b"A\0"


def write_unigrams(writer, folder):
    """Write a vocabulary of unigrams, and the same as the checkpoint's tokenizer."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *PIECES]
    tokens += [f"[PAD{number}]" for number in range(SIZES["vocab_size"] - len(tokens))]
    scores = [0.0] * 4 + [-float(number) for number in range(1, len(PIECES) + 1)]
    scores += [-1e4] * (SIZES["vocab_size"] - len(scores))
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    control = [TokenType.CONTROL] * 3
    unused = [TokenType.UNUSED] * (len(tokens) - 4 - len(PIECES))
    normal = [TokenType.NORMAL] * len(PIECES)
    writer.add_token_types([*control, TokenType.UNKNOWN, *normal, *unused])
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_precompiled_charsmap(character_table())
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    tokenizer = Tokenizer(Unigram(list(zip(tokens, scores, strict=True)), 3))
    tokenizer.normalizer = Precompiled(character_table())
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Metaspace()])
    tokenizer.add_special_tokens(tokens[:4])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_vocabulary(writer, folder):
    """Write a vocabulary of word pieces, in which a word's first piece begins with a space."""
    found = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(found, key=found.__getitem__)
    tokens += [f"[unused{number}]" for number in range(SIZES["vocab_size"] - len(tokens))]
    special = [each.startswith("[") for each in tokens]
    stored = [
        each if own else each[2:] if each.startswith("##") else f"\u2581{each}"
        for each, own in zip(tokens, special, strict=True)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(stored)
    uses = [TokenType.CONTROL if own else TokenType.NORMAL for own in special]
    uses[found["[UNK]"]] = TokenType.UNKNOWN
    writer.add_token_types(uses)
    writer.add_unk_token_id(found["[UNK]"])
    writer.add_bos_token_id(found["[CLS]"])
    writer.add_sep_token_id(found["[SEP]"])
    writer.add_pad_token_id(found["[PAD]"])


@pytest.mark.parametrize(
    ("kind", "pooling", "form"),
    [
        ("bert", 1, ""),
        ("bert", 2, ""),
        ("jina", 1, ""),
        ("jina-code", 1, ""),
        ("jina-code", 1, "apart"),
        ("jina_embeddings_v3", 1, ""),
        ("nomic_bert", 1, ""),
        ("xlm-roberta", 2, ""),
        ("xlm-roberta", 2, "whole"),
    ],
)
def test_vectors_are_those_of_the_checkpoint(tmp_path, kind, pooling, form):
    folder = tmp_path / "checkpoint"
    options = {"pad_token_id": 1} if kind == "xlm-roberta" else {}
    if kind in ("jina", "jina-code"):
        make_jina(folder, code=kind == "jina-code")
    else:
        make_encoder(folder, kind, ("", "mean_tokens", "cls_token")[pooling], **options)
    write_encoder(folder, tmp_path / "model.gguf", pooling, form=form)
    for name, source in (("a", folder), ("b", tmp_path / "model.gguf")):
        export.make(source, tmp_path / name, options=ExportOptions("fp32"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LLM(tmp_path / "a", **PLAIN) as one, LLM(tmp_path / "b", **PLAIN) as other:
        for text in [*TEXTS, "\u00c9t\u00e9, TREE!", "[SEP] a", "\u6728", "\uff21 tree"]:
            assert other.embedder.tokens(text) == [tokenizer.encode(text).ids]
        expected = tokenizer.encode("a", "b")
        assert other.tokenizer.pair("a", "b", 99) == (expected.ids, expected.type_ids)
        expected = one.embed(TEXTS)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.allclose(other.embed(TEXTS), expected, atol=1e-5)


def test_white_space_and_wide_letters_are_read_as_sentencepiece_does(tmp_path):
    make_encoder(tmp_path / "checkpoint", "xlm-roberta", "cls_token", pad_token_id=1)
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", 2)
    file = load_checkpoint(tmp_path / "model.gguf").tokenizer_files["tokenizer.json"]
    read = Tokenizer.from_str(file).encode
    assert read("  the  tree ").tokens == ["<s>", "\u2581the", "\u2581tree", "</s>"]
    assert read("\uff21").ids == read("A").ids


@pytest.mark.parametrize("pooling", [None, 0, 4])
def test_scores_are_those_of_the_checkpoint(tmp_path, pooling):
    """Files of the converter itself tell nothing of pooling, but hold what makes scores."""
    folder = tmp_path / "checkpoint"
    make_ranker(folder, "xlm-roberta", pad_token_id=1)
    write_encoder(folder, tmp_path / "model.gguf", pooling)
    for name, source in (("a", folder), ("b", tmp_path / "model.gguf")):
        export.make(source, tmp_path / name, options=ExportOptions("fp32"))
    with LLM(tmp_path / "a", **PLAIN) as one, LLM(tmp_path / "b", **PLAIN) as other:
        expected = [(each.index, each.score) for each in one.rerank(QUERY, TEXTS)]
        found = [(each.index, each.score) for each in other.rerank(QUERY, TEXTS)]
    assert [index for index, _ in found] == [index for index, _ in expected]
    assert np.allclose(found, expected, atol=1e-5)


def test_a_file_without_a_pooling_means_all_rows(tmp_path):
    make_encoder(tmp_path / "checkpoint", "bert")
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", None)
    assert load_checkpoint(tmp_path / "model.gguf").embedding.pooling == "mean"
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", 4)
    with pytest.raises(CheckpointError, match=r"has no tensor cls\.output\.weight"):
        load_checkpoint(tmp_path / "model.gguf")
    make_encoder(tmp_path / "other", "nomic_bert")
    write_encoder(tmp_path / "other", tmp_path / "model.gguf", 4)
    with pytest.raises(UnsupportedModelError, match=r"pooling_type=4 is not supported"):
        load_checkpoint(tmp_path / "model.gguf")


def test_files_of_jinas_first_rerankers_lack_a_layer(tmp_path):
    make_jina_ranker(tmp_path / "checkpoint")
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", None)
    with pytest.raises(CheckpointError, match=r"llama.cpp leaves out a layer .* use the"):
        load_checkpoint(tmp_path / "model.gguf")
