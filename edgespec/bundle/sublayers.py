"""Numbering of a decoder's sublayers, and the names that users write for them.

A decoder is a list of layers, each a list of sublayers: usually an attention and an MLP. Skip
sets refer to sublayers by numbers that count through all layers; the number after the last one is
the head (norm and output projection). Users write `3a` for the attention of layer 3,
`3m` for its MLP, `3` for the whole layer, `3-5` for three layers, and commas between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgespec.errors import InputError
from edgespec.system.records import LEFT_OUT

ATTENTION = "attention"
MLP = "mlp"
FUSION = "fusion"
RECURRENT = "recurrent"
INJECTION = "injection"
KINDS = (ATTENTION, MLP, FUSION, RECURRENT, INJECTION)
"""Kinds of sublayers. A fusion makes one hidden row of a draft head's features. A recurrent
sublayer carries a state from position to position, see `StateShape`. An injection adds what a
layer's own input of a row, see `Role.layer_inputs`, tells of it."""

CAUSAL = "causal"
"""The mask with which a position sees all positions before it."""

ALL = "all"
"""The mask with which a row sees all rows of its text, of models that read a text in one call."""

DEFAULT_ROPE = "default"
"""The name of the default RoPE table; most models have no other."""

_LETTERS = {"a": ATTENTION, "m": MLP, "r": RECURRENT, "i": INJECTION}
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}
_CHUNK = "chunk:"
_WINDOW = re.compile(rf"(?:window:|{_CHUNK})(\d+)")
_AROUND = re.compile(r"around:(\d+)")
_DIGITS = 4  # digits of a layer's number at most
_PART = re.compile(r"(?P<layer>\d+)(?P<letter>[amri])?|(?P<first>\d+)-(?P<last>\d+)")


@dataclass(frozen=True)
class Sublayer:
    """Description of one sublayer of a decoder.

    Attributes:
        layer: number of the layer that it belongs to.
        kind: one of `KINDS`.
        width: inner size of an MLP or of each expert, or input size of a fusion; 0 for others.
        experts: number of experts, if the MLP is a mixture of experts; else 0.
        chosen: number of these experts that a row is read by.
        beside: inner size of an MLP beside the experts, which reads every row; 0: there is none.
        source: layer whose keys and values attention reads; None: it has its own.
        weights: number of weights of each expert.
    """

    layer: int
    kind: str
    width: int = field(default=0, metadata=LEFT_OUT)
    experts: int = field(default=0, metadata=LEFT_OUT)
    chosen: int = field(default=0, metadata=LEFT_OUT)
    beside: int = field(default=0, metadata=LEFT_OUT)
    source: int | None = field(default=None, metadata=LEFT_OUT)
    weights: int = field(default=0, metadata=LEFT_OUT)


def window_of(mask: str) -> int | None:
    """Returns how many positions a mask lets a row see, its own included; None if unlimited.

    Those behind it that it sees, too, are not counted, see `behind_of`.

    Raises:
        ValueError: if the mask is none of `causal`, `window:N`, `chunk:N`, `all` and `around:N`.
    """
    if mask in (CAUSAL, ALL):
        return None
    if (around := _AROUND.fullmatch(mask)) is not None:
        return int(around[1]) + 1
    found = _WINDOW.fullmatch(mask)
    if found is None or int(found[1]) < 1:
        raise ValueError(
            f"unknown mask {mask!r}: use {CAUSAL}, window:N, {_CHUNK}N, {ALL} or around:N"
        )
    return int(found[1])


def in_chunks(mask: str) -> bool:
    """Returns whether a row sees its chunk of the text alone, of `window_of` positions at most."""
    return mask.startswith(_CHUNK)


def behind_of(mask: str) -> int | None:
    """Returns how many positions behind its own a mask lets a row see; None: all of the text."""
    if mask == ALL:
        return None
    found = _AROUND.fullmatch(mask)
    return 0 if found is None else int(found[1])


def pool_parts(pool: str) -> tuple[str, str]:
    """Returns the inputs of portable graphs that hold the keys and the values of a pool."""
    return f"{pool}.keys", f"{pool}.values"


def rope_inputs(rope: str) -> tuple[str, str]:
    """Returns the names of the inputs with the cosines and sines of this RoPE table."""
    suffix = "" if rope == DEFAULT_ROPE else f".{rope}"
    return f"rope_cos{suffix}", f"rope_sin{suffix}"


class Sublayers(tuple[Sublayer, ...]):
    """All sublayers of a decoder in the order in which they run, without the head."""

    __slots__ = ()

    @property
    def head(self) -> int:
        """The number of the head, which follows the last sublayer."""
        return len(self)

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self[-1].layer + 1 if self else 0

    def of_layer(self, layer: int) -> range:
        """Returns the numbers of a layer's sublayers."""
        numbers = [n for n, each in enumerate(self) if each.layer == layer]
        return range(numbers[0], numbers[-1] + 1)

    def first(self, layer: int) -> int:
        """Returns the number of a layer's first sublayer, or of the head after the last layer."""
        return self.of_layer(layer).start if layer < self.layers else self.head

    def bereft(self, skipped: Iterable[int]) -> tuple[int, ...]:
        """Returns the sublayers that read keys and values of those skipped, and are not themselves.

        A draft cannot do that: it would have no keys of the positions that it adds.
        """
        left_out = set(skipped)
        gone = {self[n].layer for n in left_out if self[n].kind == ATTENTION}
        return tuple(n for n, each in enumerate(self) if each.source in gone and n not in left_out)

    def named(self, names: Iterable[Name]) -> tuple[int, ...]:
        """Returns the numbers of sublayers that a user named, ascending.

        Raises:
            InputError: if there is no such sublayer.
        """
        found: set[int] = set()
        for layer, kind in names:
            numbers = [
                n
                for n, each in enumerate(self)
                if each.layer == layer and kind in (None, each.kind)
            ]
            if not numbers:
                what = describe_sublayers([(layer, kind)])
                raise InputError(f"there is no {what}: the model has layers 0 to {self.layers - 1}")
            found.update(numbers)
        return tuple(sorted(found))

    def describe(self, numbers: Iterable[int]) -> str:
        """Returns the shortest names for some sublayers, which `parse` and `named` understand."""
        left = set(numbers)
        names: list[Name] = []
        for number in sorted(left):
            each = self[number]
            whole = self.of_layer(each.layer)
            if left.issuperset(whole):
                if number == whole.start:
                    names.append((each.layer, None))
            else:
                names.append((each.layer, each.kind))
        return describe_sublayers(names)


Name = tuple[int, str | None]
"""A layer's number and the kind of one of its sublayers; None means the whole layer."""


def parse(text: str) -> tuple[Name, ...]:
    """Parses names of sublayers; `Sublayers.named` checks that a model has them.

    Raises:
        InputError: if a name does not follow the module's notation, or a number is too large.
    """
    found: list[Name] = []
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if any(len(number) > _DIGITS for number in re.findall(r"\d+", part)):
            # Checked before a range is expanded, which might not fit the memory.
            raise InputError(f"{part!r}: no model has so many layers, give numbers that it has")
        if match is None or (match["first"] and int(match["first"]) > int(match["last"])):
            raise InputError(
                f"{part!r} does not name sublayers: write 3 for layer 3, 3a or 3m for only its "
                "attention or MLP, 3-5 for layers 3 to 5"
            )
        if match["first"]:
            layers = range(int(match["first"]), int(match["last"]) + 1)
            found += [(layer, None) for layer in layers]
        else:
            found.append((int(match["layer"]), _LETTERS.get(match["letter"])))
    return tuple(found)


def describe_sublayers(names: Sequence[Name]) -> str:
    """Writes names as users do, with consecutive whole layers as a range."""
    texts: list[tuple[int, str]] = []
    run: list[int] = []
    for layer, kind in names:
        if kind is not None:
            texts.append((layer, f"{layer}{_LETTER_OF[kind]}"))
            continue
        if run and run[-1] != layer - 1:
            texts.append(_range(run))
            run = []
        run.append(layer)
    if run:
        texts.append(_range(run))
    return ",".join(text for _, text in sorted(texts))


def _range(run: Sequence[int]) -> tuple[int, str]:
    return run[0], f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}"
