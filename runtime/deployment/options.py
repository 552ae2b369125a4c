"""How a bundle is loaded, as users say it, with the defaults that the API and the CLI share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

from edgespec.errors import InputError
from edgespec.runtime.shapes import ROW_BUCKETS
from edgespec.system.options import require_count, require_most, take_numpy

DRAFTS = ("auto", "none", "model", "layer-skip", "lookup", "recycling")
PIPELINES = ("auto", "serial", "overlap")
PLANNED_DRAFTS = ("auto", "layer-skip")  # whose trees are sized by what they cost
RECYCLING_DRAFTS = ("auto", "recycling")  # which have a draft memory
FIXED_DRAFT_TOKENS = 7
DEFAULT_TREE_WIDTH = 4
PLANNED_DRAFT_TOKENS = 31
MAX_DRAFT_TOKENS = ROW_BUCKETS[-1] - 1  # the pending token is a row of the verification too
MAX_MEMORY = 1 << 62  # bytes, more than any machine has
MAX_THREADS = 1024  # engines take memory for each, before any works

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(i?b|)", re.IGNORECASE)


@dataclass(frozen=True)
class LoadOptions:
    """How a bundle is loaded.

    Attributes:
        device: where the target runs: cpu (the faster engine, measured), gpu (the best that is
            usable, else the cpu), or an engine's full name, as `edgespec devices` lists them.
        place: where each of the target's layers runs, in place of `device`; see
            `runtime.placement`. Devices can meet where the bundle has a cut.
        gpu_layers: how many of the target's last layers run on the device gpu, the head with them,
            and the others on `device`; None: no word about it.
        draft_device: where the draft model runs; the same names.
        draft: the draft source, one of `DRAFTS`; auto weighs them all in every round, layer-skip
            the bundle's skip sets and plain decoding.
        pipeline: one of `PIPELINES`: drafts go on while the target verifies (overlap) or wait for
            it (serial); auto weighs them where two devices take part.
        draft_memory: a file of what recycling learned, to start from if it exists; None: from
            nothing. `LLM.save_draft_memory` writes it.
        threads: for each engine; None: the physical cores that this process may use.
        context: tokens of prompt and output together; None: what the model was trained for, or
            what memory has room for.
        sessions: texts of full length that caches have memory for; shorter ones share it, and the
            least recently used are forgotten.
        prefix_reuse: texts outside sessions go on from what earlier ones have left in the caches,
            too. Where rows are not exact, a near-tie may then fall otherwise than in a text begun
            anew.
        memory: what the process may use, anonymous and shared memory together: bytes, or a text
            such as 2GiB; of several devices a dict, or a text such as cpu=8GiB,gpu=3GiB; None:
            what is free. Kept as bytes.
        simulate: a machine that is stated and not here: the name of one that comes with the
            package, or its JSON file. Devices are then the machine's, as cpu, gpu or npu, calls
            take as long as there, and layers and memory are those of the models stated for it.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    device: str = "cpu"
    draft_device: str = "cpu"
    draft: str = "auto"
    pipeline: str = "auto"
    draft_memory: str | Path | None = None
    threads: int | None = None
    context: int | None = None
    memory: int | str | dict[str, int] | None = None
    place: str | None = None
    gpu_layers: int | None = None
    simulate: str | Path | None = None
    sessions: int = 1
    prefix_reuse: bool = False

    def __post_init__(self) -> None:
        take_numpy(self)
        for name, kind, wanted in (
            ("device", str, "a device's name"),
            ("draft_device", str, "a device's name"),
            ("prefix_reuse", bool, "True or False"),
            ("place", (str, NoneType), "a text, as 0-7=cpu,8-=gpu"),
            ("draft_memory", (str, Path, NoneType), "a file's name"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} is {getattr(self, name)!r}: give {wanted}")
        if self.draft not in DRAFTS:
            raise InputError(f"draft is {self.draft!r}: use one of {', '.join(DRAFTS)}")
        if self.pipeline not in PIPELINES:
            raise InputError(f"pipeline is {self.pipeline!r}: use one of {', '.join(PIPELINES)}")
        if self.draft_memory is not None and self.draft not in RECYCLING_DRAFTS:
            raise InputError(
                f"draft_memory is given with draft {self.draft!r}, which has none: "
                f"use one of {', '.join(RECYCLING_DRAFTS)}"
            )
        for name, usual in (("device", LoadOptions.device), ("gpu_layers", None)):
            if self.place is not None and getattr(self, name) != usual:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, and place says where every layer runs: "
                    "give one of them"
                )
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", _parse_memory(self.memory))
        if not isinstance(self.memory, dict):
            require_count("memory", self.memory, 1, optional=True)
        for device, size in self.limits.items():
            require_count(f"memory of {device}", size, 1)
            require_most(f"memory of {device}", size, MAX_MEMORY)
        require_count("sessions", self.sessions, 1)
        for name, least in (("threads", 1), ("context", 2), ("gpu_layers", 0)):
            require_count(name, getattr(self, name), least, optional=True)
        require_most("threads", self.threads, MAX_THREADS)

    @property
    def limits(self) -> dict[str, int]:
        """Bytes that may be used of each device's memory, where the user said so."""
        assert not isinstance(self.memory, str)
        return {"cpu": self.memory} if isinstance(self.memory, int) else self.memory or {}

    @property
    def machine(self) -> str | None:
        """What is simulated, as it appears in results; None: nothing."""
        return None if self.simulate is None else str(self.simulate)


def default_tree(draft: str) -> int:
    """Nodes of a draft tree at most where the user says nothing: planned ones are cut to pay."""
    return PLANNED_DRAFT_TOKENS if draft in PLANNED_DRAFTS else FIXED_DRAFT_TOKENS


def parse_size(text: str) -> int:
    """Bytes from a size such as 2GiB, 900MB or 1.5G.

    KB, MB, GB and TB are powers of 1000; KiB to TiB and the letters alone are powers of 1024.

    Raises:
        InputError: on anything else, a number without a unit among it.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InputError(f"size {text!r} is not known: give a number and a unit, as 2GiB or 900MB")
    number, prefix, rest = found.groups()
    base = 1000 if rest.lower() == "b" else 1024
    size = float(number) * base ** ("kmgt".index(prefix.lower()) + 1)
    if size < 1:
        raise InputError(f"size {text!r} is less than a byte: give more")
    if size > MAX_MEMORY:
        raise InputError(f"size {text!r:.40} is too large: give what the machine has")
    return int(size)


def _parse_memory(text: str) -> int | dict[str, int]:
    """A size, or one for each of several devices."""
    if "=" not in text:
        return parse_size(text)
    limits: dict[str, int] = {}
    for part in text.split(","):
        device, _, size = (word.strip() for word in part.partition("="))
        if not device or device in limits:
            raise InputError(f"memory {text!r}: name each device once, as cpu=8GiB,gpu=3GiB")
        limits[device] = parse_size(size)
    return limits
