"""The config of a model in a GGUF file, in the terms of transformers' config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError
from edgespec.models.formats.gguf.names import FACTORS
from edgespec.models.formats.gguf.tensors import stored_rows, turned_back
from edgespec.models.layers.rope import DEFAULT_THETA

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.gguf.header import GGUFEntry
    from edgespec.models.formats.gguf.names import Naming
    from edgespec.models.formats.parts import TensorRows
    from edgespec.models.formats.tensors import TensorSource

_SIZES = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_ORIGINAL = "original_max_position_embeddings"
_ROPE = {
    "factor": "factor",
    _ORIGINAL: "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
"""RoPE parameters by name, and what follows `rope.scaling.` in GGUF."""

_PRESENT = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_gate.bias"}
"""Fields of config.json by the tensors of a layer whose presence they tell."""


class ConfigReader:
    """Makes a config.json out of metadata, and finds what was put into another order.

    Attributes:
        metadata: The metadata, with the file as source.
        kind: The architecture, with which names of its fields begin.

    Args:
        metadata: See above.
        kind: See above.
        naming: The architecture in the terms of transformers.
        entries: All tensors by their names in the file.
    """

    def __init__(
        self,
        metadata: ConfigFields,
        kind: str,
        naming: Naming,
        entries: Mapping[str, GGUFEntry],
    ) -> None:
        self.metadata = metadata
        self.kind = kind
        self._naming = naming
        self._entries = entries

    def config(self, eos_ids: tuple[int, ...]) -> dict[str, object]:
        """Returns the content of config.json.

        Raises:
            CheckpointError: A field is missing or has an invalid value.
            UnsupportedModelError: A field needs something that is not implemented.
        """
        metadata = self.metadata
        naming = self._naming
        head_dim = self._key_length
        for name, allowed in naming.only.items():
            if self.get(name) not in allowed:
                raise metadata.unsupported(f"{self.kind}.{name}", "use another file of the model")
        self.check_sizes()
        rms, norm = (f"attention.layer_norm{each}epsilon" for each in ("_rms_", "_"))
        numbers = {"layer_norm_eps": norm} if naming.layer_norm else {"rms_norm_eps": rms}
        config: dict[str, object] = {
            "model_type": naming.model_type,
            "vocab_size": self.vocabulary(),
            "num_key_value_heads": max(self.key_heads()),
            "head_dim": self.head_dim,
            "rope_theta": metadata.number(f"{self.kind}.rope.freq_base", DEFAULT_THETA),
            "rope_scaling": self._rope(),
            "rope_parameters": self._sections(),  # not what such a model has by default
            "partial_rotary_factor": self._rotated / head_dim,
            "tie_word_embeddings": "output.weight" not in self._entries,
            "eos_token_id": list(eos_ids),
            "sliding_window": None,
            "is_causal": self.get("attention.causal"),
            **self._original_context(),
            **{
                name: self._anywhere(place)
                for name, place in {**_PRESENT, **naming.present}.items()
            },
            "intermediate_size": max(self.by_layer(self._width)),
            **{name: self.integer(place) for name, place in {**_SIZES, **naming.integers}.items()},
            **{
                name: metadata.number(f"{self.kind}.{place}")
                for name, place in {**numbers, **naming.numbers}.items()
            },
            "num_hidden_layers": self.layers,
            "mtp_num_hidden_layers": self.integer("block_count") - self.layers,
            **naming.constants,
        }
        windows = self._windows() if naming.window else {}
        return config | windows | self._scale() | self.special()

    def check_sizes(self) -> None:
        """Checks that values are as large as keys.

        Raises:
            UnsupportedModelError: They are not.
        """
        name = "attention.value_length"
        size = self._key_length
        if self.integer(name, size) != size:
            raise self.metadata.unsupported(f"{self.kind}.{name}", f"use a file where it is {size}")

    def special(self) -> dict[str, object]:
        """Returns fields of config.json that only architectures of one kind have."""
        return {}

    def rows(self, tensors: TensorSource) -> dict[str, TensorRows]:
        """Returns the tensors whose rows transformers has in another order than the file."""
        even = self.head_dim % 2 == 0  # all others are refused by the model's config
        return turned_back(tensors, self.head_dim) if self._naming.interleaved and even else {}

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Returns the order of the columns of matrices, where transformers has another."""
        return {}

    def vocabulary(self) -> int:
        """Returns the number of tokens, by the rows of the embedding."""
        return self.rows_of("token_embd.weight")

    def key_heads(self) -> list[int]:
        """Returns the number of key and value heads of each layer, alike in all that have some.

        Raises:
            CheckpointError: They differ, or are no numbers.
        """
        name = "attention.head_count_kv"
        value = self.get(name)
        if not isinstance(value, list):
            return [self.integer(name, self._heads)] * self.layers
        counts = [each for each in value if isinstance(each, int)]
        alike = len({each for each in counts if each}) == 1 and min(counts) >= 0
        if not alike or not len(counts) == len(value) == self.layers:
            rule = f"must be a list of {self.layers} equal numbers, or 0"
            raise self.metadata.invalid(f"{self.kind}.{name}", rule)
        return counts

    def by_layer(self, name: str) -> list[int]:
        """Returns a field of which each layer may have its own value, 0 among them.

        Raises:
            CheckpointError: It is neither a number nor a list of one for each layer.
        """
        value = self.get(name)
        if not isinstance(value, list):
            return [self.integer(name)] * self.layers
        counts = [each for each in value if isinstance(each, int) and each >= 0]
        if not self.layers <= len(counts) == len(value) or not any(counts):
            rule = f"must be a list of {self.layers} numbers, not all of them 0"
            raise self.metadata.invalid(f"{self.kind}.{name}", rule)
        return counts[: self.layers]

    @property
    def layers(self) -> int:
        """Number of layers, without those behind the model that only draft."""
        layers = self.integer("block_count", most=2**12)
        drafting = self.get("nextn_predict_layers")
        if isinstance(drafting, int) and 0 < drafting < layers:
            return layers - drafting
        return layers

    @property
    def head_dim(self) -> int:
        """Size of a head.

        Raises:
            CheckpointError: The fields that it follows from are missing or invalid.
        """
        return self._key_length

    @property
    def _key_length(self) -> int:
        usual = self.integer("embedding_length") // self._heads
        return self.integer("attention.key_length", max(usual, 1))

    @property
    def _width(self) -> str:
        """Field of MLPs' inner sizes; of experts' where all layers are mixtures of these."""
        name = "feed_forward_length"
        return name if self.get(name) is not None else f"expert_{name}"

    @property
    def _heads(self) -> int:
        return self.integer("attention.head_count")

    def rows_of(self, name: str) -> int:
        """Returns the number of rows of a tensor, by its name in the file.

        Raises:
            CheckpointError: There is none.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(
                f"{self.metadata.source} has no tensor {name}: download the file again, "
                "or use another"
            )
        return entry.shape[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor by its name in the file, () if there is none."""
        return self._entries[name].shape if name in self._entries else ()

    def _anywhere(self, place: str) -> bool:
        """Whether any layer has a tensor."""
        return any(f"blk.{layer}.{place}" in self._entries for layer in range(self.layers))

    def _original_context(self) -> dict[str, object]:
        """The context before it was extended, if it was."""
        length = self.get(f"rope.scaling.{_ROPE[_ORIGINAL]}")
        return {} if length is None else {_ORIGINAL: length}

    @property
    def _rotated(self) -> int:
        return self.integer("rope.dimension_count", self.head_dim)

    def _sections(self) -> dict[str, object]:
        """Which parts of heads turn by the place of a picture's row: by time, line and column."""
        found = self.get("rope.dimension_sections")
        return {"mrope_section": found[:3]} if isinstance(found, list) else {}

    def _windows(self) -> dict[str, object]:
        """Which layers have a window, if the file says so, and how it is rotated there."""
        if not self.get("attention.sliding_window"):  # absent or 0: none
            return {}
        found: dict[str, object] = {"sliding_window": self.integer("attention.sliding_window")}
        if self._naming.windowed:
            found["model_type"] = self._naming.windowed
        pattern = self.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            kinds = ["sliding_attention" if each else "full_attention" for each in pattern]
            found["layer_types"] = kinds
        elif pattern is not None:
            found["sliding_window_pattern"] = pattern
        base = f"{self.kind}.rope.freq_base_swa"
        if self.metadata.get(base) is not None:
            found["rope_local_base_freq"] = self.metadata.number(base)
        return found

    def _scale(self) -> dict[str, object]:
        """What scores are divided by the root of, where the size of a head does not say it."""
        if self._naming.widest is None:
            return {}
        wide = self.integer("block_count") == self._naming.widest
        size = self.integer("embedding_length") // self._heads if wide else self.head_dim
        return {"query_pre_attn_scalar": size}

    def get(self, name: str) -> object:
        """Returns a field of the architecture, None if it is absent."""
        return self.metadata.get(f"{self.kind}.{name}")

    def integer(self, name: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        """Returns a field of the architecture, a positive integer.

        Raises:
            CheckpointError: The field is something else, or absent without a default.
        """
        return self.metadata.integer(f"{self.kind}.{name}", default, most)

    def _rope(self) -> dict[str, object] | None:
        """The RoPE parameters; None for the default."""
        place = f"{self.kind}.rope.scaling"
        kind = self.metadata.get(f"{place}.type")
        given: dict[str, object] = {
            name: self.metadata.get(f"{place}.{suffix}") for name, suffix in _ROPE.items()
        }
        plain, short, long = (self.factors(name) for name in FACTORS)
        if plain is not None:  # as Llama 3 has them; they change angles and no scores
            return {"rope_type": "llama3", "factors": plain}
        if short is not None and long is not None:
            factor = self.metadata.get(f"{place}.attn_factor")
            lists = {"short_factor": short, "long_factor": long, "attention_factor": factor}
            return {"rope_type": "longrope", **given, **lists}
        if kind in (None, "none"):
            return None
        if kind not in ("linear", "yarn"):
            raise self.metadata.unsupported(f"{place}.type", "use a file with linear or yarn")
        multiplier = f"{place}.yarn_log_multiplier"
        unit = self._naming.log_multiplier
        scale = None
        if self.metadata.get(multiplier) is not None:
            if not unit:
                raise self.metadata.unsupported(multiplier, "use another file")
            scale = self.metadata.number(multiplier) / unit
        scales = {
            "mscale": scale,
            "mscale_all_dim": scale,
            "llama_4_scaling_beta": self.get("attention.temperature_scale"),
            "truncate": self._naming.model_type != "gpt_oss",
        }
        return {"rope_type": kind, **given, **scales}

    def factors(self, name: str) -> list[float] | None:
        """Returns factors of the angles of those dimensions of a head that are rotated.

        Raises:
            CheckpointError: They are not as many as the metadata say.
        """
        if name not in self._entries:
            return None
        entry = self._entries[name]
        half = self._rotated // 2
        if entry.shape != (half,):
            raise CheckpointError(
                f"{entry.path}: {name} has shape {list(entry.shape)}, the heads ask for "
                f"[{half}]: download the file again, or use another"
            )
        values = entry.encoding.decode(stored_rows(entry, 0, half))
        return [float(value) for value in values.flat]
