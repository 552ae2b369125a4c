"""Reads the JSON files of a checkpoint and checks their fields."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.system import files

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 2**31 - 1  # 32 bits; no model comes near

SMALL = 2**20
SHARE = 8
"""JSON may take eight times its bytes in memory: where it has more bytes than the first number, it
may be one part of so many of a model, which is weights above all."""


@dataclass(frozen=True)
class ConfigFields:
    """A JSON object whose fields are checked when they are read; null counts as absent.

    Attributes:
        values: The JSON object.
        source: The object's place, with which error messages begin: a path and names of groups.
    """

    values: Mapping[str, object]
    source: str

    @classmethod
    def read(cls, path: Path) -> ConfigFields:
        """Reads a file that contains one JSON object.

        Raises:
            CheckpointError: The file is missing, unreadable, not JSON or not an object.
        """
        check_share(path)
        return cls.parse(read_checkpoint_text(path), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> ConfigFields:
        """Reads the content of a file.

        Raises:
            CheckpointError: It is not JSON or not an object.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{source} cannot be read as JSON ({error}): download it again"
            ) from error
        if not isinstance(values, dict):
            raise CheckpointError(
                f"{source} contains {reprlib.repr(values)}, not a JSON object: download it again"
            )
        return cls(values, source)

    def with_defaults(self, defaults: Mapping[str, object]) -> ConfigFields:
        """Returns the object with defaults added; existing fields, also null ones, are kept."""
        return ConfigFields({**defaults, **self.values}, self.source)

    def changed(self, **values: object) -> ConfigFields:
        """Returns the object with other values, or further ones."""
        return ConfigFields({**self.values, **values}, self.source)

    def under(self, names: Mapping[str, str]) -> ConfigFields:
        """Returns the object with fields under other names, too, unless they are null."""
        found = {other: self.get(name) for name, other in names.items()}
        return self.changed(**{name: value for name, value in found.items() if value is not None})

    def only(self, allowed: Mapping[str, tuple[object, ...]], remedy: str) -> None:
        """Checks that fields have values that are implemented, None among them if they may lack.

        Raises:
            UnsupportedModelError: A field has another value.
        """
        for name, values in allowed.items():
            if self.get(name) not in values:
                raise self.unsupported(name, remedy)

    def get(self, name: str) -> object:
        """Returns a field without a check, None if it is absent."""
        return self.values.get(name)

    def group(self, name: str) -> ConfigFields:
        """Returns a nested object, empty if it is absent.

        Raises:
            CheckpointError: The field is not an object.
        """
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.invalid(name, "must be an object")
        return ConfigFields(value, f"{self.source}: {name}")

    def integer(self, name: str, default: int | None = None, most: int = _MOST) -> int:
        """Returns a positive integer of at most `most`.

        Raises:
            CheckpointError: The field is something else, or absent without a default.
        """
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.invalid(name, "must be a positive integer")
        if value > most:
            raise self.invalid(name, f"must be {most} or less")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive finite number.

        Raises:
            CheckpointError: The field is something else, or absent without a default.
        """
        value = self.get(name)
        if value is None and default is not None:
            return default
        number = _positive(value)
        if number is None:
            raise self.invalid(name, "must be a positive number")
        return number

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Returns a list of `count` positive finite numbers.

        Raises:
            CheckpointError: The field is something else or absent.
        """
        value = self.get(name)
        numbers = [_positive(each) for each in value] if isinstance(value, list) else []
        found = tuple(number for number in numbers if number is not None)
        if len(found) != count or len(numbers) != count:
            raise self.invalid(name, f"must be a list of {count} positive numbers")
        return found

    def token(self, name: str, count: int) -> int:
        """Returns the id of one of `count` tokens.

        Raises:
            CheckpointError: The field is something else or absent.
        """
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            raise self.invalid(name, f"must be a token id from 0 to {count - 1}")
        return value

    def flag(self, name: str) -> bool:
        """Returns a boolean, False if the field is absent.

        Raises:
            CheckpointError: The field is something else.
        """
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def invalid(self, name: str, rule: str) -> CheckpointError:
        """Returns the error for a field whose value breaks a rule."""
        return CheckpointError(f"{self._shown(name)} {rule}: correct the file or download it again")

    def unsupported(self, name: str, remedy: str) -> UnsupportedModelError:
        """Returns the error for a field whose value is not implemented."""
        return UnsupportedModelError(f"{self._shown(name)} is not supported: {remedy}")

    def _shown(self, name: str) -> str:
        value = self.get(name)
        return f"{self.source}: {name}={'(absent)' if value is None else reprlib.repr(value)}"


def _positive(value: object) -> float | None:
    """Returns a JSON value if it is a positive finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value <= sys.float_info.max else None


def check_share(path: Path) -> None:
    """Refuses a JSON file that is large for a folder of weights.

    Raises:
        CheckpointError: It is.
    """
    try:
        size = path.stat().st_size
        beside = sum(each.stat().st_size for each in path.parent.iterdir())
        if size <= max(SMALL, beside // SHARE):
            return
    except OSError:  # which reading tells better
        return
    raise CheckpointError(
        f"{path} has {size} bytes, far too many beside the weights: download it again"
    )


def read_checkpoint_text(path: Path) -> str:
    """Reads a text file of a checkpoint.

    Raises:
        CheckpointError: The file is missing, unreadable or not UTF-8.
    """
    try:
        return files.read_text(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} does not exist: give a folder that save_pretrained has written"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not UTF-8 ({error}): download it again") from error


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Returns the error for a file that the system cannot read, although it may be intact."""
    reason = error.strerror or error
    return CheckpointError(f"{path} cannot be read ({reason}): check the file and its permissions")
