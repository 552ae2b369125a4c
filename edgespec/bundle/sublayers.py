"""Numbering of a decoder's sublayers, and the names that users write for them.

A decoder is a list of layers, each a list of sublayers: usually an attention and an MLP. Stages,
skip sets and cuts refer to sublayers by numbers that count through all layers; the number after the
last one is the head (norm and output projection). Users write `3a` for the attention of layer 3,
`3m` for its MLP, `3` for the whole layer, `3-5` for three layers, and commas between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

from edgespec.bundle.caches import is_new_kv
from edgespec.errors import InputError
from edgespec.system.records import LEFT_OUT

ATTENTION, MLP, FUSION, RECURRENT = "attention", "mlp", "fusion", "recurrent"
INJECTION = "injection"
"""Kinds of sublayers. A fusion makes one hidden row of a draft head's features. A recurrent
sublayer carries a state from position to position, see `RecurrentShape`. An injection adds what a
layer's own input of a row, see `Role.layer_inputs`, tells of it."""

KINDS = (ATTENTION, MLP, FUSION, RECURRENT, INJECTION)

CHUNK = 32
"""Number of positions after which the rows of recurrent sublayers are added to their state.

No call has rows on both sides of such a border, so that a row is computed from the same state and
the same rows before it, whatever else is in the call."""

CAUSAL = "causal"
"""The mask with which a position sees all positions before it."""

DEFAULT_ROPE = "default"
"""The name of the default RoPE table; most models have no other."""

RECURRENT_PARTS = ("rows", "keys", "errors", "added", "rates", "decays", "state")
"""What a stage reads of a recurrent sublayer, see `export/components/recurrent.py`; one without a
state reads the first alone."""

_LETTERS = {"a": ATTENTION, "m": MLP, "r": RECURRENT, "i": INJECTION}
_LETTER_OF = {kind: letter for letter, kind in _LETTERS.items()}
_WINDOW = re.compile(r"window:(\d+)")
_NEW_ROWS = "new_rows."
_DIGITS = 4  # digits of a layer's number at most
_PART = re.compile(r"(?P<layer>\d+)(?P<letter>[amri])?|(?P<first>\d+)-(?P<last>\d+)")


@dataclass(frozen=True)
class RecurrentShape:
    """What a recurrent sublayer holds of a text: its last rows, and perhaps a state.

    Attributes:
        width: numbers that a position adds. With a state they are, side by side, the convolution's
            input, key, error before and after the rows of the chunk count, rate and decay.
        kernel: positions that the convolution reads, its own included.
        state: value heads, key heads, size of a key and of a value; empty if there is no state. The
            state is [value heads, key size, value size].
    """

    width: int
    kernel: int
    state: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[int, ...]:
        """Sizes of what a position adds, in the order of `width`."""
        if not self.state:
            return (self.width,)
        heads, key_heads, key_size, value_size = self.state
        behind = key_heads * key_size, heads * value_size, heads * value_size, heads, heads
        return self.width - sum(behind), *behind


@dataclass(frozen=True)
class Sublayer:
    """Description of one sublayer of a decoder.

    Attributes:
        layer: number of the layer that it belongs to.
        kind: one of `KINDS`.
        width: inner size of an MLP or of each expert, or input size of a fusion; 0 for others,
            and if the bundle does not say it.
        mask: positions that attention sees: `causal` for all up to its own, or `window:N` for the
            last N, its own included.
        rope: RoPE table that attention uses; empty if it uses none.
        recurrent: what a recurrent sublayer holds; None for others.
        experts: number of experts, if the MLP is a mixture of experts; else 0.
        chosen: number of these experts that a row is read by.
        beside: inner size of an MLP beside the experts, which reads every row; 0: there is none.
        source: layer whose keys and values attention reads; None: it has its own.
    """

    layer: int
    kind: str
    width: int = field(default=0, metadata=LEFT_OUT)
    mask: str = field(default=CAUSAL, metadata=LEFT_OUT)
    rope: str = field(default=DEFAULT_ROPE, metadata=LEFT_OUT)
    recurrent: RecurrentShape | None = field(default=None, metadata=LEFT_OUT)
    experts: int = field(default=0, metadata=LEFT_OUT)
    chosen: int = field(default=0, metadata=LEFT_OUT)
    beside: int = field(default=0, metadata=LEFT_OUT)
    source: int | None = field(default=None, metadata=LEFT_OUT)


def window_mask(window: int) -> str:
    """Returns the mask with which a row sees so many positions, its own included."""
    return f"window:{window}"


def window_of(mask: str) -> int | None:
    """Returns how many positions a mask lets a row see, its own included; None if unlimited.

    Raises:
        ValueError: if the mask is neither `causal` nor `window:N`.
    """
    if mask == CAUSAL:
        return None
    found = _WINDOW.fullmatch(mask)
    if found is None or int(found[1]) < 1:
        raise ValueError(f"unknown mask {mask!r}: use {CAUSAL} or window:N")
    return int(found[1])


def recurrent_input(layer: int, part: str) -> str:
    """Returns the name of the stage input with one of `RECURRENT_PARTS`."""
    return f"past.{layer}.{part}"


def recurrent_output(layer: int) -> str:
    """Returns the name of the stage output with the new rows of a recurrent sublayer."""
    return f"{_NEW_ROWS}{layer}"


def is_new_rows(name: str) -> bool:
    """Whether an output has the new rows of attention or of a recurrent sublayer."""
    return is_new_kv(name) or name.startswith(_NEW_ROWS)


def mask_input(name: str, mask: str) -> str:
    """Returns the name of a stage input that attention with this mask reads."""
    return name if mask == CAUSAL else f"{name}.{mask.replace(':', '_')}"


def bias_input(mask: str) -> str:
    """Returns the name of the stage input with the attention bias of this mask."""
    return mask_input("attention_bias", mask)


def rope_inputs(rope: str) -> tuple[str, str]:
    """Returns the names of the stage inputs with the cosines and sines of this RoPE table."""
    suffix = "" if rope == DEFAULT_ROPE else f".{rope}"
    return f"rope_cos{suffix}", f"rope_sin{suffix}"


class Sublayers(Sequence[Sublayer]):
    """All sublayers of a decoder in the order in which they run, without the head.

    Args:
        sublayers: the sublayers, in order.
    """

    def __init__(self, sublayers: Iterable[Sublayer]) -> None:
        self._all = tuple(sublayers)

    @classmethod
    def pairs(cls, layers: int, width: int = 0) -> Sublayers:
        """Returns the usual layout, in which each layer is an attention and an MLP."""
        return cls(
            Sublayer(layer, kind, width if kind == MLP else 0)
            for layer in range(layers)
            for kind in (ATTENTION, MLP)
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
        """The number of layers."""
        return self._all[-1].layer + 1 if self._all else 0

    @property
    def masks(self) -> tuple[str, ...]:
        """The different masks of all attentions, in the order of first use."""
        return tuple(dict.fromkeys(each.mask for each in self._all if each.kind == ATTENTION))

    @property
    def ropes(self) -> tuple[str, ...]:
        """The names of the different RoPE tables of all attentions, in the order of first use."""
        used = (each.rope for each in self._all if each.kind == ATTENTION and each.rope)
        return tuple(dict.fromkeys(used))

    def of_layer(self, layer: int) -> range:
        """Returns the numbers of a layer's sublayers."""
        numbers = [n for n, each in enumerate(self._all) if each.layer == layer]
        return range(numbers[0], numbers[-1] + 1)

    def first(self, layer: int) -> int:
        """Returns the number of a layer's first sublayer, or of the head after the last layer."""
        return self.of_layer(layer).start if layer < self.layers else self.head

    def starts_layer(self, number: int) -> bool:
        """Whether this sublayer is the first of its layer, or the head."""
        return number == self.head or number in self.of_layer(self._all[number].layer)[:1]

    def layer_of(self, number: int) -> int:
        """Returns the layer of a sublayer; the head counts as part of the last layer."""
        return self._all[min(number, len(self._all) - 1)].layer

    def attentions(self, numbers: range) -> tuple[int, ...]:
        """Returns the layers whose attention, with its own keys, is among these sublayers."""
        part = self._all[numbers.start : numbers.stop]
        return tuple(each.layer for each in part if each.kind == ATTENTION and each.source is None)

    def bereft(self, skipped: Iterable[int]) -> tuple[int, ...]:
        """Returns the sublayers that read keys and values of those skipped, and are not themselves.

        A draft cannot do that: it would have no keys of the positions that it adds.
        """
        left_out = set(skipped)
        gone = {self._all[n].layer for n in left_out if self._all[n].kind == ATTENTION}
        return tuple(
            n for n, each in enumerate(self._all) if each.source in gone and n not in left_out
        )

    def recurrent(self, numbers: range) -> dict[int, RecurrentShape]:
        """Returns what the recurrent ones among these sublayers hold, by their layers."""
        part = self._all[numbers.start : numbers.stop]
        return {each.layer: each.recurrent for each in part if each.recurrent is not None}

    def named(self, names: Iterable[Name]) -> tuple[int, ...]:
        """Returns the numbers of sublayers that a user named, ascending.

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
        """Returns the name of a sublayer, or of the layer that begins with it: `3`, `3m`."""
        if number == self.head:
            return "the head"
        each = self._all[number]
        return f"{each.layer}" if self.starts_layer(number) else describe([(each.layer, each.kind)])

    def describe(self, numbers: Iterable[int]) -> str:
        """Returns the shortest names for some sublayers, which `parse` and `named` understand."""
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


def describe(names: Sequence[Name]) -> str:
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
