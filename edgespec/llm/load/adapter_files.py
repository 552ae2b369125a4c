"""Adapters as users name them: files or folders, and their scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgespec.errors import InputError

_PEFT_FILE = "adapter_model.safetensors"
_MOST_SCALE = 1000.0


@dataclass(frozen=True)
class AdapterFile:
    """An adapter as a user named it.

    Attributes:
        path: its folder or file.
        scale: by what it is multiplied in texts that do not say; 0: they are without it.
    """

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str | Path) -> AdapterFile:
        """Parses FILE or FILE:SCALE.

        Raises:
            InputError: if the scale is out of range.
        """
        file, colon, number = str(text).rpartition(":")
        try:
            scale = float(number)
        except ValueError:
            colon = ""
        if not colon or Path(text).exists():
            return cls(Path(text))
        return cls(Path(file), require_scale(f"the scale of {file}", scale))

    @cached_property
    def name(self) -> str:
        """Its name for texts: that of the file without its ending, or of the folder."""
        path = self.path.resolve()
        if path.name == _PEFT_FILE:
            return path.parent.name
        return path.name if path.is_dir() else path.stem

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return self.path / _PEFT_FILE if self.path.is_dir() else self.path


def require_scale(what: str, scale: float) -> float:
    """Returns a scale of an adapter.

    Raises:
        InputError: if it is out of range.
    """
    if not math.isfinite(scale) or abs(scale) > _MOST_SCALE:
        raise InputError(f"{what} is {scale}: give a number from -{_MOST_SCALE} to {_MOST_SCALE}")
    return scale


def held_bytes(files: Sequence[AdapterFile]) -> int:
    """Returns about how many bytes of memory adapters take; of those that there are not, none."""
    return sum(each.weights.stat().st_size for each in files if each.weights.is_file())
