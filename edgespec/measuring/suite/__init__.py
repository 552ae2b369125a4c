"""A quick check of a bundle's quality: four short texts to predict, five questions to answer.

The texts were written for this purpose, and no bundle is fitted to them. They are short: a
difference of two or three per cent in perplexity is within the error that the card shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from edgespec.llm.llm import LLM
from edgespec.measuring.perplexity import Evaluation, TokenizedText

TEXTS = ("prose", "code", "dialogue", "arithmetic")
"""Kinds of text, each in a file of this package."""

QUESTIONS = (
    "Say hi.",
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "What is 12 plus 30?",
    "Write a Python function that returns the larger of two numbers.",
)
"""Questions to the model, which are answered greedily and without a system prompt."""

ANSWER_TOKENS = 48
"""Maximum number of tokens in an answer."""

Report = Callable[[str, int], None]
"""Called with the current part and the number of its tokens done since the last call."""


@dataclass(frozen=True)
class SuiteAnswer:
    """The answers to one question.

    Attributes:
        question: one of `QUESTIONS`.
        text: answer of the bundle.
        reference: answer of the reference; None if there is none.
    """

    question: str
    text: str
    reference: str | None


@dataclass(frozen=True)
class Card:
    """The results of the suite.

    Attributes:
        texts: evaluation of each text, by the names in `TEXTS`.
        answers: one answer for each of `QUESTIONS`, in order.
    """

    texts: dict[str, Evaluation]
    answers: tuple[SuiteAnswer, ...]


class Suite:
    """The suite, ready to run on a bundle.

    Args:
        llm: bundle under test, loaded without drafts.
        reference: bundle of the same model to compare with, or None.

    Attributes:
        tokens: number of tokens to score and to generate at most, for a progress bar.

    Raises:
        InputError: if the two bundles are not of the same model.
    """

    def __init__(self, llm: LLM, reference: LLM | None = None) -> None:
        self._llms = [llm] if reference is None else [llm, reference]
        self._readings = {kind: TokenizedText(llm, read(kind), None, reference) for kind in TEXTS}
        scored = sum(reading.scored for reading in self._readings.values())
        self.tokens = scored + ANSWER_TOKENS * len(QUESTIONS) * len(self._llms)

    def run(self, report: Report = lambda part, tokens: None) -> Card:
        """Predicts the texts and answers the questions."""
        texts = {
            kind: reading.evaluate(lambda tokens, kind=kind: report(kind, tokens))  # type: ignore[misc]
            for kind, reading in self._readings.items()
        }
        answers = []
        for question in QUESTIONS:
            found = [_answer(llm, question) for llm in self._llms]
            report("answers", ANSWER_TOKENS * len(found))
            answers.append(SuiteAnswer(question, found[0], found[1] if len(found) > 1 else None))
        return Card(texts, tuple(answers))


def read(kind: str) -> str:
    """Reads a text of the suite, by its name in `TEXTS`."""
    return files(__package__).joinpath(f"{kind}.txt").read_text(encoding="utf-8")


def overall(texts: Sequence[Evaluation]) -> tuple[float, float | None, float | None]:
    """Computes means over the tokens of all texts.

    Returns:
        Nats per token; KL to the reference in nats; and the share of tokens for which both have the
        same likeliest token. The last two are None without a reference.
    """
    scored = sum(each.scored for each in texts)
    nats = sum(each.nats.value * each.scored for each in texts) / scored
    against = [(each.against, each.scored) for each in texts if each.against is not None]
    if len(against) < len(texts):
        return nats, None, None
    kl = sum(found.kl.value * count for found, count in against) / scored
    return nats, kl, sum(found.agreement * count for found, count in against) / scored


def _answer(llm: LLM, question: str) -> str:
    if llm.tokenizer.has_chat_template:
        chat = [{"role": "user", "content": question}]
        return llm.chat(chat, max_new_tokens=ANSWER_TOKENS).text
    prompt = f"Question: {question}\nAnswer:"
    return llm.generate(prompt, max_new_tokens=ANSWER_TOKENS, stop=["\nQuestion:"]).text
