"""How GGUF files store values: names, sizes, and the way back to float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from edgespec.models.formats.tensors import BlockRows, Blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q1_0", "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4",
)  # fmt: skip
_INTEGER = "I64"
_SIGNS = "Q1_0"


@dataclass(frozen=True)
class Encoding:
    """A way to store values: rows are cut into blocks, each of some bytes.

    Attributes:
        name: Its name in llama.cpp.
        block: Number of values in a block; 1: each value is by itself.
        nbytes: Bytes of a block.
    """

    name: str
    block: int
    nbytes: int

    @property
    def blocks(self) -> Blocks | None:
        """The blocks of integers with a scale that it consists of; None for all others.

        Those with a minimum (Q4_1) or with scales of scales (Q4_K) are no such blocks.
        """
        bits = {"Q4_0": 4, "Q8_0": 8}.get(self.name)
        return None if bits is None else Blocks(bits, self.block)

    def decode(self, stored: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Returns the values of rows, [rows, bytes] uint8, as [rows, width] float32.

        In damaged files some are not finite, which is for the reader of the values to see.
        """
        if self.name == _INTEGER:
            return stored.view("<i8").astype(np.float32)
        if self.name == _SIGNS:
            return _signs(stored.reshape(-1, self.nbytes)).reshape(len(stored), -1)
        with np.errstate(all="ignore"):
            values = quants.dequantize(stored, GGMLQuantizationType[self.name])
        return np.asarray(values, dtype=np.float32)

    def decode_blocks(self, stored: NDArray[np.uint8]) -> BlockRows:
        """Returns the levels and scales of rows, [rows, bytes] uint8, if it has `blocks`."""
        rows = len(stored)
        parts = stored.reshape(rows, -1, self.nbytes)
        scales = np.ascontiguousarray(parts[..., :2]).view("<f2")[..., 0].astype(np.float32)
        packed = parts[..., 2:]
        if self.name == "Q4_0":  # the low halves of the bytes are the first values of a block
            levels = np.concatenate([packed & 15, packed >> 4], axis=-1)
        else:
            levels = packed ^ 128  # signed bytes, from -128 on
        return BlockRows(levels.reshape(rows, -1), scales, None)


def _signs(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the values of blocks of Q1_0, which the `gguf` package does not read.

    A block has a scale in half precision, and a bit for each value, the lowest first: its sign, set
    for plus (llama.cpp, pull request 21273).
    """
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    plus = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(plus, scales, -scales)


ENCODINGS = {
    int(kind): Encoding(kind.name, *GGML_QUANT_SIZES[kind])
    for kind in (GGMLQuantizationType[name] for name in _READ)
}
"""The encodings that can be read, by their number in a file."""

INTEGERS = {int(GGMLQuantizationType.I64): Encoding(_INTEGER, 1, 8)}
"""That of ids of tokens, which vectors alone may have."""

UNREAD = {int(kind): kind.name for kind in GGMLQuantizationType if int(kind) not in ENCODINGS}
"""The names of those that cannot."""
