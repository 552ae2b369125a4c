"""Moves the weights of an ONNX model into one file of external data, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import TensorProto

from edgespec.errors import CheckpointError
from edgespec.export.graph_builder import DataFile

_SMALL = 1024  # bytes; smaller tensors stay in the graph, where engines read shapes from them
_CHUNK = 1 << 24  # bytes that are copied at once


def move_weights(tensors: Iterable[TensorProto], folder: Path, data: DataFile) -> None:
    """Makes all larger tensors external data of one file; their values stay as they are.

    Args:
        tensors: the tensors, changed in place.
        folder: folder of the ONNX file that they are from.
        data: the file to write.

    Raises:
        CheckpointError: if external data is missing, too short, or outside that folder.
    """
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            offset, length = _copy(tensor, folder, data)
        else:
            values = _raw(tensor)
            if len(values) < _SMALL:
                continue
            offset, length = data.begin(len(values)), len(values)
            data.write(np.frombuffer(values, np.uint8))
            _clear(tensor)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))


def _raw(tensor: TensorProto) -> bytes:
    """Returns a tensor's values as ONNX stores them; empty for kinds that have no such form."""
    if tensor.raw_data or tensor.string_data:
        return bytes(tensor.raw_data)
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return b""  # packed in pairs, and small wherever it is not raw
    return bytes(onnx.numpy_helper.to_array(tensor).tobytes())


def _clear(tensor: TensorProto) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)


def _copy(tensor: TensorProto, folder: Path, data: DataFile) -> tuple[int, int]:
    """Copies a tensor's external data; returns its new offset and its length in bytes."""
    said = {each.key: each.value for each in tensor.external_data}
    name = said.get("location", "")
    place = PurePosixPath(name)
    if not name or place.is_absolute() or ".." in place.parts or any(c in name for c in "\\:"):
        raise CheckpointError(
            f"{folder}: {tensor.name} has its data in {name!r}, outside the folder: do not use it"
        )
    file = folder / name
    if not file.is_file():
        raise CheckpointError(f"{file} is missing, which has {tensor.name}: download it again")
    size = file.stat().st_size
    start, length = (int(said.get(key, "0") or 0) for key in ("offset", "length"))
    length = length or size - start
    if not 0 <= start <= start + length <= size:
        raise CheckpointError(
            f"{file} has {size} bytes, {tensor.name} needs {start + length}: download it again"
        )
    offset = data.begin(length)
    with file.open("rb") as source:
        source.seek(start)
        for done in range(0, length, _CHUNK):
            part = source.read(min(_CHUNK, length - done))
            data.write(np.frombuffer(part, np.uint8))
    return offset, length
