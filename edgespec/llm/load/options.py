"""The user's options for loading a bundle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType

from edgespec.errors import InputError
from edgespec.llm.load.adapter_files import AdapterFile
from edgespec.store.model_ref import looks_like_model
from edgespec.system.options import Option, Options, explained, option

MODEL = "model"
PARALLEL = "parallel"
HEAD = "head"
LAYER_SKIP = "layer-skip"
DRAFTS = ("auto", "none", MODEL, PARALLEL, HEAD, LAYER_SKIP, "lookup", "recycling")
PIPELINES = ("auto", "serial", "overlap")
MODEL_DRAFTS = (MODEL, PARALLEL, HEAD)  # these load the bundle's draft
PLANNED_DRAFTS = ("auto", LAYER_SKIP)  # their rounds are of several sources
RECYCLING_DRAFTS = ("auto", "recycling")  # these have a draft memory
DEFAULT_TREE_WIDTH = 4
PLANNED_DRAFT_TOKENS = 31
MAX_DRAFT_TOKENS = 127  # with the pending token, the rows of the largest pass
MAX_MEMORY = 1 << 62  # bytes, more than any machine has
MAX_THREADS = 1024  # engines allocate memory for each thread in advance

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(i?b|)", re.IGNORECASE)


@explained
@dataclass(frozen=True)
class LoadOptions(Options):
    """The options for loading a bundle.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    device: str = option(
        "cpu",
        "device of the target, as listed by `edgespec devices`; gpu is the best usable GPU, "
        "else the CPU",
        give="a device's name",
        metavar="DEVICE",
        usual=True,
    )
    draft_device: str = option(
        "cpu", "device of the draft model or head", give="a device's name", metavar="DEVICE"
    )
    draft: str = option(
        "auto",
        f"what drafts, which never changes the text: {', '.join(DRAFTS)}, or a model or head "
        "to draft with, named as the target is; auto takes in every round what is expected to be "
        "the fastest",
        give="a draft source or a model",
        metavar="SOURCE|MODEL",
        usual=True,
    )
    pipeline: str = option(
        "auto",
        "whether the draft goes on while the target works: overlap, or serial, in turn; "
        "auto: overlap where a draft model has a device of its own",
        choices=PIPELINES,
    )
    draft_memory: str | Path | None = option(
        None,
        "file with what recycling learned of earlier texts, read if it exists; "
        "`LLM.save_draft_memory` and the command line write it",
        none="recycling starts empty",
        give="a file's name",
        metavar="FILE",
    )
    threads: int | None = option(
        None,
        "number of threads per engine, fewer while other programs are busy",
        none="the number of physical cores that the process may use",
        least=1,
        most=MAX_THREADS,
    )
    context: int | None = option(
        None,
        "maximum number of tokens of prompt and output together",
        none="what the model was trained for, or what fits the memory",
        least=2,
    )
    memory: int | str | dict[str, int] | None = option(
        None,
        "limit for memory, without weights that are mapped from files: a size such as 2GiB, or "
        "one for each device, such as cpu=8GiB,gpu=3GiB; in Python also a number of bytes",
        none="the free memory",
        metavar="SIZE",
        usual=True,
    )
    gpu_layers: int | None = option(
        None,
        "number of the target's last layers that run on the GPU, with the output projection; the "
        "others run on `device`",
        none="all run on `device`",
        least=0,
    )
    lora: tuple[str | Path, ...] = option(
        (),
        "LoRA adapter to load beside the model: a folder of PEFT, its file of weights, or a GGUF "
        "file. It adds to all texts that name no other, times SCALE, which is 1 unless it is "
        "given; with 0 it waits for texts that name it",
        metavar="FILE[:SCALE]",
    )
    sessions: int = option(
        1,
        "number of texts of full length that memory is planned for; shorter ones share it, and "
        "the least recently used are dropped",
        least=1,
    )
    context_shift: bool = option(
        False,
        "leave out the oldest turns of a conversation that is too long for the context, but for "
        "the system's message, unless a request says otherwise",
    )
    prompt_cache: str | Path | None = option(
        None,
        "folder that keeps what was computed of prompts, so that later ones that begin alike are "
        "answered sooner, by other processes, too; whoever can read it can find out what was asked",
        none="nothing is kept",
        give="a folder's name",
        metavar="FOLDER",
    )
    prompt_cache_size: int | str = option(
        "2GiB",
        "room on disk for the prompt cache, such as 2GiB, in Python also a number of bytes; what "
        "was not used for longest gives way",
        least=1,
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", _parse_memory(self.memory))
        if isinstance(self.prompt_cache_size, str):
            object.__setattr__(self, "prompt_cache_size", parse_size(self.prompt_cache_size))
        if isinstance(self.lora, str | Path):
            object.__setattr__(self, "lora", (self.lora,))
        object.__setattr__(self, "lora", tuple(self.lora))
        if not all(isinstance(each, str | Path) for each in self.lora):
            raise InputError(f"lora is {self.lora!r:.80}: give files, or folders, of adapters")
        if isinstance(self.draft, Path):
            object.__setattr__(self, "draft", str(self.draft))
        super().__post_init__()
        if self.draft not in DRAFTS and not looks_like_model(self.draft):
            raise InputError(
                f"draft is {self.draft!r}: use one of {', '.join(DRAFTS)}; or a model to draft "
                "with: its path, owner/name, or a name that `edgespec search` or `edgespec models` "
                "lists"
            )
        unused = self.draft_model is None and self.draft not in RECYCLING_DRAFTS
        if self.draft_memory is not None and unused:
            raise InputError(
                f"draft_memory is given, but draft {self.draft!r} does not use it: "
                f"use one of {', '.join(RECYCLING_DRAFTS)}"
            )
        limit = Option("", least=1, most=MAX_MEMORY)
        if not isinstance(self.memory, dict):
            limit.check("memory", self.memory, (int, NoneType))
        for device, size in self.limits.items():
            limit.check(f"memory of {device}", size, (int,))

    @cached_property
    def adapter_files(self) -> list[AdapterFile]:
        """The adapters to load."""
        return [AdapterFile.parse(each) for each in self.lora]

    @property
    def draft_model(self) -> str | None:
        """The model to draft with, if the user named one."""
        return None if self.draft in DRAFTS else self.draft

    @property
    def limits(self) -> dict[str, int]:
        """Memory limits in bytes by device, as far as the user gave any."""
        assert not isinstance(self.memory, str)
        return {"cpu": self.memory} if isinstance(self.memory, int) else self.memory or {}


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
