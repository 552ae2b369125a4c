"""GGUF files again, with the same facts and other tensors. Needs the package `gguf` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def rewrite(reader: Any, output: Path, made: Callable[[Any], tuple[Any, Any]]) -> None:
    """Writes a file with the same facts, whose tensors are made one at a time.

    Args:
        reader: the `gguf.GGUFReader` of a file.
        output: the file to write, under this name when it is complete.
        made: returns values, as they are stored, and their format, of one of the reader's tensors.
    """
    import gguf
    import numpy as np

    partial = output.with_suffix(".partial")
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(partial, architecture, use_temp_file=True)
    copy_facts(reader, writer)
    for tensor in reader.tensors:
        values, kind = made(tensor)
        if kind == gguf.GGMLQuantizationType.F16:
            values = values.astype(np.float16)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values), raw_dtype=kind)
    finish(writer)
    partial.rename(output)


def copy_facts(reader: Any, writer: Any, of: str = "", but: str = "") -> None:
    """Adds the facts of a file to one that is written.

    Args:
        reader: the `gguf.GGUFReader` of the file.
        writer: the `gguf.GGUFWriter`, which knows its architecture.
        of: what their names begin with.
        but: name of one that is left out.
    """
    without = {"general.architecture", but}
    for name, field in reader.fields.items():
        if name.startswith(of) and not name.startswith("GGUF.") and name not in without:
            kind, each = [*field.types, None][:2]
            writer.add_key_value(name, field.contents(), kind, each)


def finish(writer: Any) -> None:
    """Writes all that was added to a `gguf.GGUFWriter`."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
