"""Options of a text."""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from edgespec.errors import InputError, reason
from edgespec.llm.load.adapter_files import require_scale
from edgespec.llm.load.options import (
    DEFAULT_TREE_WIDTH,
    MAX_DRAFT_TOKENS,
    PLANNED_DRAFT_TOKENS,
)
from edgespec.runtime.sampling.options import SamplingOptions, texts
from edgespec.system.options import explained, option

if TYPE_CHECKING:
    from edgespec.llm.keywords import SamplingKeywords

USUAL_SAMPLING = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
"""How conversations are sampled with models whose authors say nothing of that."""

GRAMMARS = ("json_schema", "regex", "grammar")  # options that constrain a text

_log = logging.getLogger(__name__)


@explained
@dataclass(frozen=True)
class GenerationOptions(SamplingOptions):
    """Options of a text in addition to `SamplingOptions`; the names follow transformers.

    At most one of `json_schema`, `regex` and `grammar` may be given. If `max_new_tokens` ends such
    a text early, it is the beginning of a valid text.

    Raises:
        InputError: if a value is out of range, or two contradict each other.
    """

    max_new_tokens: int | None = option(
        256,
        "maximum number of new tokens",
        none="as many as the context has room for",
        least=1,
        usual=True,
        also="max_tokens",
    )
    stop: tuple[str, ...] = option(
        (), "strings that end the text and are not part of it", metavar="TEXT"
    )
    stop_token_ids: tuple[int, ...] = option((), "tokens that end it, besides the model's own")
    min_indent: int = option(
        0,
        "the text ends with the line before the first one that is indented by fewer spaces and "
        "tabs; blank lines and the line that the text begins in may have any",
        least=0,
    )
    max_time: float | None = option(
        None,
        "seconds after the first token from which on the text ends with its line",
        none="any time",
        above=0,
        give="seconds above 0, or nothing for any time",
    )
    stop_loops: bool = option(
        False,
        "the text ends once it repeats the same few tokens over and over, as those of small "
        "models may",
    )
    num_assistant_tokens: int | None = option(
        None,
        "maximum number of nodes in a draft tree; 0 for plain decoding",
        none=f"{PLANNED_DRAFT_TOKENS}, or {MAX_DRAFT_TOKENS} if there is a prediction",
        least=0,
        most=MAX_DRAFT_TOKENS,
    )
    tree_width: int = option(
        DEFAULT_TREE_WIDTH,
        "maximum number of branches per level of a draft tree; 1 drafts chains",
        least=1,
    )
    draft_source: str | None = option(
        None,
        "draft source of this text, one of `LLM.draft_sources`",
        none="that which the model was loaded with",
    )
    adapters: Mapping[str, float] | str | Sequence[str] | None = option(
        None,
        "adapters that add to the model in this text, of those that it was loaded with (`lora`): "
        "their names, or their scales by name",
        none="those of the model, with its scales",
    )
    prediction: str | Sequence[int] | None = option(
        None,
        "expected text, such as a file before an edit, or its token ids; drafts are taken "
        "from it as long as the text goes its way, with any source but none; it never changes the "
        "text",
        none="there is none",
    )
    logprobs: int | None = option(
        None,
        "number of likeliest tokens to report with each token, besides the token's own "
        "log-probability",
        none="no log-probabilities",
        least=0,
    )
    json_schema: dict[str, Any] | str | type | None = option(
        None,
        "JSON schema that the text must be valid for; or a pydantic class, whose instance "
        "`Result.parsed` is then",
        metavar="FILE",
    )
    regex: str | None = option(None, "regular expression that the text must match")
    grammar: str | None = option(None, "grammar in Lark's notation that the text must follow")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structure is not None and isinstance(self.json_schema, dict):
            object.__setattr__(self, "json_schema", _as_json(self.json_schema))
        object.__setattr__(self, "stop", texts("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        for name, scale in (self.adapter_scales or {}).items():
            if not isinstance(name, str) or not isinstance(scale, int | float):
                raise InputError(
                    f"adapters is {self.adapters!r:.80}: give names, or scales by names"
                )
            require_scale(f"the scale of adapter {name!r:.80}", scale)

    @property
    def adapter_scales(self) -> Mapping[str, float] | None:
        """The scales of adapters by their names; None: those that they were loaded with."""
        adapters = self.adapters
        if adapters is None or isinstance(adapters, Mapping):
            return adapters
        return dict.fromkeys((adapters,) if isinstance(adapters, str) else adapters, 1.0)

    @property
    def json_class(self) -> type | None:
        """The class that was given as `json_schema`, if it was one."""
        kind = self.json_schema
        return kind if isinstance(kind, type) and hasattr(kind, "model_json_schema") else None

    @property
    def structure(self) -> tuple[str, str] | None:
        """Which of `GRAMMARS` the text follows, and its source; None if it follows none."""
        given = [(kind, source) for kind in GRAMMARS if (source := getattr(self, kind)) is not None]
        if self.json_class is not None:
            given[0] = GRAMMARS[0], _schema_of(self.json_class)
        for kind, source in given:
            if not isinstance(source, str) and (kind, type(source)) != ("json_schema", dict):
                raise InputError(f"{kind} is {source!r:.80}: give a string")
            if isinstance(source, str):
                _require_unicode(kind, source)
        if len(given) > 1:
            names = " and ".join(kind for kind, _ in given)
            raise InputError(f"{names} are given: a text can follow only one of them")
        return given[0] if given else None


def conversational(asked: Mapping[str, float] | None) -> SamplingKeywords:
    """Returns options for a conversation: what a model's authors ask for, or what is usual.

    Args:
        asked: `Manifest.sampling`. What is not an option, or out of range, is left out and logged.
    """
    found = dict[str, float]()
    for name, value in (asked or {}).items():
        option_ = {name: int(value) if value == int(value) else value}
        try:
            SamplingOptions.of(option_)
        except (InputError, TypeError) as error:
            _log.warning("what the model's authors ask for is left out: %s", error)
        else:
            found |= option_
    how = found if "temperature" in found else USUAL_SAMPLING | found
    return cast("SamplingKeywords", how)


def in_conversation(usual: SamplingKeywords, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a text: what is given goes before what is usual.

    With a temperature of 0 nothing else is usual, penalties neither: the text is greedy.
    """
    return dict(given) if given.get("temperature") == 0 else {**usual, **given}


def _token_ids(ids: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(id_) for id_ in ids)
    except TypeError as error:
        raise InputError(f"stop_token_ids is {ids!r:.80}: give token ids in a list") from error


def _schema_of(kind: Any) -> str:
    """Returns the JSON schema of a pydantic class, without properties that it does not name."""
    try:
        schema = kind.model_json_schema()
    except Exception as error:  # whatever pydantic, or a class like its own, has to say
        raise InputError(
            f"json_schema is {kind.__name__}, of which there is no schema ({reason(error)}): use "
            "fields that JSON has"
        ) from error
    for each in (schema, *schema.get("$defs", {}).values()):
        if "properties" in each:
            each.setdefault("additionalProperties", False)
    return _as_json(schema)


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
