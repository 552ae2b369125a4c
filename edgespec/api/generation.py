"""A text that the engine generates, as a stream of pieces, and its result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from edgespec.api.result import GenerationResult
from edgespec.errors import InputError
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import PROMPT, Request, Round
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.streaming import StreamDecoder
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import peak_rss_mb

_NAME = "cpu:native"  # of the engine
_WARM_UP = 10  # rounds before forecasts are compared with what was measured


class GenerationStream:
    """Pieces of a text as they are generated; iterate over it once, then read `result`.

    Args:
        engine: continues the text.
        request: what is asked for.
        tokenizer: tokenizer of the target.
        end: what ends the text besides its tokens.
        models: the target, and the draft model if there is one.

    Attributes:
        rounds: the rounds so far, without the prompt's.
        tokens: number of new tokens so far.
        logprobs: log-probabilities of the tokens so far; empty if they were not requested.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        tokenizer: Tokenizer,
        end: TextEnd,
        models: Sequence[Model],
    ) -> None:
        self._engine, self._request, self._models = engine, request, models
        self._decoder = StreamDecoder(tokenizer, request.prompt)
        self._end = end
        self._pieces = self._generate()
        self._shown: list[str] = []
        self._new: list[int] = []
        self._result: GenerationResult | None = None
        self._cancelled = self._stopped = False
        self.rounds: list[Round] = []
        self.logprobs: list[TokenLogprobs] = []

    @property
    def tokens(self) -> int:
        """The number of new tokens so far."""
        return len(self._new)

    @property
    def result(self) -> GenerationResult:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end.
        """
        if self._result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self._result

    def finish(self) -> GenerationResult:
        """Reads the stream to its end and returns the finished text."""
        for _ in self._pieces:
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the text after the current round; any thread or signal handler may call it."""
        self._cancelled = True

    def __iter__(self) -> Iterator[str]:
        """Returns the pieces of text; none is empty, and together they are `result.text`."""
        return self._pieces

    def _generate(self) -> Iterator[str]:
        begin = first = end = time.perf_counter()
        computing = self._seconds()
        with closing(self._engine.generate(self._request)) as rounds:
            for made in rounds:
                end = time.perf_counter()
                if made.source == PROMPT:
                    first, computing = end, self._seconds()
                else:
                    self.rounds.append(made)
                if piece := self._push(made):
                    yield piece
                if self._cancelled or self._stopped:
                    break
        computing = self._seconds() - computing
        if piece := self._show(self._decoder.flush()) + self._end.flush():
            self._shown.append(piece)
            yield piece
        self._result = self._facts(first - begin, end - first, computing)

    def _seconds(self) -> float:
        """Returns the time inside graphs so far."""
        return sum(model.seconds for model in self._models)

    def _push(self, made: Round) -> str:
        """Takes new tokens, up to the end of the text; returns the text that is now final."""
        piece = ""
        for number, token in enumerate(made.tokens, 1):
            self._new.append(token)
            if token not in self._request.limits.stop_ids:
                piece += self._show(self._decoder.push(token))
            if self._stopped:
                if made.source != PROMPT:  # tokens behind the end are no part of the round
                    accepted = min(made.accepted, number)
                    self.rounds[-1] = replace(made, tokens=made.tokens[:number], accepted=accepted)
                break
        self.logprobs += made.logprobs[: len(self._new) - len(self.logprobs)]
        self._shown.append(piece)
        return piece

    def _show(self, text: str) -> str:
        piece, self._stopped = self._end.push(text)
        return piece

    def _finish_reason(self) -> str:
        limits, made = self._request.limits, len(self._new)
        if self._stopped or (made and self._new[-1] in limits.stop_ids):
            return "stop"
        if made >= limits.max_new_tokens:
            return "length"
        if len(self._request.prompt) + made >= limits.context_length:
            return "context"
        return "cancelled"

    def _facts(self, first: float, further: float, computing: float) -> GenerationResult:
        rounds, count = self.rounds, max(len(self._new) - 1, 0)
        predicted, measured = _rates(rounds[_WARM_UP:])
        return GenerationResult(
            text="".join(self._shown),
            tokens=self._new,
            prompt_tokens=len(self._request.prompt),
            new_tokens=len(self._new),
            finish_reason=self._finish_reason(),
            seed=self._request.sampler.seed,
            ttft_ms=round(first * 1e3, 2),
            tpot_ms=round(further * 1e3 / count, 3) if count else 0.0,
            tokens_per_second=round(count / further, 1) if count else 0.0,
            rounds=len(rounds),
            drafted=sum(made.drafted for made in rounds),
            accepted=sum(made.accepted for made in rounds),
            mean_accepted_length=round(count / len(rounds), 3) if rounds else 0.0,
            begun=0,
            draft=self._request.draft,
            sources=dict(Counter(made.source for made in rounds).most_common()),
            draft_memory=None,
            predicted_tokens_per_second=predicted,
            measured_tokens_per_second=measured,
            engine=_NAME,
            exact=True,
            draft_engine=_NAME if len(self._models) > 1 else None,
            peak_rss_mb=peak_rss_mb(),
            engine_ms=round(computing * 1e3, 2),
            reused=0,
            logprobs=tuple(self.logprobs),
        )


def _rates(rounds: Sequence[Round]) -> tuple[float | None, float | None]:
    """Returns the predicted and the measured tokens per second of these rounds."""
    planned = [(made, made.forecast) for made in rounds if made.forecast is not None]
    if not planned:
        return None, None
    expected = sum(f.tokens for _, f in planned) / sum(f.seconds for _, f in planned)
    came = sum(len(made.tokens) for made, _ in planned) / sum(made.seconds for made, _ in planned)
    return round(expected, 1), round(came, 1)
