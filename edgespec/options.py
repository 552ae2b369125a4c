"""What a user can set, with the defaults that the API and the CLI share."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from edgespec.errors import InputError, reason
from edgespec.runtime.buckets import ROW_BUCKETS
from edgespec.runtime.sampling import SamplingOptions, take_numpy

DRAFTS = ("auto", "none", "model", "layer-skip", "lookup", "recycling")
PIPELINES = ("auto", "serial", "overlap")
GRAMMARS = ("json_schema", "regex", "grammar")  # what a text can be made to follow
PLANNED_DRAFTS = ("auto", "layer-skip")  # whose trees are sized by what they cost
RECYCLING_DRAFTS = ("auto", "recycling")  # which have a draft memory
FIXED_DRAFT_TOKENS = 7
DEFAULT_TREE_WIDTH = 4
PLANNED_DRAFT_TOKENS = 31
MAX_DRAFT_TOKENS = ROW_BUCKETS[-1] - 1  # the pending token is a row of the verification too
MAX_MEMORY = 1 << 62  # bytes, more than any machine has
MAX_THREADS = 1024  # engines take memory for each, before any works
CONTEXT_HELP = "tokens of prompt and output (default: what the model was made for, or what fits)"
MEMORY_HELP = "what may be used, as 2GiB, or by device, as cpu=8GiB,gpu=3GiB (default: all free)"
PLACE_HELP = "where the target's layers run, as 0-7=onnxruntime:cpu,8-=openvino:cpu"
SIMULATE_HELP = "run on a stated machine: the name of a laptop, or a JSON file (docs/simulator.md)"
GPU_LAYERS_HELP = "the last N layers and the head on the device gpu, the others on --device"

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(i?b|)", re.IGNORECASE)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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
            _require_count("memory", self.memory, 1, optional=True)
        for device, size in self.limits.items():
            _require_count(f"memory of {device}", size, 1)
            _require_most(f"memory of {device}", size, MAX_MEMORY)
        _require_count("sessions", self.sessions, 1)
        for name, least in (("threads", 1), ("context", 2), ("gpu_layers", 0)):
            _require_count(name, getattr(self, name), least, optional=True)
        _require_most("threads", self.threads, MAX_THREADS)

    @property
    def limits(self) -> dict[str, int]:
        """Bytes that may be used of each device's memory, where the user said so."""
        assert not isinstance(self.memory, str)
        return {"cpu": self.memory} if isinstance(self.memory, int) else self.memory or {}

    @property
    def machine(self) -> str | None:
        """What is simulated, as it appears in results; None: nothing."""
        return None if self.simulate is None else str(self.simulate)


@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    """How a text is made: `SamplingOptions` and these. Names follow transformers.

    Attributes:
        max_new_tokens: tokens to make at most.
        stop: strings that end the text and are not part of it.
        num_assistant_tokens: nodes of a draft tree at most; 0 is plain decoding; None:
            `FIXED_DRAFT_TOKENS`, or `PLANNED_DRAFT_TOKENS` with one of `PLANNED_DRAFTS`.
        tree_width: branches of a draft tree per level; 1 drafts chains.
        draft_source: who drafts this text, of those that what was loaded offers
            (`LLM.draft_sources`); None: what it was loaded with.
        logprobs: how many of the likeliest tokens to report with each token, besides the token's
            own log-probability; 0: that alone; None: nothing.
        json_schema: the text is JSON that is valid by this schema (a dict, or JSON).
        regex: the text is what this regular expression matches.
        grammar: the text is what this grammar generates, in Lark's notation. At most one of the
            three; a text that `max_new_tokens` ends early is a beginning of such a text.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    num_assistant_tokens: int | None = None
    tree_width: int = DEFAULT_TREE_WIDTH
    draft_source: str | None = None
    logprobs: int | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes = self.num_assistant_tokens
        for name, least in (("max_new_tokens", 1), ("tree_width", 1)):
            _require_count(name, getattr(self, name), least)
        _require_count("num_assistant_tokens", nodes, 0, optional=True)
        _require_count("logprobs", self.logprobs, 0, optional=True)
        if self.structure is not None and isinstance(self.json_schema, dict):
            object.__setattr__(self, "json_schema", _as_json(self.json_schema))
        _require_most("num_assistant_tokens", nodes, MAX_DRAFT_TOKENS)
        several = isinstance(self.stop, Iterable) and not isinstance(self.stop, str)
        stop = tuple(self.stop) if several else (self.stop,)
        if not all(isinstance(text, str) and text for text in stop):
            raise InputError(f"stop is {self.stop!r}: give strings of at least one character")
        object.__setattr__(self, "stop", stop)

    @property
    def structure(self) -> tuple[str, str] | None:
        """Which of `GRAMMARS` the text follows, and its source; None: none."""
        given = [(kind, source) for kind in GRAMMARS if (source := getattr(self, kind)) is not None]
        for kind, source in given:
            if not isinstance(source, str) and (kind, type(source)) != ("json_schema", dict):
                raise InputError(f"{kind} is {source!r:.80}: give a text")
            if isinstance(source, str):
                _require_unicode(kind, source)
        if len(given) > 1:
            names = " and ".join(kind for kind, _ in given)
            raise InputError(f"{names} are given: a text can follow one of them")
        return given[0] if given else None


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


def shown(kind: type) -> Callable[[F], F]:
    """Have `inspect.signature`, help and completion show the fields of an options class.

    Of a function whose last parameter is `**options`.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        taken = inspect.signature(kind).parameters.values()
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in taken]
        parameters = [*list(own.parameters.values())[:-1], *keywords]
        vars(function)["__signature__"] = own.replace(parameters=parameters)
        return function

    return decorate


def checked(kind: type[T], options: Mapping[str, Any]) -> T:
    """An options class from keyword arguments.

    Raises:
        TypeError: on a name that it does not have.
        InputError: on a value out of range.
    """
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            from difflib import get_close_matches  # takes 5 ms, for a mistake alone

            like = "".join(f" (perhaps {each})" for each in get_close_matches(name, known, 1))
            raise TypeError(f"unknown option {name!r}{like}: use one of {', '.join(known)}")
    return kind(**options)


def _as_json(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"json_schema is no JSON ({reason(error)}): correct it") from error


def _require_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not valid Unicode at character {error.start}: give UTF-8"
        ) from error


def _require_count(name: str, value: object, least: int, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}: give a whole number from {least} upwards")


def _require_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise InputError(f"{name} is {value}: give {most} or less")
