"""Writes and reads checkpoint folders in the layout of ``transformers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from data import END
from network import Decoder, Shape
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

PREFIX = "model."


def config_of(shape: Shape) -> dict[str, Any]:
    """``config.json`` for ``shape``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dtype": "bfloat16",
        "eos_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inter,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocab,
    }


def write_folder(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``model`` as bfloat16 and ``tokenizer`` to ``folder``, loadable by ``transformers``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        PREFIX + name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        "content": END,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }
    documents: dict[str, dict[str, Any]] = {
        "config.json": config_of(model.shape),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 0},
        "special_tokens_map.json": {"bos_token": special, "eos_token": special},
        "tokenizer_config.json": {
            "added_tokens_decoder": {"0": special | {"special": True}},
            "bos_token": END,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": model.shape.context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")


def load_folder(model: Decoder, folder: Path) -> None:
    """Load a checkpoint folder's weights into ``model``, which must have the same shape."""
    weights = load_file(folder / "model.safetensors")
    named = {name.removeprefix(PREFIX): value.float() for name, value in weights.items()}
    model.load_state_dict(named)


def read_folder(folder: Path) -> Decoder:
    """Build the model of a checkpoint folder, float32."""
    config = json.loads((folder / "config.json").read_text())
    model = Decoder(
        Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            inter=config["intermediate_size"],
            vocab=config["vocab_size"],
            context=config["max_position_embeddings"],
            rope_theta=config["rope_theta"],
            eps=config["rms_norm_eps"],
        )
    )
    load_folder(model, folder)
    return model.eval()


@torch.no_grad()
def check_folder(folder: Path) -> float:
    """The largest difference between this package's logits and those of ``transformers``.

    A folder is written for ``transformers``, so it is worth one forward pass to know that the
    weights mean there what they meant in training.
    """
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = read_folder(folder)
    ids = torch.arange(1, 65)[None] * 37 % model.shape.vocab
    own = model.logits(model(ids, dtype=torch.float32))
    return float((own - reference(ids).logits).abs().max())
