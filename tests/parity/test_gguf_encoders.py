"""Encoders in GGUF files: the vectors and tokens of the checkpoints that they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from encoders import SIZES, TEXTS, make_encoder
from gguf import GGUFWriter, TokenType
from native_llms import with_library
from tokenizers import Tokenizer

from edgespec import LLM, export
from edgespec.errors import UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import SafetensorsFolder, load_checkpoint

pytestmark = with_library
PLAIN = {"threads": 1}
KINDS = {"bert": gguf.MODEL_ARCH.BERT, "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT}


def write_encoder(folder: Path, file: Path, pooling: int | None, causal: bool = False) -> None:
    """Write a checkpoint as llama.cpp's converter does."""
    config = json.loads((folder / "config.json").read_text())
    kind = KINDS[config["model_type"]]
    writer = GGUFWriter(str(file), gguf.MODEL_ARCH_NAMES[kind])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(causal)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    if config["model_type"] == "nomic_bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    write_vocabulary(writer, folder)
    tensors = SafetensorsFolder(folder)
    names = gguf.get_tensor_name_map(kind, SIZES["num_hidden_layers"])
    read = {name: tensors.read(name) for name in tensors.names if "pooler" not in name}
    for name, values in fused(read).items():
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


@pytest.mark.parametrize(("kind", "pooling"), [("bert", 1), ("bert", 2), ("nomic_bert", 1)])
def test_vectors_are_those_of_the_checkpoint(tmp_path, kind, pooling):
    folder = tmp_path / "checkpoint"
    make_encoder(folder, kind, ("", "mean_tokens", "cls_token")[pooling])
    write_encoder(folder, tmp_path / "model.gguf", pooling)
    for name, source in (("a", folder), ("b", tmp_path / "model.gguf")):
        export.make(source, tmp_path / name, options=ExportOptions("fp32"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LLM(tmp_path / "a", **PLAIN) as one, LLM(tmp_path / "b", **PLAIN) as other:
        for text in [*TEXTS, "\u00c9t\u00e9, TREE!", "[SEP] a", "\u6728"]:
            assert other.embedder.tokens(text) == [tokenizer.encode(text).ids]
        expected = tokenizer.encode("a", "b")
        assert other.tokenizer.pair("a", "b", 99) == (expected.ids, expected.type_ids)
        expected = one.embed(TEXTS)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.allclose(other.embed(TEXTS), expected, atol=1e-5)


def test_a_file_without_a_pooling_means_all_rows(tmp_path):
    make_encoder(tmp_path / "checkpoint", "bert")
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", None)
    assert load_checkpoint(tmp_path / "model.gguf").embedding.pooling == "mean"
    write_encoder(tmp_path / "checkpoint", tmp_path / "model.gguf", 4)
    with pytest.raises(UnsupportedModelError, match=r"pooling_type=4 is not supported"):
        load_checkpoint(tmp_path / "model.gguf")
