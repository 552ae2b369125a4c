"""How sublayers are numbered and written.

Sublayer 2 i is the attention of layer i and 2 i + 1 its MLP. People write `3a` for the attention of
layer 3, `3m` for its MLP, `3` for both, `3-5` for three whole layers, and commas between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.errors import InputError

_DIGITS = 4  # of a layer's number, at most
_PART = re.compile(r"(?P<layer>\d+)(?P<half>[am])?|(?P<first>\d+)-(?P<last>\d+)")


def parse(text: str) -> tuple[int, ...]:
    """Numbers of sublayers, ascending.

    Raises:
        InputError: on anything that is not written as this module says, or beyond any model.
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if any(len(number) > _DIGITS for number in re.findall(r"\d+", part)):
            # Before a range is written out: it may not fit the memory.
            raise InputError(f"{part!r}: no model has so many layers, name some that it has")
        if match is None or (match["first"] and int(match["first"]) > int(match["last"])):
            raise InputError(
                f"{part!r} names no sublayers: write 3 for layer 3, 3a or 3m for its attention or "
                "MLP alone, 3-5 for layers 3 to 5"
            )
        if match["first"]:
            found |= set(range(2 * int(match["first"]), 2 * int(match["last"]) + 2))
        else:
            halves = {None: (0, 1), "a": (0,), "m": (1,)}[match["half"]]
            found |= {2 * int(match["layer"]) + half for half in halves}
    return tuple(sorted(found))


def describe(sublayers: Sequence[int]) -> str:
    """What `parse` makes these numbers of, written short."""
    left = set(sublayers)
    runs: list[list[int]] = []  # whole layers, consecutive ones together
    texts: list[tuple[int, str]] = []
    for sublayer in sorted(left):
        layer, half = divmod(sublayer, 2)
        if sublayer ^ 1 not in left:
            texts.append((layer, f"{layer}{'am'[half]}"))
        elif half == 0:
            if runs and runs[-1][-1] == layer - 1:
                runs[-1].append(layer)
            else:
                runs.append([layer])
    texts += [(run[0], f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}") for run in runs]
    return ",".join(text for _, text in sorted(texts))
