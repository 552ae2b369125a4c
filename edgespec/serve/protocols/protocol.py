"""What every API of the server is: how its requests are read, and how they are answered."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from edgespec.bundle import Bundle
from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.options import conversational
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import PromptProgress, Result
from edgespec.llm.stream import Stream
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.serve.parts import Part
from edgespec.serve.protocols.fields import Fields, Json, KeepAlive, one_line, parse_body
from edgespec.serve.protocols.token_texts import TokenTexts
from edgespec.serve.refusals import RequestError
from edgespec.serve.served_model import ServedModel, named_adapter

_STATISTICS = ("seed", "draft", "rounds", "drafted", "accepted", "ttft_ms", "tokens_per_second")


@dataclass(frozen=True)
class Origin:
    """Where the answers of a server come from.

    Attributes:
        model: name of the model for clients.
        fingerprint: fingerprint of the bundle.
        texts: text of single tokens.
        sampling: see `LLM`.
        tells_work: whether answers have statistics of drafts and caches.
    """

    model: str
    fingerprint: str
    texts: TokenTexts
    sampling: SamplingKeywords = field(default_factory=SamplingKeywords)

    tells_work: ClassVar[bool] = True

    @classmethod
    def of(cls, model: str, bundle: Bundle, tokenizer: Tokenizer) -> Origin:
        """Returns the origin of the answers of a model with this name."""
        sampling = conversational(bundle.manifest.sampling)
        return cls(model, f"fp_{bundle.digest[:12]}", TokenTexts(tokenizer), sampling)

    def id_of(self, kind: str, place: int | None = None) -> str:
        """Returns an identifier that begins with a kind.

        Args:
            kind: such as `chatcmpl-`.
            place: of what in an answer it is; None: of the answer itself.
        """
        return f"{kind}{uuid.uuid4().hex}"

    @property
    def time(self) -> int:
        """The time of what is answered now, in seconds since 1970."""
        return int(time.time())

    def statistics(self, result: Result) -> Json:
        """Returns statistics of a text that other APIs do not have."""
        if not self.tells_work:
            return {"seed": result.seed}
        faults = {"call_faults": list(result.call_faults)} if result.call_faults else {}
        looped = {"looped": True} if result.finish_reason == "loop" else {}
        gone = result.messages_left_out
        left_out = {"messages_left_out": gone} if gone else {}
        found = {name: getattr(result, name) for name in _STATISTICS}
        return found | faults | looped | left_out


class TextBody(Fields, ABC):
    """The body of a request for texts."""

    stream: bool | None = None
    keep_alive: KeepAlive | None = None

    @property
    def cache_key(self) -> str | None:
        """The name that texts share what was computed by; None: with all others without one."""
        return None

    def adapters(self, llm: LLM) -> Mapping[str, float] | None:
        """Returns the scales of the adapters of the texts by name: of the one that is asked for.

        None: those that the model was loaded with.

        Raises:
            RequestError: if there is no such adapter.
        """
        found = named_adapter(llm.options.adapter_files, getattr(self, "model", None))
        return None if found is None else {found.name: found.scale or 1.0}

    @property
    def only_loads(self) -> bool:
        """Whether no text is asked for, but that the model is loaded."""
        return False

    @property
    def only_unloads(self) -> bool:
        """Whether no text is asked for, but that the model is unloaded."""
        return False

    @abstractmethod
    def request(self, llm: LLM) -> GenerationRequest:
        """Returns the text that is asked for, or the first one.

        Raises:
            InputError: if an option is out of range.
            RequestError: if fields contradict each other.
        """

    def texts(self, llm: LLM) -> list[Stream]:
        """Creates the streams of the texts, one for each choice, without starting them.

        Raises:
            InputError: as `request`, or if the prompt is invalid, or the draft source was not
                loaded.
            RequestError: as `request`.
        """
        request = replace(self.request(llm), cache_key=self.cache_key or "")
        if (adapters := self.adapters(llm)) is not None:
            request = replace(request, options=replace(request.options, adapters=adapters))
        return [llm.submit(request)]


class Signal(Enum):
    """What happens to a request besides its texts: it was accepted, or it still waits."""

    ACCEPTED = "accepted"
    WAITING = "waiting"


@dataclass(frozen=True)
class AnswerEnd:
    """The end of all texts of a request.

    Attributes:
        results: the texts, in their order.
    """

    results: Sequence[Result]


StreamEvent = Signal | Part | AnswerEnd | RequestError
"""What a stream may send: an error ends one that failed on the way."""


@dataclass(frozen=True)
class ErrorForm:
    """How an API writes errors.

    Attributes:
        name: what the OpenAPI document calls it.
        body: returns an error as JSON values.
        schema: JSON schema of that.
    """

    name: str
    body: Callable[[RequestError], Json]
    schema: Json


class Answer(ABC):
    """The answer to one request, whole or as events of a stream.

    Args:
        body: the request.
        origin: where the answer comes from.
    """

    # Event streams are always UTF-8, but some clients assume Latin-1 without a charset.
    media_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    last: ClassVar[tuple[str, ...]] = ("[DONE]",)
    """What follows the events of a stream that did not fail."""
    waiting: ClassVar[str] = ": waiting\n\n"
    """What tells that a stream still waits; readers of events pass over it."""

    @abstractmethod
    def __init__(self, body: Any, origin: Origin) -> None: ...

    @abstractmethod
    def whole(self, results: Sequence[Result]) -> Json:
        """Returns the answer in one piece; there are no texts if the request only loads a model."""

    def opening(self) -> list[Json]:
        """Returns the events before the first part."""
        return []

    @abstractmethod
    def part(self, part: Part) -> list[Json]:
        """Returns the events of a part."""

    @property
    def tells_all_progress(self) -> bool:
        """Whether each step of the reading of a prompt is told, and not only one a second."""
        return False

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """Returns what tells how much of a prompt was read; readers of events pass over it."""
        return f": reading {progress.read} of {progress.total} tokens\n\n"

    @abstractmethod
    def closing(self, results: Sequence[Result]) -> list[Json]:
        """Returns the events after the last part."""

    def failure(self, refusal: RequestError) -> Json:
        """Returns the event that ends a stream that failed on the way."""
        return refusal.body

    def render(self, event: StreamEvent) -> bytes:
        """Returns what a stream sends at an event, which may be nothing."""
        if isinstance(event, Part) and event.progress is not None:
            return self.reading(event.choice, event.progress).encode()
        if event is Signal.WAITING:
            return self.waiting.encode()
        if isinstance(event, Part):
            told: Sequence[Json | str] = self.part(event)
        elif isinstance(event, AnswerEnd):
            told = [*self.closing(event.results), *self.last]
        elif isinstance(event, RequestError):
            told = [self.failure(event)]
        else:
            told = self.opening()
        return "".join(map(self.written, told)).encode()

    def written(self, event: Json | str) -> str:
        """Returns an event as it is sent."""
        data = event if isinstance(event, str) else one_line(event)
        return f"data: {data}\n\n"


@dataclass(frozen=True)
class Protocol:
    """How a route is asked, by a body in JSON.

    Attributes:
        body: class of the bodies.
        summary: what the route answers with.
    """

    body: type[Any]
    summary: str

    def parse(self, data: bytes) -> Any:
        """Returns a body, of the class `body`.

        Raises:
            RequestError: if it is invalid.
        """
        return parse_body(self.body, data)


@dataclass(frozen=True)
class TextProtocol(Protocol):
    """A route that makes texts, and returns JSON or a stream.

    Attributes:
        body: class of the bodies, a `TextBody`.
        answer: class of the answers.
    """

    answer: type[Answer]


@dataclass(frozen=True)
class VectorProtocol(Protocol):
    """A route that makes vectors, for bodies as `VectorBody`."""


@dataclass(frozen=True)
class RankProtocol(Protocol):
    """A route that ranks documents, for bodies as `RerankRequest`."""


@dataclass(frozen=True)
class ObjectProtocol(Protocol):
    """A route that answers at once.

    Attributes:
        make: returns the answer to a body, for which no model is loaded; called on a thread.
    """

    make: Callable[[Any, ServedModel], Json]
