"""The vectors of one line of a batch, made beside the other lines as a text is."""

from __future__ import annotations

import threading

from edgespec.api.llm import LLM
from edgespec.server.embeddings import Embedded, EmbeddingsRequest, require_embeddings


class _CancelledError(Exception):
    pass


class VectorsOfLine:
    """What `TextsAtOnce` makes for a line that asks for vectors.

    Args:
        llm: model to use.
        body: the request of the line.

    Raises:
        InputError: as `Embedder.tokens`.
        RequestError: if the model makes texts.
    """

    def __init__(self, llm: LLM, body: EmbeddingsRequest) -> None:
        require_embeddings(llm)
        self._embedder = llm.embedder
        self._tokens = self._embedder.tokens(body.input, body.prompt_name)
        self._dimensions = body.dimensions
        self._cancelled = threading.Event()
        self._made = False

    @property
    def tokens(self) -> int:
        """The number of tokens of the texts once they are read; 0 before."""
        return sum(map(len, self._tokens)) if self._made else 0

    def cancel(self) -> None:
        """Ends the work before its next pass of the model."""
        self._cancelled.set()

    def finish(self) -> Embedded | None:
        """Makes the vectors; None if it was cancelled before all were there.

        Raises:
            InputError: if the vectors have fewer dimensions than asked for.
        """
        try:
            vectors = self._embedder.vectors(self._tokens, self._dimensions, self._check)
        except _CancelledError:
            return None
        self._made = True
        return Embedded(vectors, self.tokens)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError
