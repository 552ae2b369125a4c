"""Reranking: how well texts answer a query, read together with it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType

import numpy as np

from edgespec.bundle import LAST_TOKEN, MEAN, PART, PairMessages
from edgespec.errors import ContextLengthError, InputError, reason
from edgespec.llm.instance import ModelInstance
from edgespec.llm.pooling import Check, Row, TextRows, TextTokens
from edgespec.llm.prompts import or_more_context
from edgespec.runtime.arrays import Floats
from edgespec.system.options import Option
from edgespec.system.processes import Unpicklable

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What a model that reads an instruction judges documents by, unless another is given."""

# What Qwen3-Reranker was trained with; other models that chat understand it.
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_ASKED = "<Instruct>: {}\n<Query>: {}\n<Document>: {}"
_ANSWERS = "yes", "no"
_PLACES = re.compile(rf"\{{query\}}|\{{document\}}|{re.escape(INSTRUCTION)}")
_UNREAD = "the model reads no instruction: leave instruction out"
_MARGIN = 8  # tokens that a text may have more behind a cut than its part had


@dataclass(frozen=True)
class RankedDocument:
    """A document, as a query ranks it.

    Attributes:
        index: its number among the documents that were given.
        score: how well it answers the query, from 0 to 1.
    """

    index: int
    score: float


class RankForm(ABC):
    """How a model is asked for the score of a document.

    Args:
        loaded: the model.

    Attributes:
        pooling: the row that tells the score, or each that tells it, see `Reranking`.
    """

    pooling = LAST_TOKEN

    def __init__(self, loaded: ModelInstance) -> None:
        self.loaded = loaded
        self.most = loaded.plan.context

    @abstractmethod
    def text(self, query: str, document: str) -> TextTokens:
        """Returns what the model reads; of a document that is too long, the end is left out.

        Raises:
            ContextLengthError: if the query leaves no room for a document.
        """

    def logit(self, row: Row) -> float:
        """Returns the logit of a score, from what the model gives for the row.

        That is how well a text answers, and perhaps how badly.
        """
        return float(row[0] - row[1:].sum())

    def refuse(self, tokens: int) -> None:
        """Says that a query of so many tokens leaves no room.

        Raises:
            ContextLengthError: always.
        """
        raise ContextLengthError(
            f"the query is too long: with what is around it, it has {tokens} tokens, and the "
            f"model's context length is {self.most}: shorten the query"
            f"{or_more_context(self.loaded.bundle, self.most)}"
        )


class PairForm(RankForm):
    """Query and document as a pair, of a model that makes scores of pairs."""

    def __init__(self, loaded: ModelInstance, pooling: str) -> None:
        super().__init__(loaded)
        self.pooling = pooling

    def text(self, query: str, document: str) -> TextTokens:
        """See `RankForm`."""
        ids, parts = self.loaded.tokenizer.pair(query, document, self.most)
        if len(ids) > self.most:
            self.refuse(len(ids))
        return TextTokens(ids, {PART: np.array(parts, np.int64)})


class WrittenForm(RankForm):
    """Query and document within words around them."""

    def text(self, query: str, document: str) -> TextTokens:
        """See `RankForm`."""
        ids = self._ids(query, document)
        if len(ids) > self.most:
            around = len(self._ids(query, ""))
            room = self.most - around - _MARGIN
            if room < 1:
                self.refuse(around)
            tokenizer = self.loaded.tokenizer
            kept = tokenizer.encode(document, add_special=False)[:room]
            ids = self._ids(query, tokenizer.decode(kept, skip_special=False))[: self.most]
        return TextTokens(ids)

    def _ids(self, query: str, document: str) -> list[int]:
        return self.loaded.tokenizer.encode(self.written(query, document), add_special=False)

    @abstractmethod
    def written(self, query: str, document: str) -> str:
        """Returns the words."""


class TemplateForm(WrittenForm):
    """The template of a model that makes scores."""

    def __init__(self, loaded: ModelInstance, template: str, instruction: str) -> None:
        super().__init__(loaded)
        self._template = template
        self._instruction = instruction

    def written(self, query: str, document: str) -> str:
        """See `WrittenForm`."""
        given = {"{query}": query, "{document}": document, INSTRUCTION: self._instruction}
        return _PLACES.sub(lambda found: given[found[0]], self._template)


class MessagesForm(WrittenForm):
    """The chat template of a model that makes scores, which writes a query and a document.

    Raises:
        InputError: if it leaves out a part of what it is given.
    """

    def __init__(
        self, loaded: ModelInstance, messages: PairMessages, instruction: str | None
    ) -> None:
        super().__init__(loaded)
        self._opened = messages.opened
        asked = messages.instruction if instruction is None else instruction
        self._before = [{"role": "system", "content": asked}] if asked else []
        text = self.written("(query)", "(document)")
        if not all(each in text for each in ("(query)", "(document)")):
            raise InputError(
                "the model's chat template leaves out a query or a document: use a reranker whose "
                "template reads messages of these roles"
            )
        if (instruction or "").strip() not in text:
            raise InputError(_UNREAD)

    def written(self, query: str, document: str) -> str:
        """See `WrittenForm`."""
        pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        tokenizer = self.loaded.tokenizer
        return tokenizer.chat([*self._before, *pair], add_generation_prompt=self._opened)


class ChatForm(WrittenForm):
    """The chat template of a model that writes text, which is asked as Qwen3-Reranker is.

    Raises:
        InputError: if the model has no chat template, or writes yes and no as several tokens.
    """

    def __init__(self, loaded: ModelInstance, instruction: str) -> None:
        super().__init__(loaded)
        self._instruction = instruction
        tokenizer = loaded.tokenizer
        if not tokenizer.has_chat_template:
            raise InputError(
                "the model has no chat template by which it could be asked to rank texts: use a "
                "reranker"
            )
        answers = [tokenizer.encode(each, add_special=False) for each in _ANSWERS]
        if any(len(each) != 1 for each in answers):
            raise InputError(
                "the model writes yes or no as several tokens, so that it cannot rank texts: use "
                "a reranker"
            )
        self._yes, self._no = (each[0] for each in answers)

    def written(self, query: str, document: str) -> str:
        """See `WrittenForm`."""
        messages = [
            {"role": "system", "content": _JUDGE},
            {"role": "user", "content": _ASKED.format(self._instruction, query, document)},
        ]
        return self.loaded.tokenizer.chat(messages, variables={"enable_thinking": False})

    def logit(self, row: Row) -> float:
        """See `RankForm`."""
        return float(row[self._yes]) - float(row[self._no])


class Reranker(Unpicklable):
    """Scores documents for a query with a loaded bundle.

    Created by `LLM.reranker`.

    Args:
        loaded: the model: one that ranks, or one that writes text.
        instruction: what a model that reads an instruction is to judge by; None: see `INSTRUCTION`.

    Raises:
        InputError: if the model makes embeddings, or cannot be asked.
    """

    def __init__(self, loaded: ModelInstance, instruction: str | None = None) -> None:
        target = loaded.bundle.target
        if target.embedding is not None:
            raise InputError(
                "the model makes embeddings, and ranks no texts: use a bundle of a reranker, or "
                "of a model that writes text"
            )
        self._form = _form(loaded, instruction)
        pooling = self._form.pooling
        self._rows = TextRows(loaded, pooling, alone=pooling == MEAN)

    def ranked(
        self, query: str, documents: Sequence[str], top_n: int | None = None
    ) -> list[RankedDocument]:
        """Ranks documents; see `LLM.rerank`."""
        Option("", least=1).check("top_n", top_n, (int, NoneType))
        return by_score(self.scores(self.texts(query, documents)), top_n)

    def texts(self, query: str, documents: Sequence[str]) -> list[TextTokens]:
        """Returns what the model is to read for each document.

        Raises:
            ContextLengthError: if the query does not fit the context.
            InputError: if a text is empty or none.
        """
        _require_text(query, "the query")
        if isinstance(documents, str) or not isinstance(documents, Sequence):
            raise InputError(f"documents is {reason(repr(documents), 80)}: give a list of texts")
        for number, document in enumerate(documents):
            _require_text(document, f"documents[{number}]")
        return [self._form.text(query, document) for document in documents]

    def scores(self, texts: Sequence[TextTokens], check: Check = lambda: None) -> Floats:
        """Returns how well documents that `texts` has converted answer the query, [N] float32.

        Raises:
            InputError: if the model was closed.
        """
        logits = [self._form.logit(row) for row in self._rows.of(texts, check)]
        # In two forms, so that no exponential is too large.
        values = np.array(logits, np.float64)
        small = np.exp(-np.abs(values))
        found: Floats = (np.where(values < 0, small, 1.0) / (1 + small)).astype(np.float32)
        return found


def _form(loaded: ModelInstance, instruction: str | None) -> RankForm:
    """Returns how a model that ranks or writes text is asked."""
    ranking = loaded.bundle.target.ranking
    asked = INSTRUCTION if instruction is None else instruction
    if ranking is None:
        return ChatForm(loaded, asked)
    if ranking.messages is not None:
        return MessagesForm(loaded, ranking.messages, instruction)
    if instruction is not None and INSTRUCTION not in ranking.template:
        raise InputError(_UNREAD)
    if ranking.template:
        return TemplateForm(loaded, ranking.template, asked)
    return PairForm(loaded, ranking.pooling)


def by_score(scores: Floats, most: int | None = None) -> list[RankedDocument]:
    """Returns documents by their scores, the best first; of equal ones the first.

    Args:
        scores: the scores.
        most: number of documents to return; None: all.
    """
    order = np.argsort(-scores, kind="stable")[:most]
    return [RankedDocument(int(index), float(scores[index])) for index in order]


def _require_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is {reason(repr(text), 80)}: give a text")
    if not text.strip():
        raise InputError(f"{what} is empty: give at least one word")
