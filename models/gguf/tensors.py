"""The tensors of a GGUF file, under the names and in the order of transformers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.tensors import BlockRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.gguf.header import Entry
    from edgespec.models.gguf.names import Naming
    from edgespec.models.tensors import Blocks

_TURNED = (".self_attn.q_proj.weight", ".self_attn.q_proj.bias",
           ".self_attn.k_proj.weight", ".self_attn.k_proj.bias")  # fmt: skip


class GgufTensors:
    """A `TensorSource` of a GGUF file, or of the files that one was split into.

    Args:
        place: The file, for messages.
        entries: All tensors by their names in the file.
        naming: The file's architecture.
        head_dim: Size of a head.
    """

    def __init__(
        self, place: str, entries: Mapping[str, Entry], naming: Naming, head_dim: int
    ) -> None:
        self._place = place
        self._entries = {naming.translated(name): entry for name, entry in entries.items()}
        self._naming = naming
        self._head_dim = head_dim

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        return frozenset(self._entries)

    @property
    def nbytes(self) -> int:
        """See `TensorSource`."""
        return sum(entry.nbytes for entry in self._entries.values())

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        return str(self._entry(name).path)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`."""
        return self._entry(name).shape

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        return self.read_rows(name, 0, self._entry(name).shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`; of interleaved projections, whole heads are read."""
        stored, order = self._stored(name, start, stop)
        values = self._entry(name).encoding.decode(stored).reshape(-1, *self.shape(name)[1:])
        if order is not None:
            values = values[order]
        if self._naming.norm_offset and name.endswith("norm.weight"):
            values -= np.float32(self._naming.norm_offset)
        return values

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`: matrices in Q4_0 and Q8_0."""
        entry = self._entry(name)
        return entry.encoding.blocks if len(entry.shape) == 2 else None

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        if self.blocks(name) is None:
            raise ValueError(f"{name} is stored as {self._entry(name).encoding.name}")
        stored, order = self._stored(name, start, stop)
        rows = self._entry(name).encoding.decode_blocks(stored)
        return rows if order is None else BlockRows(rows.levels[order], rows.scales[order], None)

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{self._place} has no tensor {name}: download the file again, or use another"
            ) from None

    def _stored(
        self, name: str, start: int, stop: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.intp] | None]:
        """The bytes of rows start to stop, and which of them comes when; None: as they are."""
        rows, size = self.shape(name)[0], self._head_dim
        if not 0 <= start < stop <= rows:
            raise ValueError(f"rows {start}:{stop} of {name}, which has {rows}")
        if not self._naming.interleaved or not name.endswith(_TURNED) or rows % size:
            return stored_rows(self._entry(name), start, stop), None
        head, row = np.divmod(np.arange(start, stop), size)
        half, pair = np.divmod(row, size // 2)
        wanted = head * size + 2 * pair + half
        first = int(wanted.min())
        return stored_rows(self._entry(name), first, int(wanted.max()) + 1), wanted - first


def stored_rows(entry: Entry, start: int, stop: int) -> NDArray[np.uint8]:
    """Reads rows start to stop of a tensor as they are stored, [rows, bytes].

    The mapping ends here, and with it its resident pages.

    Raises:
        CheckpointError: The file has changed since its header was read.
    """
    nbytes = entry.nbytes // entry.shape[0]
    inner = math.prod(entry.shape[1:-1])
    shape = ((stop - start) * inner, nbytes // inner)
    try:
        return np.array(np.memmap(entry.path, np.uint8, "r", entry.start + start * nbytes, shape))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{entry.path} changed while it was read ({error}): download it again"
        ) from error
