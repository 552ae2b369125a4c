"""Which files an ONNX graph names as its weights, read by protobuf's own rules.

Fields may come in any order, repeatedly, among others that nobody knows, and in forms that no
writer chooses: whatever a session would take for weights is found, wherever it stands.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

_MODEL = "model"
_GRAPH = "graph"
_NODE = "node"
_ATTRIBUTE = "attribute"
_FUNCTION = "function"
_TENSOR = "tensor"
_SPARSE = "sparse tensor"
_TRAINING = "training"
_ENTRY = "entry"
# The fields of onnx.proto below which there may be tensors, and what they hold.
_WITHIN: Mapping[str, Mapping[int, str]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {13: _ENTRY},
}
_KEY, _VALUE = 1, 2  # of an entry
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)  # how a field is written
_LONGEST_VARINT = 10
_MOST_FIELDS = 4_000_000  # some hundred times those of real graphs; a million take a second


def external_files(graph: Path) -> set[str]:
    """Returns the files that a graph names as its weights.

    Raises:
        ValueError: if it is no protobuf.
    """
    names = set[str]()
    if not graph.stat().st_size:  # of which there is no mapping
        return names
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        left = [(_MODEL, 0, len(content))]
        most = count(_MOST_FIELDS, -1)
        while left:
            kind, begin, end = left.pop()
            if kind == _ENTRY:
                entry = {
                    number: content[a:b] for number, a, b in _fields(content, begin, end, most)
                }
                if entry.get(_KEY) == b"location":  # the last one of each counts
                    names.add(entry.get(_VALUE, b"").decode(errors="backslashreplace"))
                continue
            for number, first, last in _fields(content, begin, end, most):
                if within := _WITHIN[kind].get(number):
                    left.append((within, first, last))
    return names


def _fields(
    content: mmap.mmap, place: int, end: int, most: Iterator[int]
) -> Iterator[tuple[int, int, int]]:
    """Yields a message's fields of bytes: the number, and where what they hold begins and ends.

    Raises:
        ValueError: if it is damaged.
    """
    groups = list[int]()  # in which this is; nothing within is known to anybody
    while place < end:
        if not next(most):
            raise ValueError(f"it has more than {_MOST_FIELDS} fields")
        tag, place = _varint(content, place, end)
        number = (tag & 0xFFFFFFFF) >> 3
        form = tag & 7
        length = 0
        if form == _VARINT:
            _, place = _varint(content, place, end)
        elif form == _BYTES:
            length, place = _varint(content, place, end)
        elif form == _GROUP:
            groups.append(number)
        elif form == _GROUP_END and groups and groups.pop() == number:
            pass
        elif form in (_FIXED64, _FIXED32):
            length = 8 if form == _FIXED64 else 4
        else:
            raise ValueError(f"byte {place} begins no field")
        if not number or place + length > end:
            raise ValueError(f"its field at byte {place} does not fit")
        if form == _BYTES and not groups:
            yield number, place, place + length
        place += length
    if groups:
        raise ValueError("a group does not end")


def _varint(content: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """Returns a number of any length, and where it ends."""
    value = 0
    for shift in range(_LONGEST_VARINT):
        if place + shift >= end:
            break
        byte = content[place + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError(f"the number at byte {place} does not end")
