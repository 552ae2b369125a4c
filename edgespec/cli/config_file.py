"""The file of `--config`, which has options of the command line."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from edgespec.errors import InputError
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.options import GenerationOptions
from edgespec.system.files import read_utf8
from edgespec.system.options import named, unknown


def settings(file: str) -> dict[str, Any]:
    """Reads options of loading and of texts from a TOML file.

    Raises:
        InputError: if it cannot be read, or has something else.
        OSError: if there is no such file.
    """
    try:
        found = tomllib.loads(read_utf8(Path(file)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from error
    found = named(GenerationOptions, found)
    known = [each.name for kind in (LoadOptions, GenerationOptions) for each in fields(kind)]
    for name in found:
        if name not in known:
            raise InputError(f"{file}: {unknown(name, known)}")
    if isinstance(found.get("stop"), str):
        found["stop"] = [found["stop"]]
    return found
