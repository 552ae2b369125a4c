"""Reads tensors from a folder of safetensors files: one tensor, or some rows of it, at a time.

The files are mapped here rather than by the safetensors package, which keeps a whole file mapped
(its pages then count as resident) and copies a tensor once more on the way to numpy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import ml_dtypes
import numpy as np

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.fields import SHARE, SMALL, ConfigFields, unreadable
from edgespec.models.formats.entries import Entries, TensorEntry, mapped
from edgespec.models.formats.tensors import check_rows
from edgespec.system.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import BlockRows, Blocks

T = TypeVar("T", np.int8, np.int32)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
_INTEGERS: dict[str, np.dtype[np.generic]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
_STORED = {
    **_DTYPES,
    **_INTEGERS,
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_BYTES: dict[str, np.dtype[np.generic]] = {"U8": np.dtype("u1")}
_NAME_LIMIT = 255  # bytes of a file's name, beyond which systems refuse even to look
_HEADER_LIMIT = 100_000_000  # bytes, the format's own


@dataclass(frozen=True)
class _Entry(TensorEntry):
    """Where a tensor lies, and the name of its dtype."""

    dtype: str


class SafetensorsFolder(Entries[_Entry]):
    """A `TensorSource` of one safetensors file, or of the shards that an index names.

    Args:
        folder: The folder.
        named: Returns a tensor's name here from its name in the files; None: it is left out.
        modules: Folders below it with a file of their own, with whose names and a dot the names of
            the tensors there begin.
        single: Name of the file, where it is one.

    Raises:
        CheckpointError: A file is missing, truncated or corrupt.
    """

    def __init__(
        self,
        folder: Path,
        named: Callable[[str], str | None] = str,
        modules: Sequence[str] = (),
        single: str = SINGLE_FILE,
    ) -> None:
        if (folder / single).is_file():
            entries = _read_header(folder / single)
        elif (folder / INDEX_FILE).is_file():
            entries = _read_shards(folder / INDEX_FILE)
        else:
            raise CheckpointError(
                f"{folder} has neither {single} nor {INDEX_FILE}: give a GGUF file itself, "
                "and PyTorch's weights as transformers' save_pretrained writes them"
            )
        found = {own: entry for name, entry in entries.items() if (own := named(name)) is not None}
        for module in modules:
            below = _read_header(folder / module / SINGLE_FILE)
            found |= {f"{module}.{name}": entry for name, entry in below.items()}
        super().__init__(folder, found)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`; dtypes that can be read are bf16, fp16 and fp32."""
        entry = self.entry(name)
        _dtype(name, entry)
        return entry.shape

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        entry = self.entry(name)
        return self._copy(name, entry.start, entry.shape)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        entry = self.entry(name)
        rows = entry.shape[0]
        check_rows(name, start, stop, rows)
        offset = entry.start + start * (entry.nbytes // rows)
        return self._copy(name, offset, (stop - start, *entry.shape[1:]))

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`: dtypes that can be read are never in blocks."""
        self.entry(name)
        return None

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        raise ValueError(f"{name} is not in blocks: its rows {start}:{stop} are plain numbers")

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`: matrices of bf16, fp16 and fp32."""
        entry = self.entry(name)
        return entry.dtype.lower() if entry.dtype in _DTYPES and len(entry.shape) == 2 else None

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        entry = self.entry(name)
        if self.encoding(name) is None:
            raise ValueError(f"{name} is no matrix of bf16, fp16 or fp32")
        rows = entry.shape[0]
        check_rows(name, start, stop, rows)
        nbytes = entry.nbytes // rows
        offset = entry.start + start * nbytes
        shape = (stop - start, nbytes)
        return np.array(mapped(entry.path, _BYTES["U8"], offset, shape), np.uint8)

    def read_integers(self, name: str) -> NDArray[np.int64]:
        """Reads a whole tensor of 32-bit or 64-bit integers, in its own shape.

        Raises:
            CheckpointError: There is no such tensor, it is damaged, or the file has changed.
            UnsupportedModelError: It holds something else.
        """
        entry = self.entry(name)
        dtype = _dtype(name, entry, _INTEGERS)
        return mapped(entry.path, dtype, entry.start, entry.shape).astype(np.int64)

    def dtype(self, name: str) -> str:
        """The name that the format has for the dtype of a tensor, such as F8_E4M3.

        Raises:
            CheckpointError: There is no such tensor.
        """
        return self.entry(name).dtype

    def stored(self, name: str) -> NDArray[np.generic]:
        """A whole tensor as it is stored, mapped: rows and columns are read when they are used.

        Raises:
            CheckpointError: There is no such tensor, or the file has changed since it was opened.
            UnsupportedModelError: It has another dtype than floats of 8 to 32 bits and signed
                integers.
        """
        entry = self.entry(name)
        dtype = _dtype(name, entry, _STORED)
        if not entry.nbytes:
            return np.empty(entry.shape, dtype)  # nothing can be mapped
        return mapped(entry.path, dtype, entry.start, entry.shape)

    def integers(self, name: str, dtype: type[T], dimensions: int) -> NDArray[T]:
        """The same for integers of one dtype and of so many dimensions, of which none is 0.

        Raises:
            CheckpointError: There is no such tensor, it is something else, or the file has changed.
        """
        found = self.stored(name)
        if found.dtype != dtype or found.ndim != dimensions or not found.size:
            raise CheckpointError(
                f"{self.place(name)}: {name} has dtype {self.dtype(name)} and shape "
                f"{list(found.shape)}, not {np.dtype(dtype).name} in {dimensions} dimensions: use "
                "config and weights of the same model"
            )
        return found.view(dtype)

    def byte_shape(self, name: str) -> tuple[int, ...]:
        """See `edgespec.models.formats.expert_tensors.ByteSource`."""
        entry = self.entry(name)
        dtype = _dtype(name, entry, _BYTES)
        if entry.nbytes != math.prod(entry.shape) * dtype.itemsize:
            raise _damaged(entry.path, f"{name}: {entry.nbytes} bytes for {list(entry.shape)}")
        return entry.shape

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `edgespec.models.formats.expert_tensors.ByteSource`."""
        entry, (rows, *shape) = self.entry(name), self.byte_shape(name)
        check_rows(name, start, stop, rows)
        offset = entry.start + start * math.prod(shape)
        return np.array(mapped(entry.path, _BYTES["U8"], offset, (stop - start, *shape)), np.uint8)

    def _copy(self, name: str, offset: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Part of a file as float32; the mapping ends here, and with it its resident pages."""
        entry = self.entry(name)
        return np.array(mapped(entry.path, _dtype(name, entry), offset, shape), dtype=np.float32)


def _dtype(
    name: str, entry: _Entry, known: Mapping[str, np.dtype[np.generic]] = _DTYPES
) -> np.dtype[np.generic]:
    try:
        return known[entry.dtype]
    except KeyError:
        wanted = (
            "bf16, fp16 or fp32"
            if known is _DTYPES
            else "bytes"
            if known is _BYTES
            else "32-bit or 64-bit integers"
        )
        raise UnsupportedModelError(
            f"{entry.path}: {name} has dtype {entry.dtype}, which is not supported: "
            f"use a checkpoint in {wanted}"
        ) from None


def _read_shards(index: Path) -> dict[str, _Entry]:
    """The entries of all tensors that an index names."""
    shards: dict[str, dict[str, _Entry]] = {}
    entries: dict[str, _Entry] = {}
    weight_map = ConfigFields.read(index).group("weight_map")
    for name, file in weight_map.values.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".."):
            raise weight_map.invalid(name, "must be the name of a file beside the index")
        if len(file.encode(errors="replace")) > _NAME_LIMIT:
            raise weight_map.invalid(name, "must be the name of a file beside the index")
        if file not in shards:
            if not (index.parent / file).is_file():
                raise CheckpointError(
                    f"{index.parent / file} is missing, which {INDEX_FILE} names: "
                    "download the checkpoint again"
                )
            shards[file] = _read_header(index.parent / file)
        if name not in shards[file]:
            raise weight_map.invalid(name, "is not in that shard")
        entries[name] = shards[file][name]
    return entries


def _read_header(path: Path) -> dict[str, _Entry]:
    """The entries of a safetensors file: 8 bytes of length, a JSON header, the tensors' bytes."""
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            most = min(size - 8, max(SMALL, size // SHARE), _HEADER_LIMIT)
            if not 0 < length <= most:
                raise _damaged(path, f"{size} bytes with a header of {length}")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = {name: _parse(path, 8 + length, **fields) for name, fields in header.items()}
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"header: {error}") from error
    for name, entry in entries.items():
        end = entry.start + entry.nbytes
        if end > size:
            raise _damaged(path, f"{name} ends at byte {end} of {size}")
        dtype = _STORED.get(entry.dtype)
        if dtype is not None and entry.nbytes != math.prod(entry.shape) * dtype.itemsize:
            stored = f"{entry.nbytes} bytes for {entry.dtype} {list(entry.shape)}"
            raise _damaged(path, f"{name}: {stored}")
    return entries


def _parse(path: Path, base: int, dtype: str, shape: list[int], data_offsets: list[int]) -> _Entry:
    """One entry of a header; ValueError or TypeError where the header breaks the format."""
    start, end = data_offsets
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, end - start)):
        raise ValueError(f"shape {shape}, data_offsets {data_offsets}")
    return _Entry(path, tuple(shape), base + start, end - start, str(dtype))


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is truncated or corrupt ({what}): download it again")
