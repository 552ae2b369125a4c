"""How a text is made, as users say it, and options as keyword arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from edgespec.errors import InputError, reason
from edgespec.runtime.deployment.options import DEFAULT_TREE_WIDTH, MAX_DRAFT_TOKENS
from edgespec.runtime.sampling.sampler import SamplingOptions
from edgespec.system.options import require_count, require_most

GRAMMARS = ("json_schema", "regex", "grammar")  # what a text can be made to follow

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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
            require_count(name, getattr(self, name), least)
        require_count("num_assistant_tokens", nodes, 0, optional=True)
        require_count("logprobs", self.logprobs, 0, optional=True)
        if self.structure is not None and isinstance(self.json_schema, dict):
            object.__setattr__(self, "json_schema", _as_json(self.json_schema))
        require_most("num_assistant_tokens", nodes, MAX_DRAFT_TOKENS)
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
