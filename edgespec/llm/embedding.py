"""Embeddings: vectors of texts, which are near each other where the texts are alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import NoneType
from typing import cast

import numpy as np

from edgespec.errors import BundleError, ContextLengthError, InputError, reason
from edgespec.llm import at_once
from edgespec.llm.instance import ModelInstance
from edgespec.llm.pooling import Check, TextRows, TextTokens
from edgespec.llm.prompts import or_more_context
from edgespec.runtime.arrays import Floats
from edgespec.system.options import Option
from edgespec.system.processes import Unpicklable

Inputs = str | Sequence[int] | list[str] | list[list[int]] | list[str | list[int]]
"""A text, or token ids, or a list of such."""

_LONG_TOKEN = 64  # characters; longer ones are rare, and reading a text for them takes long
# Names of what vectors are for, of which one means the same as the others beside it.
_ALIKE = (
    ("query", "search_query", "retrieval.query", "retrieval-query"),
    ("document", "passage", "search_document", "retrieval.passage", "retrieval-document"),
)
_LEAST_LENGTH = 1e-12  # of a vector that is normalized, as in torch


class Embedder(Unpicklable):
    """Makes the embeddings of a loaded bundle, as sentence-transformers does with its checkpoint.

    Created by `LLM.embedder`.

    Args:
        loaded: the model.

    Raises:
        InputError: if the model generates text.
    """

    def __init__(self, loaded: ModelInstance) -> None:
        if (embedding := loaded.bundle.target.embedding) is None:
            made = "texts" if loaded.bundle.target.writes else "scores of texts"
            raise InputError(
                f"the model makes {made}, and no embeddings: use a bundle of an embedding model"
            )
        self._embedding = embedding
        self._loaded = loaded
        self._rows = TextRows(loaded, embedding.pooling)

    def tokens(
        self, texts: Inputs, prompt_name: str | None = None, cuts: bool = False
    ) -> list[list[int]]:
        """Converts texts as `LLM.embed` takes them, with the checkpoint's prompt, to token ids.

        Args:
            texts: the texts.
            prompt_name: name of the prompt.
            cuts: whether the end of a text that does not fit the context is left out.

        Raises:
            ContextLengthError: if a text does not fit the context.
            InputError: if one is empty or invalid, or there is no such prompt.
        """
        tokens = partial(self._tokens, prompt_name, cuts)
        if isinstance(texts, list) and not texts:
            return []
        if at_once.are_prompts(texts):
            return at_once.tokens_of_all(texts, tokens, "texts")
        return [tokens(cast("at_once.Prompt", texts))]

    def vectors(
        self,
        tokens: Sequence[Sequence[int]],
        dimensions: int | None = None,
        check: Check = lambda: None,
        normalized: bool | None = None,
    ) -> Floats:
        """Makes the vectors of texts that `tokens` has converted, [N, dimensions] float32.

        Args:
            tokens: the texts.
            dimensions: see `LLM.embed`.
            check: see `Check`.
            normalized: whether vectors are divided by their length; None: as the model says.

        Raises:
            InputError: if there are not so many dimensions, or the model was closed.
        """
        width = self._loaded.bundle.target.vector_size
        Option("", least=1).check("dimensions", dimensions, (int, NoneType))
        if dimensions is not None and dimensions > width:
            asked = reason(dimensions, 40)
            raise InputError(f"dimensions is {asked}: the model's vectors have {width}")
        found = np.empty((len(tokens), dimensions or width), np.float32)
        for number, row in enumerate(self._rows.of([*map(TextTokens, tokens)], check)):
            if len(row) != width:
                raise BundleError(
                    f"{self._loaded.bundle.path}: its graph makes vectors of {len(row)} numbers, "
                    f"and its manifest says {width}: export it again"
                )
            vector = row[: dimensions or width]
            if self._embedding.normalized if normalized is None else normalized:
                vector = vector / max(float(np.linalg.norm(vector)), _LEAST_LENGTH)
            found[number] = vector
        return found

    def prompt_for(self, purpose: str) -> str | None:
        """Returns the name of the checkpoint's prompt for what vectors are to be used for.

        Args:
            purpose: such as query or document, in the words of any of the usual APIs.

        Returns:
            The name; None if there is none, and the default prompt is used.
        """
        names = {name.lower(): name for name in self._embedding.prompts}
        alike = next((each for each in _ALIKE if purpose in each), (purpose,))
        return next((names[each] for each in (purpose, *alike) if each in names), None)

    def _tokens(self, prompt_name: str | None, cuts: bool, text: str | Sequence[int]) -> list[int]:
        prompt = self._prompt(prompt_name)
        if isinstance(text, str) and cuts:
            return self._beginning(prompt, text)
        if isinstance(text, str):
            given = text and prompt + text  # a prompt alone is no text
            ids = self._loaded.tokenizer.ended(self._loaded.prompts.valid_ids(given))
        elif prompt_name is None:
            ids = self._loaded.prompts.valid_ids(text)
        else:
            raise InputError(
                f"prompt_name is {prompt_name!r}, and the text is token ids: put the prompt's ids "
                "before them, and leave out prompt_name"
            )
        most = self._loaded.plan.context
        if len(ids) > most:
            raise ContextLengthError(
                f"the text is too long: it has {len(ids)} tokens, and the model's context length "
                f"is {most}: shorten the text{or_more_context(self._loaded.bundle, most)}"
            )
        return ids

    def _beginning(self, prompt: str, text: str) -> list[int]:
        """Returns the token ids of as much of a text as fits the context."""
        most = self._loaded.plan.context
        tokenizer = self._loaded.tokenizer
        enough = text[: most * min(tokenizer.longest, _LONG_TOKEN)]
        end = tokenizer.ended([])
        ids = tokenizer.encode(prompt + enough) if text else self._loaded.prompts.valid_ids(text)
        return [*ids[: most - len(end)], *end]

    def _prompt(self, name: str | None) -> str:
        prompts = self._embedding.prompts
        if name is not None and name not in prompts:
            raise InputError(
                f"prompt_name is {name!r}: the model has {', '.join(prompts) or 'no prompts'}"
            )
        return prompts.get(self._embedding.default_prompt if name is None else name, "")
