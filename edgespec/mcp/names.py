"""Names by which models call tools, whatever their servers call them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import count

_LONGEST = 64  # as OpenAI's API has it
_OTHERS = re.compile(r"[^a-zA-Z0-9_-]+")


def model_names(tools: Sequence[tuple[str, str]]) -> list[str]:
    """Returns a name of its own for each tool: letters, digits, `_` and `-`.

    Where two servers have a tool of one name, the server's name goes before it.

    Args:
        tools: names of the server and of the tool.
    """
    plain = [_mended(tool) for _, tool in tools]
    times = Counter(plain)
    taken = {name for name, number in times.items() if number == 1}
    names = []
    for (server, _), name in zip(tools, plain, strict=True):
        if times[name] > 1:
            names.append(_free(_mended(f"{server}_{name}"), taken))
            taken.add(names[-1])
        else:
            names.append(name)
    return names


def _mended(name: str) -> str:
    return _OTHERS.sub("_", name)[:_LONGEST].strip("_") or "tool"


def _free(name: str, taken: set[str]) -> str:
    """Returns a name, with a number behind it if another tool has it."""
    numbered = (f"{name[: _LONGEST - 6]}_{number}" for number in count(2))
    return name if name not in taken else next(each for each in numbered if each not in taken)
