"""The options of a training."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from edgespec.errors import InputError, installing
from edgespec.llm.load.options import parse_size
from edgespec.system.options import Options, explained, option

EAGLE3, GATED, PEAGLE, DFLASH, DSPARK, MTP = KINDS = (
    "eagle3",
    "eagle3-gated",
    "peagle",
    "dflash",
    "dspark",
    "mtp",
)
"""What can be trained (Li et al., 2025; Zhang et al., Dovetail, 2024; parallel EAGLE, 2026; Chen et
al., 2026; DeepSeek, 2026; DeepSeek-AI, 2024)."""

CUDA, XPU, MPS, CPU = DEVICES = ("cuda", "xpu", "mps", "cpu")
"""Devices of PyTorch, the fastest first."""

_LONGEST_BLOCK = 16  # drafted tokens
_POSITIVE = {"above": 0, "most": 1e9, "give": "a number above 0"}


@explained
@dataclass(frozen=True)
class TrainingOptions(Options):
    """The options of a training.

    Raises:
        InputError: if a value is out of range.
    """

    kind: str = option(
        EAGLE3,
        "what to train: a layer that drafts token by token (eagle3, eagle3-gated), some that draft "
        "several tokens in one call, or the head that the model came with (mtp, with --init)",
        choices=KINDS,
        usual=True,
    )
    init: str | None = option(
        None,
        "head to go on with, or the model's checkpoint with its own (mtp): its kind, sizes, tokens "
        "and taps are kept",
        metavar="HEAD",
        none="a new one",
    )
    device: str | None = option(
        None,
        "device of PyTorch that writes, reads and trains",
        choices=DEVICES,
        none="the first of them that is there",
        usual=True,
    )
    taps: tuple[int, ...] | None = option(
        None,
        "layers whose entering hidden rows the head reads",
        metavar="N,N,...",
        none="2, the middle, and the third from the end; five for dflash and dspark",
    )
    intermediate_size: int | None = option(
        None, "width of the head's MLP", none="twice the hidden size", least=1
    )
    draft_vocabulary: int = option(
        16_384, "number of tokens that the head may propose; all if there are fewer", least=2
    )
    generate: bool = option(
        True,
        "let the target write the texts, as answers to prompts and continuations of the given "
        "ones; training on the given texts themselves is faster, and the head worse",
    )
    window: int = option(256, "tokens of a text that is read at once", least=16)
    batch: int | None = option(
        None, "tokens of a step of the optimizer", none="512 on a CPU, else 4096", least=16
    )
    steps: int | None = option(
        None,
        "tokens ahead that each position is trained for",
        none="4, or 7 of kinds that draft them in one call",
        least=1,
    )
    learning_rate: float = option(5e-4, "learning rate of AdamW", **_POSITIVE)
    minutes: float | None = option(
        None,
        "end after so many minutes of work",
        none="no limit",
        above=0,
        most=1e9,
        give="a number above 0",
        usual=True,
    )
    tokens: int | None = option(
        None,
        "end after so many tokens, such as 200k, repeated ones included",
        none="no limit",
        least=1,
    )
    patience: int = option(8, "end after so many evaluations without any gain", least=1)
    disk: int | str = option(
        "4GiB",
        "room that hidden rows may take on disk, in bytes or as a size; what finds none is read "
        "again each time",
        least=0,
        metavar="SIZE",
    )
    memory: int | str | None = option(
        None,
        "memory of the device that may be used, in bytes or as a size",
        none="what is free",
        least=1,
        metavar="SIZE",
    )
    threads: int | None = option(
        None, "threads of the CPU", none="one for each physical core", least=1
    )
    seed: int = option(0, "seed of the order of texts and of random weights", least=0)

    def __post_init__(self) -> None:
        for name in ("disk", "memory"):
            size = getattr(self, name)
            if isinstance(size, str):
                object.__setattr__(self, name, parse_size(size))
        super().__post_init__()
        if self.kind == MTP and self.init is None:
            raise InputError(
                "kind is mtp: give the model's own checkpoint, which has it, by --init"
            )
        if self.depths + 2 > self.window:
            raise InputError(f"window is {self.window}: give more than {self.depths + 1} tokens")
        if self.at_once and self.depths > _LONGEST_BLOCK:
            raise InputError(
                f"steps is {self.steps}: give at most {_LONGEST_BLOCK} for tokens of one call"
            )

    @property
    def at_once(self) -> bool:
        """Whether the head drafts several tokens in one call."""
        return self.kind not in (EAGLE3, GATED, MTP)

    @property
    def depths(self) -> int:
        """Tokens ahead that each position is trained for."""
        return self.steps or (7 if self.at_once else 4)

    def tapped(self, layers: int) -> tuple[int, ...]:
        """Returns the taps of a target with so many layers; for blocks five (Chen et al., 2026)."""
        from edgespec.models.heads.eagle3 import default_taps  # loads numpy

        if self.taps or self.kind not in (DFLASH, DSPARK):
            return self.taps or default_taps(layers)
        first = min(2, layers)
        last = max(layers - 2, 0)
        return tuple(sorted({round(first + n * (last - first) / 4) for n in range(5)}))


def require_torch() -> None:
    """Checks that PyTorch is installed, without importing it: only training uses it.

    Raises:
        InputError: if it is not.
    """
    if find_spec("torch") is None:
        raise InputError(f"training needs PyTorch: {installing('train')}")
