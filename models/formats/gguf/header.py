"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

Files come from anywhere, so nothing is believed: a count is compared with the bytes that are left
before anything is allocated for it, and every tensor must lie within the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.fields import unreadable
from edgespec.models.formats.entries import TensorEntry
from edgespec.models.formats.gguf.encodings import ENCODINGS, INTEGERS, UNREAD, Encoding
from edgespec.system.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # the first one had counts of 32 bits
_ALIGNMENT = 32

# Far beyond any model: a vocabulary has up to 262144 tokens, and twice as many merges.
_MOST_FIELDS = 2**16
_MOST_TENSORS = 2**18
_MOST_VALUES = 2**22
# bytes
_LONGEST_NAME = 2**10
_LONGEST_TEXT = 2**24
_LONGEST_METADATA = 2**28
_MOST_DIMENSIONS = 4
_LENGTH = struct.Struct("<Q")  # of a text

# About the bytes of memory that things of a header take, the more so as they are processed. They
# may take half the file's size: a model's vocabulary is far smaller than its weights. A draft head
# has its model's: 262144 tokens with their kinds and scores, and twice as many merges, always fit.
_FIELD = 256
_TENSOR = 1024
_NUMBER = 32
_WORD = 128
_LEAST_ROOM = 2**27

# Kinds of values, by their number in the file.
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_WHOLE = 2**24  # floats of 32 bits hold all whole numbers below


@dataclass(frozen=True)
class GGUFEntry(TensorEntry):
    """Where a tensor lies; GGUF has its sizes the other way round.

    Attributes:
        encoding: How its values are stored.
    """

    encoding: Encoding


@dataclass(frozen=True)
class Header:
    """What a GGUF file says before its weights.

    Attributes:
        metadata: Numbers, texts, and lists of them, by name.
        entries: All tensors by name.
    """

    metadata: Mapping[str, object]
    entries: Mapping[str, GGUFEntry]


def read_header(path: Path) -> Header:
    """Reads the header of a GGUF file.

    Raises:
        CheckpointError: The file is missing, not GGUF, truncated or damaged.
        UnsupportedModelError: Its version or the encoding of a tensor is not supported.
    """
    try:
        with open_regular(path) as file:
            if file.read(4) != MAGIC:
                raise CheckpointError(
                    f"{path} does not begin with {MAGIC.decode()}: give a GGUF file or a folder"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, struct.error) as error:
        what = "it ends too early" if isinstance(error, struct.error) else error
        raise CheckpointError(
            f"{path} is truncated or corrupt ({what}): download it again"
        ) from error


def _parse(path: Path, data: mmap.mmap) -> Header:
    reader = _Reader(data, len(MAGIC))
    version = reader.number("I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in _VERSIONS
        raise UnsupportedModelError(
            f"{path}: GGUF version {version} is not supported"
            f"{' (big-endian)' if swapped else ''}: use a little-endian file of version 2 or 3"
        )
    tensors = reader.count(_MOST_TENSORS, "tensors")
    fields = reader.count(_MOST_FIELDS, "fields")
    reader.take(tensors * _TENSOR + fields * _FIELD)
    metadata: dict[str, object] = {}
    for _ in range(fields):
        name = reader.text(_LONGEST_NAME)
        if name in metadata:
            raise ValueError(f"field {name!r} occurs twice")
        metadata[name] = reader.value(reader.number("I"))
        if reader.position > _LONGEST_METADATA:
            raise ValueError(f"metadata of more than {_LONGEST_METADATA} bytes")
    places: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for _ in range(tensors):
        name = reader.text(_LONGEST_NAME)
        if name in places:
            raise ValueError(f"tensor {name!r} occurs twice")
        dimensions = reader.number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"{name!r} has {dimensions} dimensions")
        shape = tuple(reversed([int(reader.number("Q")) for _ in range(int(dimensions))]))
        places[name] = int(reader.number("I")), shape, int(reader.number("Q"))
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**20 or alignment % 8:
        raise ValueError(f"general.alignment is {alignment!r}")
    base = -(-reader.position // alignment) * alignment
    entries = {name: _entry(path, name, place, base, len(data)) for name, place in places.items()}
    return Header(metadata, entries)


def _entry(
    path: Path, name: str, place: tuple[int, tuple[int, ...], int], base: int, size: int
) -> GGUFEntry:
    """A tensor's place in the file, which must hold all of it."""
    kind, shape, offset = place
    encoding = ENCODINGS.get(kind) or (INTEGERS.get(kind) if len(shape) == 1 else None)
    if encoding is None:
        stored = UNREAD.get(kind, f"type {kind}")
        raise UnsupportedModelError(
            f"{path}: {name} is stored as {stored}, which is not supported: use a file with "
            f"{', '.join(each.name for each in ENCODINGS.values())}"
        )
    values = math.prod(shape)
    width = shape[-1]
    fits = width % encoding.block == 0 and (encoding.block == 1 or len(shape) > 1)
    if not fits or not 0 < values <= 8 * size:  # no encoding takes less than a bit
        raise ValueError(f"{name!r} has shape {list(shape)} in {encoding.name}")
    nbytes = values // encoding.block * encoding.nbytes
    if base + offset + nbytes > size:
        raise ValueError(f"{name!r} ends at byte {base + offset + nbytes} of {size}")
    return GGUFEntry(path, shape, base + offset, nbytes, encoding)


class _Reader:
    """Reads values one after another; ValueError or struct.error where the file has no more."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self._room = max(_LEAST_ROOM, len(data) // 2)
        self.position = position

    def take(self, size: int) -> None:
        """Counts memory that what follows takes."""
        self._room -= size
        if self._room < 0:
            raise ValueError(f"more metadata than a file of {len(self._data)} bytes can need")

    def number(self, form: str) -> int | float:
        """One number of a form of `struct`."""
        (value,) = struct.unpack_from(f"<{form}", self._data, self.position)
        self.position += struct.calcsize(f"<{form}")
        number: int | float = value
        return number

    def count(self, most: int, what: str) -> int:
        """A number of things that follow."""
        count = int(self.number("Q"))
        if count > most:
            raise ValueError(f"{count} {what}")
        return count

    def text(self, longest: int = _LONGEST_TEXT) -> str:
        """A text; bytes that are not UTF-8 become U+FFFD."""
        length = self.count(min(longest, len(self._data) - self.position), "bytes of text")
        found = self._data[self.position : self.position + length]
        if len(found) < length:
            raise ValueError(f"a text of {length} bytes")
        self.position += length
        return found.decode("utf-8", errors="replace")

    def value(self, kind: int | float) -> object:
        """A value of a kind."""
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._values(int(self.number("I")))
        form = _NUMBERS.get(int(kind))
        if form is None:
            raise ValueError(f"a value of kind {kind}")
        return _meant(self.number(form), form)

    def _values(self, kind: int) -> list[object]:
        """A list of numbers or texts."""
        count = self.count(_MOST_VALUES, "values")
        if kind == _TEXT:
            return list(self._texts(count))
        form = _NUMBERS.get(kind)
        if form is None:  # lists of lists, too, which no model has
            raise ValueError(f"a list of values of kind {kind}")
        self.take(count * _NUMBER)
        stored = np.frombuffer(self._data, np.dtype(f"<{form}"), count, self.position)
        self.position += count * struct.calcsize(f"<{form}")
        values: list[object] = stored.tolist()
        if form == "f":  # scores of a vocabulary are many, and most of them small whole numbers
            for place in np.flatnonzero((stored != np.trunc(stored)) | (abs(stored) >= _WHOLE)):
                values[place] = _meant(stored[place], form)
        return values

    def _texts(self, count: int) -> Iterator[str]:
        data = self._data
        position = self.position
        end = len(self._data)
        if 8 * count > end - position:
            raise ValueError(f"{count} texts")
        self.take(count * _WORD)
        for _ in range(count):  # of a vocabulary there are many
            (length,) = _LENGTH.unpack_from(data, position)
            start = position + 8
            position = position + 8 + length
            if length > _LONGEST_TEXT or position > end:
                raise ValueError(f"a text of {length} bytes")
            yield data[start:position].decode("utf-8", errors="replace")
        self.position = position


def _meant(value: int | float, form: str) -> int | float:
    """The shortest decimal that 32 bits hold as this value: 1e-05 is stored as 9.99999974e-06."""
    return float(str(np.float32(value))) if form == "f" else value
