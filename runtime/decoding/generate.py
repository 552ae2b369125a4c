"""The decoding loop: draft, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from edgespec.runtime.arrays import Floats
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Results
from edgespec.runtime.execution.steps import Call, Called, Chunk
from edgespec.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.company import ALONE, Company, PassCost, SharedVerdict
from edgespec.runtime.trees.offers import Granted, Offer
from edgespec.runtime.trees.proposal import Forecast
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict, walk

if TYPE_CHECKING:
    from edgespec.runtime.sampling.constraint import Constraint


PROMPT = "prompt"
"""Value of `Round.source` for rounds that read the prompt."""


@dataclass(frozen=True)
class Limits:
    """Limits on the length of a text.

    Attributes:
        max_new_tokens: largest number of tokens to generate.
        context_length: largest number of tokens of prompt and output together.
        stop_ids: tokens that end the text; the one that does is its last token.
    """

    max_new_tokens: int
    context_length: int
    stop_ids: frozenset[int]


@dataclass(frozen=True)
class Round:
    """The result of one pass of the target.

    Attributes:
        tokens: new tokens of the text; empty where a chunk of the prompt was read.
        drafted: number of nodes in the verified tree.
        accepted: number of these nodes that became text.
        source: names of the draft sources of the tree; `PROMPT` for passes that read the prompt.
        seconds: duration of the round.
        forecast: expected result of the round, where its drafter plans; else None.
        begun: whether the draft was begun during the previous round.
        draft_seconds: duration of the draft, part of `seconds`.
        verify_seconds: duration of the pass, including any drafting that ran beside it.
        logprobs: log-probabilities of each token, where they were asked for.
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


@dataclass(frozen=True)
class Pass:
    """The rows that a text waits to have verified, see `steps`."""

    rows: Rows


@dataclass(frozen=True)
class Passed:
    """The answer to a `Pass`.

    Attributes:
        results: the graph's results for the rows, valid until the text's next step.
        shared: cost of the pass if other texts shared it.
    """

    results: Results
    shared: PassCost | None = None


Asked: TypeAlias = Pass | Call | Chunk | Offer
"""What a text waits for."""

Answer: TypeAlias = Passed | Called | Granted | Company | None
"""What a text is answered, see `steps`."""

TextSteps = Generator[Round | Asked, Answer, None]
"""A text as `steps` makes it."""


def generate(
    pipeline: Serial,
    sampler: Sampler,
    prompt: Sequence[int],
    *,
    limits: Limits,
    budget: TreeBudget,
    logprobs: int | None = None,
    grammar: Constraint | None = None,
) -> Iterator[Round]:
    """Decodes a text alone, one round at a time; the caller may stop at any time.

    See `steps` for the arguments and the rounds.
    """
    making = steps(
        pipeline, sampler, prompt,
        limits=limits, budget=budget, logprobs=logprobs, grammar=grammar,
    )  # fmt: skip
    answer: Answer = None
    with closing(making), suppress(StopIteration):
        while True:
            step = making.send(answer)
            answer = None
            if isinstance(step, Pass):
                answer = Passed(pipeline.verify(step.rows))
            elif isinstance(step, Call | Offer):
                answer = step.alone()
            elif isinstance(step, Round):
                yield step


def steps(
    pipeline: Serial,
    sampler: Sampler,
    prompt: Sequence[int],
    *,
    limits: Limits,
    budget: TreeBudget,
    logprobs: int | None = None,
    grammar: Constraint | None = None,
) -> TextSteps:
    """Decodes a text, one round at a time; whoever runs it makes the passes, and calls for drafts.

    The tokens depend on the target, the sampler, the grammar and the limits alone, never on the
    drafter.

    Args:
        pipeline: the drafter, and the target with the cache rows of an earlier text. Rows that the
            prompt shares with that text are not computed again.
        sampler: chooses the tokens.
        prompt: at least one token, and fewer than the context holds.
        limits: when to stop.
        budget: limits of a draft tree; near the end of the text trees get smaller.
        logprobs: number of log-probabilities to give with each token besides its own; None for no
            log-probabilities at all.
        grammar: matcher at the beginning of its grammar, if the text must follow one.

    Yields:
        One round without tokens for each chunk of a long prompt but the last. Then the last chunk's
        round with the first token, and then one round per verification; before each of these, its
        `Pass`, which is to be answered by `Passed`, and before this what its draft waits for, see
        `edgespec.runtime.execution.steps`. A round may be answered by the `Company` of the next.
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
    choices = _Choices(sampler, logprobs, grammar)
    first = choices.make(results["logits"][0], len(text), text)
    drafter.begin(prompt, sampler)
    text.append(first)
    seconds = time.perf_counter() - begin
    company = yield Round((first,), 0, 0, PROMPT, seconds, logprobs=choices.taken())
    end = min(len(prompt) + limits.max_new_tokens, limits.context_length)
    while len(text) < end and text[-1] not in limits.stop_ids:
        begin = time.perf_counter()
        # The target adds one token of its own, so the text has no room for a deeper path.
        depth = min(budget.max_depth, end - len(text) - 1, target.reach - 1)
        assert company is None or isinstance(company, Company), "the answer to a round"
        left = _left(budget, depth, end - len(text), company or ALONE)
        proposal = yield from pipeline.drafting(text, left)
        tree = (proposal.branch() if budget.width == 1 else proposal).tree()
        drafted = time.perf_counter()
        passed = yield Pass(Rows.tree(text[-1], tree))
        assert isinstance(passed, Passed), "a pass is answered by its results"
        logits = passed.results["logits"]
        verified = time.perf_counter()
        verdict = _verdict(tree, logits, text, choices, limits.stop_ids)
        if passed.shared is not None:
            verdict = SharedVerdict(verdict.nodes, verdict.tokens, passed.shared)
        target.commit([0, *(node + 1 for node in verdict.nodes)])
        drafter.observe(verdict, tree, logits)
        text += verdict.tokens
        company = yield Round(
            verdict.tokens, len(tree), len(verdict.nodes), proposal.source,
            time.perf_counter() - begin, proposal.forecast, proposal.begun,
            drafted - begin, verified - drafted, choices.taken(),
        )  # fmt: skip


def _left(budget: TreeBudget, depth: int, remaining: int, company: Company) -> TreeBudget:
    """Returns the budget of a round, within the rows that other texts leave of its pass."""
    nodes = min(budget.max_nodes, max(company.room - 1, 0))
    return replace(budget, max_nodes=nodes, max_depth=depth, remaining=remaining, company=company)


class _Choices:
    """The target's choices in the order of the text; each becomes the next token."""

    def __init__(self, sampler: Sampler, logprobs: int | None, grammar: Constraint | None) -> None:
        self._sampler = sampler
        self._grammar = grammar
        self._logprobs = logprobs
        self._taken: list[TokenLogprobs] = []
        self.read_context = sampler.reads_context

    def make(self, logits: Floats, position: int, context: Sequence[int]) -> int:
        """See `Sampler.choose`."""
        allowed = None if self._grammar is None else self._grammar.allowed()
        token = self._sampler.choose(logits, position, context, allowed)
        if self._grammar is not None:
            self._grammar.advance(token)
        if self._logprobs is not None:
            vocab_size = self._sampler.vocab_size
            self._taken.append(token_logprobs(logits, token, vocab_size, self._logprobs))
        return token

    def taken(self) -> tuple[TokenLogprobs, ...]:
        """Returns the log-probabilities of the choices since the last call."""
        taken, self._taken = tuple(self._taken), []
        return taken


def _verdict(
    tree: TokenTree, logits: Floats, text: list[int], choices: _Choices, stop_ids: frozenset[int]
) -> Verdict:
    def choose(row: int, branch: list[int]) -> int:
        context = [*text, *branch] if choices.read_context else ()
        return choices.make(logits[row], len(text) + len(branch), context)

    return walk(tree, choose, stop_ids)
