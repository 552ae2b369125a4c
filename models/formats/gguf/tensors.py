"""The tensors of a GGUF file, under the names and in the order of transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats import nvfp4
from edgespec.models.formats.entries import Entries, read_bytes
from edgespec.models.formats.gguf.names import BOTH, COPIES, FACTORS, NUMBER
from edgespec.models.formats.parts import TensorRows
from edgespec.models.formats.tensors import check_rows
from edgespec.models.layers.rope import rotation_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.gguf.header import GGUFEntry
    from edgespec.models.formats.gguf.names import Naming
    from edgespec.models.formats.tensors import BlockRows, Blocks, TensorSource

_TURNED = (".self_attn.q_proj.weight", ".self_attn.q_proj.bias",
           ".self_attn.k_proj.weight", ".self_attn.k_proj.bias")  # fmt: skip
_CONVOLUTIONS = (".conv.conv.weight", "conv1d.weight")
_FLAT = (".A_log", ".D", ".mamba.norm.weight", ".mixer.norm.weight")  # by head, and by group
_NORMS = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
_STORED_NORM = ".linear_attn.norm.weight"  # to which nothing was added
_SHARE = ".shared_expert_gate.weight"
_MOST_EXPERTS = 2**12
_WEIGHT = ".weight"
_SCALES = (".scale", ".input_scale")  # of the whole matrix, and of what is multiplied with it


class GgufTensors(Entries["GGUFEntry"]):
    """A `TensorSource` of a GGUF file, or of the files that one was split into.

    Args:
        place: The file, for messages.
        entries: All tensors by their names in the file.
        naming: The file's architecture.
        layers: Number of the model's layers.
        columns: The order of the stored columns of some matrices, by their names in transformers:
            [width] numbers of columns.
    """

    def __init__(
        self,
        place: str,
        entries: Mapping[str, GGUFEntry],
        naming: Naming,
        layers: int,
        columns: Mapping[str, NDArray[np.int64]],
    ) -> None:
        found = dict(_translated(entries, naming, layers))
        self._scales = {name: scale for name in found if (scale := _scale_of(found, name))}
        beside = {name.removesuffix(_WEIGHT) + each for name in self._scales for each in _SCALES}
        super().__init__(place, {name: found[name] for name in found.keys() - beside})
        self._naming = naming
        self._columns = columns

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`."""
        return self.entry(name).shape

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        return self.read_rows(name, 0, self.entry(name).shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        stored = self._stored(name, start, stop)
        if name in self._scales:
            values = nvfp4.values(self._scaled(name, stored))
        else:
            values = self.entry(name).encoding.decode(stored).reshape(-1, *self.shape(name)[1:])
        offset = self._naming.norm_offset
        if offset and name.endswith(_NORMS) and not name.endswith(_STORED_NORM):
            values -= np.float32(offset)
        if name.endswith(".A_log"):  # stored as the decay itself
            with np.errstate(all="ignore"):
                values = np.log(-values)
        order = self._columns.get(name)
        return values if order is None else np.take(values, order, axis=1)

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`: matrices in Q4_0 and Q8_0."""
        return None if self.encoding(name) is None else self.entry(name).encoding.blocks

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        encoding = self.entry(name).encoding
        if encoding.blocks is None:
            raise ValueError(f"{name} is stored as {encoding.name}")
        return encoding.decode_blocks(self.read_encoded(name, start, stop))

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`: matrices whose columns are in order, or move by whole blocks."""
        entry = self.entry(name)
        order = self._columns.get(name)
        if len(entry.shape) != 2:
            return None
        if order is not None and not _in_one_piece(order, entry.encoding.block):
            return None
        return nvfp4.SCALED if name in self._scales else entry.encoding.name.lower()

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        encoding = self.entry(name).encoding
        order = self._columns.get(name)
        if self.encoding(name) is None:
            raise ValueError(
                f"{name} is no matrix, or has columns in an order that splits blocks of "
                f"{encoding.name}"
            )
        stored = self._stored(name, start, stop)
        if order is not None:
            blocks = stored.reshape(len(stored), -1, encoding.nbytes)
            moved = np.take(blocks, order[:: encoding.block] // encoding.block, axis=1)
            stored = moved.reshape(stored.shape)
        return self._scaled(name, stored) if name in self._scales else stored

    def _scaled(self, name: str, stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
        scale = self._scales[name]
        (value,) = scale.encoding.decode(stored_rows(scale, 0, 1)).ravel()
        return nvfp4.scaled(stored, float(value))

    def _stored(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        check_rows(name, start, stop, self.shape(name)[0])
        return stored_rows(self.entry(name), start, stop)


def turned_back(tensors: TensorSource, head_dim: int) -> dict[str, TensorRows]:
    """Returns query and key projections with the dimensions of each head as transformers has them.

    Args:
        tensors: The tensors, in which dimensions 2i and 2i + 1 of a head turn together.
        head_dim: Size of a head, even.
    """
    order = rotation_order(head_dim, head_dim, interleaved=True)
    parts = dict[str, TensorRows]()
    for name in tensors.names:
        if name.endswith(_TURNED) and tensors.shape(name)[0] % head_dim == 0:
            rows = tensors.shape(name)[0]
            heads = np.arange(rows).reshape(-1, head_dim)
            parts[name] = TensorRows(name, heads[:, order].ravel(), rows)
    return parts


def _translated(
    entries: Mapping[str, GGUFEntry], naming: Naming, layers: int
) -> Iterator[tuple[str, GGUFEntry]]:
    """Yields names and places of tensors as transformers has them."""
    for stored, entry in entries.items():
        if stored in FACTORS or stored.endswith(COPIES):  # part of the config, or of the model
            continue
        name = naming.translated(stored, layers)
        shape = entry.shape
        # Experts, or heads, lie one behind the other, each as a matrix or bias of its own would.
        fits = len(shape) == 3 or (len(shape) == 2 and entry.encoding.block == 1)
        fits |= len(shape) == 1 and name.endswith(_SCALES)
        if NUMBER in name and name != stored and fits and shape[0] <= _MOST_EXPERTS:
            yield from _experts(name, entry)
        elif name.endswith(_CONVOLUTIONS) and len(shape) > 1:
            # Files of Kimi Linear have a one before the channels, too, which llama.cpp drops.
            yield name, replace(entry, shape=(math.prod(shape[:-1]), 1, shape[-1]))
        elif name.endswith(_FLAT):
            yield name, replace(entry, shape=(math.prod(shape),))
        elif name.endswith(_SHARE) and len(shape) == 1:
            yield name, replace(entry, shape=(1, *shape))
        else:
            yield name, entry


def _scale_of(entries: Mapping[str, GGUFEntry], name: str) -> GGUFEntry | None:
    """The number by which all weights of a matrix in NVFP4 are multiplied, if there is one."""
    if not name.endswith(_WEIGHT) or entries[name].encoding.name.lower() != nvfp4.NVFP4:
        return None
    scale = entries.get(name.removesuffix(_WEIGHT) + _SCALES[0])
    return scale if scale is not None and scale.shape == (1,) else None


def _experts(name: str, entry: GGUFEntry) -> Iterator[tuple[str, GGUFEntry]]:
    """Yields the matrices or biases of each expert; of a stack of gates above ups, both."""
    count, rows, *width = (*entry.shape, 1) if len(entry.shape) == 1 else entry.shape
    kinds = [name]
    if BOTH in name and rows % 2 == 0:
        kinds = [name.replace(BOTH, each) for each in ("gate_proj", "up_proj")]
    rows = rows // len(kinds)
    nbytes = entry.nbytes // count // len(kinds)
    for expert in range(count):
        for number, kind in enumerate(kinds):
            start = entry.start + (expert * len(kinds) + number) * nbytes
            own = replace(entry, shape=(rows, *width), start=start, nbytes=nbytes)
            yield kind.replace(NUMBER, str(expert)), own


def _in_one_piece(order: NDArray[np.int64], size: int) -> bool:
    """Whether an order of columns moves whole blocks of `size` only."""
    if len(order) % size:
        return False
    blocks = order.reshape(-1, size)
    starts = blocks[:, :1]
    return not (starts % size).any() and np.array_equal(blocks, starts + np.arange(size))


def stored_rows(entry: GGUFEntry, start: int, stop: int) -> NDArray[np.uint8]:
    """Reads rows start to stop of a tensor as they are stored, [rows, bytes].

    They are read and not mapped: a page of a mapping costs more than its bytes.

    Raises:
        CheckpointError: The file has changed since its header was read.
    """
    nbytes = entry.nbytes // entry.shape[0]
    inner = math.prod(entry.shape[1:-1])
    size = (stop - start) * nbytes
    offset = entry.start + start * nbytes
    stored = read_bytes(entry.path, offset, size)
    return stored.reshape((stop - start) * inner, nbytes // inner)
