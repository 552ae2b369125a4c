"""What does not fit in calls that nothing has held to their schemas."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from edgespec.errors import reason
from edgespec.runtime.text.schema.validation import misfit
from edgespec.runtime.text.tools.calls import ToolCall

_log = logging.getLogger(__name__)


def call_faults(
    calls: Iterable[ToolCall], unheld: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Returns what does not fit in calls of tools that are not held to their whole schemas.

    Args:
        calls: the calls of an answer.
        unheld: the schemas of such tools, by their names.
    """
    found = []
    for call in calls if unheld else ():
        if fault := misfit(call.arguments, unheld.get(call.name, {})):
            found.append(f"{call.name}: {reason(fault)}")
            _log.warning("a call does not fit the schema of its tool %s", found[-1])
    return tuple(found)
