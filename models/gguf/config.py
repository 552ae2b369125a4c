"""The config of a model in a GGUF file, in the terms of transformers' config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError
from edgespec.models.gguf.tensors import stored_rows
from edgespec.models.rope import DEFAULT_THETA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import Fields
    from edgespec.models.gguf.header import Entry
    from edgespec.models.gguf.names import Naming

_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_ROPE = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
"""RoPE parameters by name, and what follows `rope.scaling.` in GGUF."""

# llama.cpp divides the angles of each dimension by one of these, whatever the architecture.
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


class ConfigReader:
    """Makes a config.json out of metadata.

    Args:
        metadata: The metadata, with the file as source.
        kind: The architecture, with which names of its fields begin.
        naming: The architecture in the terms of transformers.
        entries: All tensors by their names in the file.
    """

    def __init__(
        self,
        metadata: Fields,
        kind: str,
        naming: Naming,
        entries: Mapping[str, Entry],
    ) -> None:
        self._metadata = metadata
        self._kind = kind
        self._naming = naming
        self._entries = entries

    def config(self, eos_ids: tuple[int, ...]) -> dict[str, object]:
        """Returns the content of config.json.

        Raises:
            CheckpointError: A field is missing or has an invalid value.
            UnsupportedModelError: A field needs something that is not implemented.
        """
        metadata, kind, head_dim = self._metadata, self._kind, self.head_dim
        if self._integer("attention.value_length", head_dim) != head_dim:
            name = f"{kind}.attention.value_length"
            raise metadata.unsupported(name, f"use a file where it is {head_dim}")
        layers = range(self._integer("block_count", most=2**12))
        config: dict[str, object] = {
            "model_type": self._naming.model_type,
            "vocab_size": self._rows("token_embd.weight"),
            "num_key_value_heads": self._integer("attention.head_count_kv", self._heads),
            "head_dim": head_dim,
            "rms_norm_eps": metadata.number(f"{kind}.attention.layer_norm_rms_epsilon"),
            "rope_theta": metadata.number(f"{kind}.rope.freq_base", DEFAULT_THETA),
            "rope_scaling": self._rope(),
            "partial_rotary_factor": self._integer("rope.dimension_count", head_dim) / head_dim,
            "tie_word_embeddings": "output.weight" not in self._entries,
            "attention_bias": any(f"blk.{each}.attn_q.bias" in self._entries for each in layers),
            "mlp_bias": any(f"blk.{each}.ffn_gate.bias" in self._entries for each in layers),
            "eos_token_id": list(eos_ids),
            **{name: self._integer(place) for name, place in _SIZES.items()},
            **{
                name: metadata.number(f"{kind}.{place}")
                for name, place in self._naming.numbers.items()
            },
            **self._naming.constants,
        }
        return config | (self._windows() if self._naming.window else {}) | self._scale()

    @property
    def head_dim(self) -> int:
        """Size of a head.

        Raises:
            CheckpointError: The fields that it follows from are missing or invalid.
        """
        usual = self._integer("embedding_length") // self._heads
        return self._integer("attention.key_length", max(usual, 1))

    @property
    def _heads(self) -> int:
        return self._integer("attention.head_count")

    def _rows(self, name: str) -> int:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(
                f"{self._metadata.source} has no tensor {name}: download the file again, "
                "or use another"
            )
        return entry.shape[0]

    def _windows(self) -> dict[str, object]:
        """Which layers have a window, if the file says so, and how it is rotated there."""
        found: dict[str, object] = {"sliding_window": self._integer("attention.sliding_window")}
        pattern = self._metadata.get(f"{self._kind}.attention.sliding_window_pattern")
        if isinstance(pattern, list):
            kinds = ["sliding_attention" if each else "full_attention" for each in pattern]
            found["layer_types"] = kinds
        elif pattern is not None:
            found["sliding_window_pattern"] = pattern
        base = f"{self._kind}.rope.freq_base_swa"
        if self._metadata.get(base) is not None:
            found["rope_local_base_freq"] = self._metadata.number(base)
        return found

    def _scale(self) -> dict[str, object]:
        """What scores are divided by the root of, where the size of a head does not say it."""
        if self._naming.widest is None:
            return {}
        wide = self._integer("block_count") == self._naming.widest
        size = self._integer("embedding_length") // self._heads if wide else self.head_dim
        return {"query_pre_attn_scalar": size}

    def _integer(self, name: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        return self._metadata.integer(f"{self._kind}.{name}", default, most)

    def _rope(self) -> dict[str, object] | None:
        """The RoPE parameters; None for the default."""
        place = f"{self._kind}.rope.scaling"
        kind = self._metadata.get(f"{place}.type")
        given: dict[str, object] = {
            name: self._metadata.get(f"{place}.{suffix}") for name, suffix in _ROPE.items()
        }
        plain, short, long = (
            self._factors(name) if name in self._entries else None for name in _FACTORS
        )
        if plain is not None:  # as Llama 3 has them; they change angles and no scores
            return {"rope_type": "llama3", "factors": plain}
        if short is not None and long is not None:
            factor = self._metadata.get(f"{place}.attn_factor")
            lists = {"short_factor": short, "long_factor": long, "attention_factor": factor}
            return {"rope_type": "longrope", **given, **lists}
        if kind in (None, "none"):
            return None
        if kind not in ("linear", "yarn"):
            raise self._metadata.unsupported(f"{place}.type", "use a file with linear or yarn")
        if kind == "yarn" and self._metadata.get(f"{place}.yarn_log_multiplier"):
            raise self._metadata.unsupported(f"{place}.yarn_log_multiplier", "use another file")
        return {"rope_type": kind, **given}

    def _factors(self, name: str) -> list[float]:
        """Factors of the angles of half a head."""
        entry, half = self._entries[name], self.head_dim // 2
        if entry.shape != (half,):
            raise CheckpointError(
                f"{entry.path}: {name} has shape {list(entry.shape)}, the heads ask for "
                f"[{half}]: download the file again, or use another"
            )
        values = entry.encoding.decode(stored_rows(entry, 0, half))
        return [float(value) for value in values.flat]
