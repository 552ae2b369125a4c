"""Benchmark of native graphs: all settings take turns with one loaded bundle.

They differ in the draft source alone, so they can share weights, caches and measured costs; of what
texts teach drafters, each text begins with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import blake2b

import numpy as np

from edgespec.api.generation import GenerationStream
from edgespec.api.llm import LLM, is_native
from edgespec.api.loading import LoadOptions
from edgespec.bundle import Bundle
from edgespec.measuring.bench import PLAIN, Bench, Setting
from edgespec.measuring.bits import CHUNKS, Bits
from edgespec.measuring.worker import Made, Request
from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.memory import USUAL_CONTEXT
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import Sequence as Tokens
from edgespec.runtime.speculation.generation import AUTO

_OTHERS = 6  # most further rows between the text's own ones


def are_native(bundle: Bundle, options: LoadOptions, drafts: Sequence[str]) -> bool:
    """Whether a bundle's native graphs can make all settings; logs a line if not."""
    return all(is_native(bundle, replace(options, draft=draft)) for draft in ("none", *drafts))


class NativeBench(Bench):
    """A benchmark as `Bench`, in this process, of settings for which `are_native` holds."""

    def __init__(
        self,
        bundle: Bundle,
        options: LoadOptions,
        drafts: Sequence[str],
        requests: Sequence[Request],
        bits: int = 0,
    ) -> None:
        self._bundle, self._requests, self._positions = bundle, requests, bits
        self.together = True
        longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
        context = options.context or min(max(longest, USUAL_CONTEXT), bundle.target.context_length)
        source = drafts[0] if len(drafts) == 1 else AUTO if drafts else "none"
        self._loading = replace(options, context=context, draft=source)
        self.settings = {
            PLAIN if draft == "none" else draft: replace(self._loading, draft=draft)
            for draft in ("none", *drafts)
        }

    @contextmanager
    def _loaded(self, names: Sequence[str]) -> Iterator[Mapping[str, Setting]]:
        llm = LLM(self._bundle, self._loading)
        yield {name: _Setting(llm, self.settings[name].draft) for name in names}


class _Setting:
    """See `Setting`."""

    def __init__(self, llm: LLM, draft: str) -> None:
        self._llm, self._draft = llm, draft
        self.context_length = llm.context_length

    def make(self, request: Request) -> Made:
        stream = self._stream(request, self._draft)
        return Made(
            result=stream.finish(),
            accepted=tuple(made.accepted for made in stream.rounds),
            draft_seconds=sum(made.draft_seconds for made in stream.rounds),
            verify_seconds=sum(made.verify_seconds for made in stream.rounds),
        )

    def plain(self, request: Request) -> list[int]:
        return self._stream(request, "none").finish().tokens

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        return "yes" if list(expected) == list(found) else "no"  # rows are exact: no near-ties

    def bits(self, text: Sequence[int], positions: int) -> Bits:
        return compare_bits(self._llm.engine.target, text, len(text) - positions)

    def _stream(self, request: Request, draft: str) -> GenerationStream:
        self._llm.forget()
        how = {name: value for name, value in asdict(request).items() if name != "prompt"}
        return self._llm.stream(request.prompt, draft_source=draft, **how)


def compare_bits(model: Model, text: Sequence[int], start: int, seed: int = 0) -> Bits:
    """Computes a text's rows one by one, and again in chunks and in trees beside other sequences.

    Args:
        model: a model whose rows should have the same bits in any company.
        text: token ids; the rows from `start` on are compared.
        start: number of tokens that are read first, in one pass; at least 1.
        seed: seed of chunks, trees and the other sequence.
    """
    rng = np.random.default_rng(seed)
    expected = dict(_in_parts(model, text, start, 1, None))  # one by one
    methods = {f"chunks of {most}": _in_parts(model, text, start, most, rng) for most in CHUNKS}
    methods["trees"] = _in_trees(model, text, start, rng)
    rows, wrong = 0, []
    for method, found in methods.items():
        for place, digest in found:
            rows += 1
            if digest != expected[place]:
                wrong.append(f"{method} at {place}")
    return Bits(rows, len(wrong), tuple(wrong[:5]))


Found = Iterator[tuple[int, bytes]]
"""Positions, each with a hash of the logits there."""


def _in_parts(
    model: Model, text: Sequence[int], start: int, most: int, rng: np.random.Generator | None
) -> Found:
    """Yields the rows of chunks, of random sizes up to `most`."""
    sequence = _begun(model, text, start)
    while (place := sequence.length) < len(text):
        tokens = sequence.unread[: 1 if rng is None else int(rng.integers(1, most + 1))]
        rows = _chain(sequence, tokens)
        logits = model.forward([rows])[0]
        rows.accept(range(len(tokens)))
        yield from ((place + row, _digest(each)) for row, each in enumerate(logits))
    sequence.free()


def _in_trees(model: Model, text: Sequence[int], start: int, rng: np.random.Generator) -> Found:
    """Yields the text's own rows of random trees, between a fork's and another sequence's."""
    sequence, other = _begun(model, text, start), _begun(model, text[::-1], start)
    while (place := sequence.length) < len(text):
        own = sequence.unread[: int(rng.integers(1, _OTHERS + 1))]
        rows, path = Rows(sequence, [], [], []), list[int]()
        while len(path) < len(own):
            if rng.random() < 0.5:  # the text's own next row
                rows.parents.append(path[-1] if path else AFTER)
                path.append(len(rows.tokens))
                rows.tokens.append(own[len(path) - 1])
            else:  # a row that leads elsewhere
                rows.parents.append(int(rng.integers(AFTER, len(rows.tokens))))
                rows.tokens.append(int(rng.choice(text)))
        rows.wanted = path
        fork = sequence.fork()
        beside = [_chain(fork, own[::-1]), rows, _chain(other, own)]
        logits = model.forward(beside)[1]
        kept = path[: int(rng.integers(1, len(path) + 1))]
        rows.accept(kept)
        beside[0].accept([])
        beside[2].accept(range(len(own)))
        fork.free()
        yield from ((place + row, _digest(each)) for row, each in enumerate(logits))
    for each in (sequence, other):
        each.free()


def _begun(model: Model, text: Sequence[int], start: int) -> Tokens:
    """Returns a sequence whose first tokens the model has read."""
    sequence = model.sequence(list(text))
    rows = _chain(sequence, sequence.tokens[:start])
    model.forward([rows])
    rows.accept(range(start))
    return sequence


def _chain(sequence: Tokens, tokens: list[int]) -> Rows:
    count = len(tokens)
    return Rows(sequence, tokens, [AFTER, *range(count - 1)], list(range(count)))


def _digest(logits: Floats) -> bytes:
    return blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=16).digest()
