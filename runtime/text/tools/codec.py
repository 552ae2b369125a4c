"""The contract of a notation of arguments: the rules of its grammar, its reader and its writer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from edgespec.runtime.text.lark import Spelling

Schema = Mapping[str, Any]
"""JSON schema of the arguments of a function."""


class ArgumentReader(Protocol):
    """Reads arguments in some notation, as JSON.

    Attributes:
        complete: whether they have ended.
    """

    complete: bool

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of what was read, and the rest of a text."""
        ...


class Codec(ABC):
    """A notation of arguments.

    What it writes under a schema, its rules for that schema allow if members come in their order,
    and its reader gives it back as JSON.

    Attributes:
        marks: texts in which special tokens may occur.
    """

    marks: str = ""

    @abstractmethod
    def rules(self, name: str, schema: Schema, spelling: Spelling) -> list[str]:
        """Returns Lark rules for the arguments of one function.

        Args:
            name: name of the first rule; further ones begin with it.
            schema: JSON schema of the arguments.
            spelling: how the grammar writes marks.

        Raises:
            InputError: if the model cannot be held to the schema.
        """

    @abstractmethod
    def reader(self, schema: Schema) -> ArgumentReader:
        """Returns a reader of arguments of a schema."""

    @abstractmethod
    def write(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> str:
        """Returns arguments as a model writes them.

        Args:
            arguments: the arguments by name, in the order in which they are written.
            schema: JSON schema of the arguments; None if it is not known.
        """


class MemberReader(ABC):
    """Reads arguments one after the other, and gives each as JSON when it is complete.

    Attributes:
        complete: whether they have ended.
    """

    def __init__(self) -> None:
        self.complete = False
        self._unread = ""
        self._begun = False

    def push(self, text: str) -> tuple[str, str]:
        """Returns the JSON of the arguments that are complete, and the rest of a text."""
        self._unread += text
        pieces = []
        while (found := self._member(self._unread)) is not None:
            name, value, self._unread = found
            before = ", " if self._begun else "{"
            pieces.append(f"{before}{json.dumps(name)}: {value}")
            self._begun = True
        self.complete = self._ends(self._unread)
        if not self.complete:
            return "".join(pieces), ""
        pieces.append("}" if self._begun else "{}")
        return "".join(pieces), self._unread

    @abstractmethod
    def _member(self, text: str) -> tuple[str, str, str] | None:
        """Returns name, value as JSON and the rest behind an argument; None if it is not whole."""

    @abstractmethod
    def _ends(self, text: str) -> bool:
        """Whether the arguments have ended before a text."""
