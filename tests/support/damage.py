"""Ways to damage files, with a fixed seed: bytes of any file, and values of JSON."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from typing import Any

TIMES = int(os.environ.get("EDGESPEC_TEST_FILES", "1"))
"""How many times as many damaged files are tried as usual."""

_HUGE = (0, 1, 0x7F, 0xFF, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**16, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0,
    1e308, float("nan"), float("inf"), "", "x", "\x1b[2J", "x" * 5000, "../../x", "/etc/passwd",
    "a\nb", "\ud800", [], {}, [[]], [1, 2], ["x"], {"x": 1}, {"": None},
)  # fmt: skip


def damaged(intact: bytes, header: int, chance: random.Random, counts: tuple[int, ...]) -> bytes:
    """Returns a file that is damaged in one way; most damage is before what is weights.

    Args:
        intact: the file.
        header: number of bytes before its weights.
        chance: what is damaged.
        counts: places of counts of eight bytes.
    """
    content = bytearray(intact)
    match chance.randrange(6):
        case 0:  # truncated
            del content[chance.choice([chance.randrange(header), chance.randrange(len(content))]) :]
        case 1:  # bits flipped
            for _ in range(chance.choice([1, 3, 30])):
                content[chance.randrange(header)] ^= 1 << chance.randrange(8)
        case 2:  # a count, size or offset that is far too large, or too small
            place = chance.choice([*counts, chance.randrange(header)])
            content[place : place + 8] = struct.pack("<Q", chance.choice(_HUGE))
        case 3:  # another kind of value, dimension or encoding
            place = chance.randrange(header)
            content[place : place + 4] = struct.pack("<I", chance.randrange(45))
        case 4:  # bytes lost, or twice there
            place = chance.randrange(header)
            part = content[place : place + chance.randrange(1, 64)]
            content[place : place + len(part)] = part * chance.choice([0, 2])
        case 5:  # noise
            place = chance.randrange(header)
            content[place : place + 64] = chance.randbytes(64)
    return bytes(content)


def damaged_json(intact: Any, chance: random.Random) -> Any:
    """Returns JSON values of which one or a few are others, are gone, or have another name."""
    whole = copy.deepcopy(intact)
    for _ in range(chance.choice([1, 1, 1, 3])):
        place, key = whole, None
        while isinstance(place, dict | list) and place and (key is None or chance.random() < 0.9):
            within = place
            key = chance.choice([*place] if isinstance(place, dict) else [*range(len(place))])
            place = place[key]
        if key is None:
            continue
        match chance.randrange(8):
            case 0:
                del within[key]
            case 1 if isinstance(within, dict):
                within[chance.choice(["x", "", key + "\n", *within])] = within.pop(key)
            case 2:
                within[key] = [within[key]] * 2
            case _:
                within[key] = copy.deepcopy(chance.choice(_VALUES))
    return whole


def written(value: Any) -> bytes:
    """Returns JSON values as the content of a file."""
    return json.dumps(value).encode()
