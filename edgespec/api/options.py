"""Options of a text, and helpers that turn keyword arguments into option classes."""

from __future__ import annotations

import inspect
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from edgespec.api.loading import DEFAULT_TREE_WIDTH, MAX_DRAFT_TOKENS
from edgespec.errors import InputError, reason
from edgespec.runtime.sampling.sampler import SamplingOptions
from edgespec.system.options import require_count, require_most

GRAMMARS = ("json_schema", "regex", "grammar")  # options that constrain a text

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    """Options of a text in addition to `SamplingOptions`; the names follow transformers.

    At most one of `json_schema`, `regex` and `grammar` may be given. If `max_new_tokens` ends such
    a text early, it is the beginning of a valid text.

    Attributes:
        max_new_tokens: maximum number of new tokens.
        stop: strings that end the text and are not part of it.
        stop_token_ids: tokens that end the text, besides the model's own.
        min_indent: the text ends with the line before the first one that is indented by fewer
            spaces and tabs; blank lines and the line that the text begins in may have any.
        max_time: seconds after the first token from which on the text ends with its line; None for
            any.
        num_assistant_tokens: maximum number of nodes in a draft tree; 0 for plain decoding; None
            for `FIXED_DRAFT_TOKENS`, or with one of `PLANNED_DRAFTS` for `PLANNED_DRAFT_TOKENS`, or
            if there is a prediction for as many as one call may hold.
        tree_width: maximum number of branches per level of a draft tree; 1 drafts chains.
        draft_source: draft source of this text, one of `LLM.draft_sources`; None for the one that
            the model was loaded with.
        prediction: expected text, such as a file before an edit, or its token ids; drafts are taken
            from it as long as the text goes its way. It never changes the text, and any source but
            none uses it. None or an empty one: there is none.
        logprobs: number of likeliest tokens to report with each token, besides the token's own
            log-probability; 0 for only its own; None for no log-probabilities.
        json_schema: JSON schema that the text must be valid for, as a dict or JSON text.
        regex: regular expression that the text must match.
        grammar: grammar in Lark's notation that the text must follow.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_indent: int = 0
    max_time: float | None = None
    num_assistant_tokens: int | None = None
    tree_width: int = DEFAULT_TREE_WIDTH
    draft_source: str | None = None
    prediction: str | Sequence[int] | None = None
    logprobs: int | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes = self.num_assistant_tokens
        for name, least in (("max_new_tokens", 1), ("tree_width", 1), ("min_indent", 0)):
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
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        _require_seconds("max_time", self.max_time)

    @property
    def structure(self) -> tuple[str, str] | None:
        """Which of `GRAMMARS` the text follows, and its source; None if it follows none."""
        given = [(kind, source) for kind in GRAMMARS if (source := getattr(self, kind)) is not None]
        for kind, source in given:
            if not isinstance(source, str) and (kind, type(source)) != ("json_schema", dict):
                raise InputError(f"{kind} is {source!r:.80}: give a string")
            if isinstance(source, str):
                _require_unicode(kind, source)
        if len(given) > 1:
            names = " and ".join(kind for kind, _ in given)
            raise InputError(f"{names} are given: a text can follow only one of them")
        return given[0] if given else None


def shown(kind: type) -> Callable[[F], F]:
    """Decorates a function so that `inspect.signature`, help and completion show its options.

    The function's last parameter is `**options`; the fields of the options class replace it.
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
    """Builds an options class from keyword arguments.

    Raises:
        TypeError: if an option is unknown.
        InputError: if a value is out of range.
    """
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            from difflib import get_close_matches  # takes 5 ms, and is needed only here

            like = "".join(f" (did you mean {each}?)" for each in get_close_matches(name, known, 1))
            raise TypeError(f"unknown option {name!r}{like}: use one of {', '.join(known)}")
    return kind(**options)


def _token_ids(ids: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(id_) for id_ in ids)
    except TypeError as error:
        raise InputError(f"stop_token_ids is {ids!r:.80}: give token ids in a list") from error


def _require_seconds(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"{name} is {value!r}: give seconds above 0, or nothing for any time")


def _as_json(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"json_schema is not valid JSON ({reason(error)}): correct it") from error


def _require_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not valid Unicode at character {error.start}: give UTF-8"
        ) from error
