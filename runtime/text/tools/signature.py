"""What a model may know of a function that it calls: its name, and the schema of its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import InputError, reason
from edgespec.runtime.text.lark import Spelling
from edgespec.runtime.text.tools.codec import Schema
from edgespec.runtime.text.tools.notations import NOTATIONS


@dataclass(frozen=True)
class ToolSignature:
    """A function that may be called.

    Attributes:
        name: its name, of letters, digits, `_`, `-` and `.`.
        parameters: JSON schema of its arguments.
    """

    name: str
    parameters: Schema

    def rules(self, rule: str, notation: str, spelling: Spelling) -> list[str]:
        """Returns Lark rules for its arguments; the first has the given name.

        Raises:
            InputError: if the model cannot be held to the schema.
        """
        try:
            return NOTATIONS[notation].rules(rule, self.parameters, spelling)
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise InputError(
                f"tool {self.name}: its schema is not valid ({reason(error)}): correct it"
            ) from error
