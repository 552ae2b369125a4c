"""Configs of models in GGUF files whose layers are of several kinds, and the order of their rows.

llama.cpp has the value heads of Qwen3.5's linear attention by their place in the group of a key
head, so that those of all groups follow one another; transformers has them group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.parts import TensorRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import TensorSource


class Lfm2Reader(ConfigReader):
    """LFM2: layers that have no key heads are convolutions."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        types = ["full_attention" if each else "conv" for each in self.key_heads()]
        epsilon = self.metadata.number(f"{self.kind}.attention.layer_norm_rms_epsilon")
        return {"layer_types": types, "norm_eps": epsilon}


class DeltaReader(ConfigReader):
    """Qwen3-Next: some layers, or every n-th, are attention, the others are gated delta rule."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        listed = self.get("attention.recurrent_layers")
        types: dict[str, object]
        types = {"full_attention_interval": self.integer("full_attention_interval", 4)}
        if isinstance(listed, list):  # with the layers that only draft
            kinds = ("full_attention", "linear_attention")
            types = {"layer_types": [kinds[bool(each)] for each in listed[: self.layers]]}
        return {
            **types,
            "linear_conv_kernel_dim": self.integer("ssm.conv_kernel"),
            "linear_key_head_dim": self.integer("ssm.state_size"),
            "linear_value_head_dim": self._value_size,
            "linear_num_key_heads": self._key_count,
            "linear_num_value_heads": self._value_count,
        }

    @property
    def _key_count(self) -> int:
        return self.integer("ssm.group_count")

    @property
    def _value_count(self) -> int:
        return self._multiple("ssm.time_step_rank", "ssm.group_count")

    @property
    def _value_size(self) -> int:
        return self._multiple("ssm.inner_size", "ssm.time_step_rank") // self._value_count

    def _multiple(self, name: str, of: str) -> int:
        """A field whose value must be a multiple of another's."""
        value = self.integer(name)
        divisor = self.integer(of)
        if value % divisor:
            rule = f"must be a multiple of {of}={divisor}"
            raise self.metadata.invalid(f"{self.kind}.{name}", rule)
        return value


class Qwen35Reader(DeltaReader):
    """Qwen3.5, whose value heads are in another order."""

    def rows(self, tensors: TensorSource) -> dict[str, TensorRows]:
        """See `ConfigReader`."""
        keys = 2 * self._key_count * self.integer("ssm.state_size")
        # Rows before those of the value heads, and the rows of a value head.
        mixed = (keys, self._value_size)
        gate = (0, self._value_size)
        single = (0, 1)
        kinds = {
            "in_proj_qkv.weight": mixed,
            "conv1d.weight": mixed,
            "in_proj_z.weight": gate,
            "in_proj_a.weight": single,
            "in_proj_b.weight": single,
            "A_log": single,
            "dt_bias": single,
        }
        parts = dict[str, TensorRows]()
        for name in tensors.names:
            before, size = kinds.get(name.rpartition(".linear_attn.")[2], (0, 0))
            total = before + size * self._value_count
            # Sizes that contradict the tensors are found when these are compared with the config.
            if size and tensors.shape(name)[0] == total:
                order = np.append(np.arange(before), before + self._order(size))
                parts[name] = TensorRows(name, order, total)
        return parts

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """See `ConfigReader`."""
        size = self._value_size
        width = self.integer("ssm.inner_size")
        return {
            f"model.layers.{layer}.linear_attn.out_proj.weight": self._order(size)
            for layer in range(self.layers)
            if self.shape(f"blk.{layer}.ssm_out.weight")[1:] == (width,)
        }

    def _order(self, size: int) -> NDArray[np.int64]:
        """The stored number of each dimension of all value heads, heads of `size` dimensions."""
        heads = np.arange(self._value_count).reshape(-1, self._key_count).T.ravel()
        return (heads[:, None] * size + np.arange(size)).ravel()
