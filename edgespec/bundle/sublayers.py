"""How a decoder's sublayers are numbered, and how people write them.

A decoder is a list of layers, each a list of sublayers: usually an attention and an MLP. Stages,
skip sets and cuts refer to sublayers by numbers that count through all layers; behind the last one
comes the head (norm and output projection). People write `3a` for the attention of layer 3, `3m`
for its MLP, `3` for the whole layer, `3-5` for three layers, and commas between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

from edgespec.errors import InputError
from edgespec.system.records import LEFT_OUT

ATTENTION, MLP = "attention", "mlp"
"""Kinds of sublayers."""

KINDS = (ATTENTION, MLP)

CAUSAL = "causal"
"""The mask of attention to everything before."""

DEFAULT_ROPE = "default"
"""The name of the rotation table that most models have alone."""

_LETTERS = {"a": ATTENTION, "m": MLP}
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}
_WINDOW = re.compile(r"window:(\d+)")
_DIGITS = 4  # of a layer's number, at most
_PART = re.compile(r"(?P<layer>\d+)(?P<letter>[am])?|(?P<first>\d+)-(?P<last>\d+)")


@dataclass(frozen=True)
class Sublayer:
    """One sublayer of a decoder, as the runtime needs to know it.

    Attributes:
        layer: the number of the layer that it belongs to.
        kind: one of `KINDS`.
        width: of an MLP, the size between its projections; 0 for an attention, and for MLPs of
            bundles that do not say it.
        mask: of an attention, which earlier positions it sees: `causal`, or `window:N` for the
            last N, itself included.
        rope: of an attention, the rotation table that its queries and keys are turned by; empty
            where they are not turned.
    """

    layer: int
    kind: str
    width: int = field(default=0, metadata=LEFT_OUT)
    mask: str = field(default=CAUSAL, metadata=LEFT_OUT)
    rope: str = field(default=DEFAULT_ROPE, metadata=LEFT_OUT)


def window_of(mask: str) -> int | None:
    """Positions that a mask lets a row see, itself included; None: all before it.

    Raises:
        ValueError: on a mask that is neither `causal` nor `window:N`.
    """
    if mask == CAUSAL:
        return None
    found = _WINDOW.fullmatch(mask)
    if found is None or int(found[1]) < 1:
        raise ValueError(f"mask {mask!r} is not known: {CAUSAL} and window:N are")
    return int(found[1])


def bias_input(mask: str) -> str:
    """The stage input that says who sees whom under this mask."""
    return "attention_bias" if mask == CAUSAL else f"attention_bias.{mask.replace(':', '_')}"


def rope_inputs(rope: str) -> tuple[str, str]:
    """The stage inputs that hold cosines and sines of this rotation table."""
    suffix = "" if rope == DEFAULT_ROPE else f".{rope}"
    return f"rope_cos{suffix}", f"rope_sin{suffix}"


class Sublayers(Sequence[Sublayer]):
    """All sublayers of a decoder in the order in which they run, without the head."""

    def __init__(self, sublayers: Iterable[Sublayer]) -> None:
        self._all = tuple(sublayers)

    @classmethod
    def pairs(cls, layers: int, width: int = 0) -> Sublayers:
        """Layers of an attention and an MLP each, which is what most decoders have."""
        return cls(
            Sublayer(layer, kind, width if kind == MLP else 0)
            for layer in range(layers)
            for kind in KINDS
        )

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Sublayer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sublayer]: ...

    def __getitem__(self, index: int | slice) -> Sublayer | Sequence[Sublayer]:
        return self._all[index]

    @property
    def head(self) -> int:
        """The number of the head, which follows the last sublayer."""
        return len(self._all)

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return self._all[-1].layer + 1 if self._all else 0

    @property
    def masks(self) -> tuple[str, ...]:
        """The masks of all attentions, each once, in the order in which they first come."""
        return tuple(dict.fromkeys(each.mask for each in self._all if each.kind == ATTENTION))

    @property
    def ropes(self) -> tuple[str, ...]:
        """The rotation tables of all attentions, each once."""
        used = (each.rope for each in self._all if each.kind == ATTENTION and each.rope)
        return tuple(dict.fromkeys(used))

    def of_layer(self, layer: int) -> range:
        """The numbers of a layer's sublayers."""
        numbers = [n for n, each in enumerate(self._all) if each.layer == layer]
        return range(numbers[0], numbers[-1] + 1)

    def first(self, layer: int) -> int:
        """The number of a layer's first sublayer; behind the last layer comes the head."""
        return self.of_layer(layer).start if layer < self.layers else self.head

    def starts_layer(self, number: int) -> bool:
        """Whether a layer, or the head, begins with this sublayer."""
        return number == self.head or number in self.of_layer(self._all[number].layer)[:1]

    def layer_of(self, number: int) -> int:
        """The layer of a sublayer; the head goes with the last layer."""
        return self._all[min(number, len(self._all) - 1)].layer

    def attentions(self, numbers: range) -> tuple[int, ...]:
        """The layers whose keys and values are computed by some of the sublayers."""
        part = self._all[numbers.start : numbers.stop]
        return tuple(each.layer for each in part if each.kind == ATTENTION)

    def named(self, names: Iterable[Name]) -> tuple[int, ...]:
        """The numbers of what people named, ascending.

        Raises:
            InputError: if there is no such sublayer.
        """
        found: set[int] = set()
        for layer, kind in names:
            numbers = [
                n
                for n, each in enumerate(self._all)
                if each.layer == layer and kind in (None, each.kind)
            ]
            if not numbers:
                what = describe([(layer, kind)])
                raise InputError(f"there is no {what}: the model has layers 0 to {self.layers - 1}")
            found.update(numbers)
        return tuple(sorted(found))

    def name(self, number: int) -> str:
        """What people call a sublayer, or the layer that begins with it: `3`, `3m`, `the head`."""
        if number == self.head:
            return "the head"
        each = self._all[number]
        return f"{each.layer}" if self.starts_layer(number) else describe([(each.layer, each.kind)])

    def describe(self, numbers: Iterable[int]) -> str:
        """Some sublayers as people write them, shortest: what `parse` and `named` turn back."""
        left = set(numbers)
        names: list[Name] = []
        for number in sorted(left):
            each = self._all[number]
            if left.issuperset(self.of_layer(each.layer)):
                if self.starts_layer(number):
                    names.append((each.layer, None))
            else:
                names.append((each.layer, each.kind))
        return describe(names)


Name = tuple[int, str | None]
"""A layer's number and one of its sublayers; None: all of them."""


def parse(text: str) -> tuple[Name, ...]:
    """What people wrote, in their order; whether a model has it, `Sublayers.named` tells.

    Raises:
        InputError: on anything that is not written as this module says, or beyond any model.
    """
    found: list[Name] = []
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
            layers = range(int(match["first"]), int(match["last"]) + 1)
            found += [(layer, None) for layer in layers]
        else:
            found.append((int(match["layer"]), _LETTERS.get(match["letter"])))
    return tuple(found)


def describe(names: Sequence[Name]) -> str:
    """Names as people write them, whole layers in a row together."""
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
