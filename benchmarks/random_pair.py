"""Writes a random target and draft with a vocabulary of any size, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LAYERS, _HIDDEN, _INTERMEDIATE, _HEADS, _KV_HEADS = 2, 128, 256, 4, 2


@dataclass(frozen=True)
class RandomPair:
    """Properties of the pair. Its texts are noise; it costs as much as real models of its size.

    Attributes:
        vocab_size: Tokens, all of them known to the tokenizer.
        logit_std: How peaked it is. At 1 all tokens are about as likely, as in a model that was
            never trained; from about 7 on a few tokens hold most of the probability.
        draft_noise: Share of noise in the draft's head, which is the target's otherwise.
        seed: Of all weights.
    """

    vocab_size: int
    logit_std: float
    draft_noise: float = 0.3
    seed: int = 0

    def write(self, target: Path, draft: Path) -> None:
        """Writes two checkpoint folders of the Qwen2 architecture."""
        rng = np.random.default_rng(self.seed)
        tensors = _layers(rng)
        tensors["model.embed_tokens.weight"] = _normal(rng, self.vocab_size, _HIDDEN)
        head = _normal(rng, self.vocab_size, _HIDDEN)
        noise = _normal(rng, self.vocab_size, _HIDDEN)
        scale = self.logit_std * _HIDDEN**-0.5  # the head sees values of about one
        share = self.draft_noise
        for folder, rows in ((target, head), (draft, (1 - share**2) ** 0.5 * head + share * noise)):
            folder.mkdir(parents=True)
            stored = {**tensors, "lm_head.weight": rows * np.float32(scale)}
            half = {name: tensor.astype(np.float16) for name, tensor in stored.items()}
            save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "config.json").write_text(json.dumps(self._config()), encoding="utf-8")
            self.tokenizer().save(str(folder / "tokenizer.json"))

    def _config(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2",
            "vocab_size": self.vocab_size,
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
        }

    def tokenizer(self) -> Tokenizer:
        """Creates a tokenizer with a word per token and byte-level decoding."""
        words = {f"Ġw{number}": number for number in range(self.vocab_size)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="Ġw0"))
        bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        words_of_text = pre_tokenizers.Split(Regex(" w[0-9]+"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words_of_text, bytes_of_words])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


def _layers(rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    kv_size = _HIDDEN // _HEADS * _KV_HEADS
    tensors = {"model.norm.weight": np.ones(_HIDDEN, np.float32)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(_HIDDEN, np.float32)
        for name, rows in (("q", _HIDDEN), ("k", kv_size), ("v", kv_size)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = _linear(rng, rows, _HIDDEN)
            tensors[f"{prefix}self_attn.{name}_proj.bias"] = np.zeros(rows, np.float32)
        tensors[f"{prefix}self_attn.o_proj.weight"] = _linear(rng, _HIDDEN, _HIDDEN)
        for name in ("gate", "up"):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = _linear(rng, _INTERMEDIATE, _HIDDEN)
        tensors[f"{prefix}mlp.down_proj.weight"] = _linear(rng, _HIDDEN, _INTERMEDIATE)
    return tensors


def _linear(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    weight: NDArray[np.float32] = _normal(rng, rows, columns) * np.float32(columns**-0.5)
    return weight


def _normal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return rng.standard_normal((rows, columns), dtype=np.float32)
