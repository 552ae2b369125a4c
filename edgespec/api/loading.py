"""The user's options for loading a bundle, with the defaults that the API and the CLI share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

from edgespec.errors import InputError
from edgespec.system.options import require_count, require_most, take_numpy

DRAFTS = ("auto", "none", "model", "parallel", "head", "layer-skip", "lookup", "recycling")
PIPELINES = ("auto", "serial", "overlap")
MODEL_DRAFTS = ("model", "parallel", "head")  # these load the bundle's draft
PLANNED_DRAFTS = ("auto", "layer-skip")  # the planner sizes their trees by measured costs
RECYCLING_DRAFTS = ("auto", "recycling")  # these have a draft memory
FIXED_DRAFT_TOKENS = 7
DEFAULT_TREE_WIDTH = 4
PLANNED_DRAFT_TOKENS = 31
MAX_DRAFT_TOKENS = 127  # with the pending token, the rows of the largest pass
MAX_MEMORY = 1 << 62  # bytes, more than any machine has
MAX_THREADS = 1024  # engines allocate memory for each thread in advance

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(i?b|)", re.IGNORECASE)


@dataclass(frozen=True)
class LoadOptions:
    """The options for loading a bundle.

    Attributes:
        device: device of the target: cpu (the faster CPU engine by measurement), gpu (the best
            usable GPU, else the CPU), or an engine's full name as `edgespec devices` lists it.
        gpu_layers: number of the target's last layers that run, with the head, on the device gpu;
            the others run on `device`. None: all do.
        draft_device: device of the draft model, named like `device`.
        draft: the draft source, one of `DRAFTS`. auto chooses among all of them in every round,
            layer-skip among the bundle's skip sets and plain decoding. A bundle's draft is a model
            or a head; parallel is a draft model that predicts several tokens in one call.
        pipeline: one of `PIPELINES`. overlap drafts while the target verifies, serial drafts
            before it, auto chooses by measurement if target and draft model use two devices.
        draft_memory: file with token statistics of earlier texts for recycling, read if it exists;
            `LLM.save_draft_memory` writes it. None: recycling starts empty.
        threads: number of threads per engine; None: the number of physical cores that this
            process may use.
        context: maximum number of tokens of prompt and output together; None: what the model was
            trained for, or less if memory is short.
        sessions: number of texts of full length that the caches have memory for. Shorter texts
            share that memory; the least recently used are dropped.
        prefix_reuse: whether texts outside sessions also reuse cached prefixes of earlier texts.
            If rows are not exact, a near-tie may then be decided differently than without reuse.
        prompt_cache: folder for what texts have computed, of which later texts that begin alike go
            on, in other processes too; see `prefix_reuse` for rows that are not exact. None: none.
        prompt_cache_size: bytes that it may take on disk, or a text such as 2GiB; the least
            recently used part gives way. Stored as bytes.
        memory: limit for anonymous and shared memory together: bytes, or a text such as 2GiB. For
            several devices, a dict of bytes or a text such as cpu=8GiB,gpu=3GiB. None: the free
            memory. Stored as bytes.

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
    gpu_layers: int | None = None
    sessions: int = 1
    prefix_reuse: bool = False
    prompt_cache: str | Path | None = None
    prompt_cache_size: int | str = 2 << 30

    def __post_init__(self) -> None:
        take_numpy(self)
        for name, kind, wanted in (
            ("device", str, "a device's name"),
            ("draft_device", str, "a device's name"),
            ("prefix_reuse", bool, "True or False"),
            ("draft_memory", (str, Path, NoneType), "a file's name"),
            ("prompt_cache", (str, Path, NoneType), "a folder's name"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"{name} is {getattr(self, name)!r}: give {wanted}")
        if self.draft not in DRAFTS:
            raise InputError(f"draft is {self.draft!r}: use one of {', '.join(DRAFTS)}")
        if self.pipeline not in PIPELINES:
            raise InputError(f"pipeline is {self.pipeline!r}: use one of {', '.join(PIPELINES)}")
        if self.draft_memory is not None and self.draft not in RECYCLING_DRAFTS:
            raise InputError(
                f"draft_memory is given, but draft {self.draft!r} does not use it: "
                f"use one of {', '.join(RECYCLING_DRAFTS)}"
            )
        self._parse_sizes()
        if not isinstance(self.memory, dict):
            require_count("memory", self.memory, 1, optional=True)
        for device, size in self.limits.items():
            require_count(f"memory of {device}", size, 1)
            require_most(f"memory of {device}", size, MAX_MEMORY)
        require_count("sessions", self.sessions, 1)
        require_count("prompt_cache_size", self.prompt_cache_size, 1)
        for name, least in (("threads", 1), ("context", 2), ("gpu_layers", 0)):
            require_count(name, getattr(self, name), least, optional=True)
        require_most("threads", self.threads, MAX_THREADS)

    def _parse_sizes(self) -> None:
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", _parse_memory(self.memory))
        if isinstance(self.prompt_cache_size, str):
            object.__setattr__(self, "prompt_cache_size", parse_size(self.prompt_cache_size))

    @property
    def limits(self) -> dict[str, int]:
        """Memory limits in bytes by device, as far as the user gave any."""
        assert not isinstance(self.memory, str)
        return {"cpu": self.memory} if isinstance(self.memory, int) else self.memory or {}


def default_tree(draft: str) -> int:
    """Returns the default maximum number of draft tree nodes; the planner may use smaller trees."""
    return PLANNED_DRAFT_TOKENS if draft in PLANNED_DRAFTS else FIXED_DRAFT_TOKENS


def parse_size(text: str) -> int:
    """Parses a size such as 2GiB, 900MB or 1.5G, and returns it in bytes.

    KB, MB, GB and TB are powers of 1000; KiB to TiB and single letters are powers of 1024.

    Raises:
        InputError: the text is something else, such as a number without a unit.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InputError(f"size {text!r} is not valid: give a number and a unit, as 2GiB or 900MB")
    number, prefix, rest = found.groups()
    base = 1000 if rest.lower() == "b" else 1024
    size = float(number) * base ** ("kmgt".index(prefix.lower()) + 1)
    if size < 1:
        raise InputError(f"size {text!r} is less than one byte: give a larger size")
    if size > MAX_MEMORY:
        raise InputError(f"size {text!r:.40} is too large: give at most what the machine has")
    return int(size)


def _parse_memory(text: str) -> int | dict[str, int]:
    """Parses one size, or a size for each of several devices."""
    if "=" not in text:
        return parse_size(text)
    limits: dict[str, int] = {}
    for part in text.split(","):
        device, _, size = (word.strip() for word in part.partition("="))
        if not device or device in limits:
            raise InputError(f"memory {text!r}: name each device once, as cpu=8GiB,gpu=3GiB")
        limits[device] = parse_size(size)
    return limits
