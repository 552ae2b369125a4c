"""Ways to damage files, with a fixed seed, and files that ask for more than they are."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TIMES = int(os.environ.get("EDGESPEC_TEST_FILES", "1"))
"""How many times as many damaged files are tried as usual."""

_JSON = ("config.json", "model.safetensors.index.json", "generation_config.json")

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


def damaged_gguf(intact: bytes, header: int, chance: random.Random) -> bytes:
    """Returns a GGUF file that is damaged in one way; see `damaged`."""
    return damaged(intact, header, chance, (8, 16))


def harm(folder: Path, chance: random.Random) -> None:
    """Damages a file of a checkpoint's folder, a header of weights above all."""
    weights = sorted(folder.glob("*.safetensors"))
    files = [each for each in (folder / name for name in _JSON) if each.exists()]
    file = chance.choice([*files, *weights])
    content = file.read_bytes()
    if file.suffix == ".json" and chance.random() < 0.8:
        file.write_bytes(written(damaged_json(json.loads(content), chance)))
        return
    if file.suffix == ".json":
        file.write_bytes(damaged(content, len(content), chance, (0,)))
        return
    length = 8 + int.from_bytes(content[:8], "little")
    if chance.random() < 0.5:
        file.write_bytes(damaged(content, length, chance, (0,)))
    else:
        text = written(damaged_json(json.loads(content[8:length]), chance))
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[length:])


def hostile_ggufs(size: int) -> Iterator[bytes]:
    """Yields files of about so many bytes that ask for far more memory than they take."""
    listed = struct.Struct("<IQ")  # kind of the values of a list, and their number

    def field(name: str, value: bytes) -> bytes:
        return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", 9) + value

    def file(*fields: bytes, tensors: Sequence[bytes] = ()) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
        return head + b"".join(fields) + b"".join(tensors)

    name = "tokenizer.ggml.tokens"
    for kind, width in ((0, 1), (4, 4), (6, 4), (10, 8), (12, 8)):
        count = min(size // width, 2**22)
        yield file(field(name, listed.pack(kind, count) + b"\1" * (count * width)))
    for letters in (0, 1, 2, 7):
        count = size // (8 + letters)
        texts = (f"{n:0{letters}}"[:letters].encode() for n in range(count))
        length = struct.pack("<Q", letters)
        yield file(field(name, listed.pack(8, count) + b"".join(length + each for each in texts)))
    many = min(size // 40, 65_000)
    yield file(*(field(f"field.{n}", listed.pack(4, 2) + bytes(8)) for n in range(many)))
    place = struct.pack("<IQIQ", 1, 1, 0, 0)  # one number
    names = (f"tensor.{n}".encode() for n in range(size // 50))
    yield file(tensors=[struct.pack("<Q", len(each)) + each + place for each in names])


def hostile_folders(folder: Path, size: int) -> Iterator[None]:
    """Puts a file of about so many bytes into a folder, again and again, which is to be copied."""
    numbers = b"[" + b"1," * (size // 2) + b"1]"
    nested = b"[" * size
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    tensors = written({f"tensor.{n}": entry for n in range(size // 80)})
    named = written({"weight_map": {f"tensor.{n}": "model.safetensors" for n in range(size // 40)}})
    weights = folder / "model.safetensors"
    kept = (folder / "model.safetensors").read_bytes()
    for header in (numbers, nested, tensors, b'{"x":' + numbers + b"}"):
        weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        yield
    weights.unlink()
    for content in (named, b'{"weight_map":' + numbers + b"}"):
        (folder / "model.safetensors.index.json").write_bytes(content)
        yield
    (folder / "model.safetensors.index.json").unlink()
    weights.write_bytes(kept)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        file = folder / name
        own = file.read_bytes() if file.exists() else b"{}"
        for content in (own.rstrip()[:-1] + b',"x":' + numbers + b"}", nested):
            file.write_bytes(content)
            yield
        file.write_bytes(own)
