"""The decoding loop: draft, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.runtime.arrays import Floats
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Forecast
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict, walk

if TYPE_CHECKING:
    from edgespec.runtime.sampling.guide import Guide


PROMPT = "prompt"
"""The source of rounds that read it."""


@dataclass(frozen=True)
class Limits:
    """Where a text ends at the latest.

    Attributes:
        max_new_tokens: tokens to make.
        context_length: tokens of prompt and output together.
        stop_ids: tokens that end the text; the one that does is its last.
    """

    max_new_tokens: int
    context_length: int
    stop_ids: frozenset[int]


@dataclass(frozen=True)
class Round:
    """What one pass of the target brought.

    Attributes:
        tokens: new tokens of the text; none where a chunk of the prompt was read.
        drafted: nodes of the tree that was verified.
        accepted: nodes of it that became text.
        source: who drafted the tree; of the prompt's own passes, `PROMPT`.
        seconds: that it took.
        forecast: what it was expected to bring, where its drafter plans.
        begun: the draft had been begun in the round before.
        draft_seconds: of `seconds`, what the draft took.
        verify_seconds: what the pass took, with what was drafted on beside it.
        logprobs: of each token, where they were asked for.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    source: str
    seconds: float
    forecast: Forecast | None = None
    begun: bool = False
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()


def generate(
    pipeline: Serial,
    sampler: Sampler,
    prompt: Sequence[int],
    *,
    limits: Limits,
    budget: TreeBudget,
    logprobs: int | None = None,
    guide: Guide | None = None,
) -> Iterator[Round]:
    """Decode, a round at a time; the caller may stop at any time.

    The tokens depend on the target, the sampler and the limits alone, never on the drafter.

    Args:
        pipeline: the drafter, and the target with what it holds of an earlier text: of rows that
            the prompt begins with too, nothing is computed again.
        sampler: chooses.
        prompt: at least one token and fewer than the context holds.
        limits: when to stop.
        budget: the largest tree; smaller near the end of the text.
        logprobs: log-probabilities to give with each token, besides its own; None: none at all.
        guide: of a grammar that the text must follow, at its beginning.

    Yields:
        A round without tokens for each chunk of a long prompt but its last; the first token alone,
        with that; then one round per verification.
    """
    target, drafter = pipeline.target, pipeline.drafter
    text = list(prompt)
    target.resume(prompt)
    begin = time.perf_counter()
    for rows in target.chunks(len(text) - target.length)[:-1]:
        target.prefill(text[target.length : target.length + rows])
        yield Round((), 0, 0, PROMPT, time.perf_counter() - begin)
        begin = time.perf_counter()
    results = target.prefill(text[target.length :])
    choices = _Choices(sampler, logprobs, guide)
    first = choices.make(results["logits"][0], len(text), text)
    drafter.begin(prompt, sampler)
    text.append(first)
    seconds = time.perf_counter() - begin
    yield Round((first,), 0, 0, PROMPT, seconds, logprobs=choices.taken())
    end = min(len(prompt) + limits.max_new_tokens, limits.context_length)
    while len(text) < end and text[-1] not in limits.stop_ids:
        begin = time.perf_counter()
        # The target adds one token of its own, so a deeper tree could not be used up.
        depth = min(budget.max_depth, end - len(text) - 1, target.reach - 1)
        left = replace(budget, max_depth=depth, remaining=end - len(text))
        proposal = pipeline.draft(text, left)
        tree = proposal.tree()
        drafted = time.perf_counter()
        logits = pipeline.verify(Rows.tree(text[-1], tree))["logits"]
        verified = time.perf_counter()
        verdict = _verdict(tree, logits, text, choices, limits.stop_ids)
        target.commit([0, *(node + 1 for node in verdict.nodes)])
        drafter.observe(verdict, tree, logits)
        text += verdict.tokens
        yield Round(
            verdict.tokens, len(tree), len(verdict.nodes), proposal.source,
            time.perf_counter() - begin, proposal.forecast, proposal.begun,
            drafted - begin, verified - drafted, choices.taken(),
        )  # fmt: skip


class _Choices:
    """The target's choices, in the order of the text: each is its next token."""

    def __init__(self, sampler: Sampler, logprobs: int | None, guide: Guide | None) -> None:
        self._sampler = sampler
        self._guide = guide
        self._logprobs = logprobs
        self._taken: list[TokenLogprobs] = []
        self.read_context = sampler.reads_context

    def make(self, logits: Floats, position: int, context: Sequence[int]) -> int:
        """See `Sampler.choose`."""
        allowed = None if self._guide is None else self._guide.allowed()
        token = self._sampler.choose(logits, position, context, allowed)
        if self._guide is not None:
            self._guide.advance(token)
        if self._logprobs is not None:
            vocab_size = self._sampler.vocab_size
            self._taken.append(token_logprobs(logits, token, vocab_size, self._logprobs))
        return token

    def taken(self) -> tuple[TokenLogprobs, ...]:
        """Of the choices since this was last asked."""
        taken, self._taken = tuple(self._taken), []
        return taken


def _verdict(
    tree: TokenTree, logits: Floats, text: list[int], choices: _Choices, stop_ids: frozenset[int]
) -> Verdict:
    def choose(row: int, branch: list[int]) -> int:
        context = [*text, *branch] if choices.read_context else ()
        return choices.make(logits[row], len(text) + len(branch), context)

    return walk(tree, choose, stop_ids)
