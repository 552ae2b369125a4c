"""Texts and passes by llama.cpp's C interface, which its fork ik_llama.cpp has too.

The defaults of both are kept: keys and values in float16, and flash attention.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from peers.base import PeerError, Stopwatch, Unjudged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from peers.base import Loading, Request, Text

_CHUNK = 512  # tokens of a call that reads a text: the library's default
_MARGIN = 256  # cells beyond the text, for the rows of a pass


class Passes(Unjudged):
    """A model and its cache.

    Args:
        api: The library's functions.
        remove: Takes a context, a sequence and two positions, and frees the cells between them.
        loading: What is loaded: the target's GGUF file.
    """

    def __init__(
        self,
        api: Any,
        remove: Callable[[Any, int, int, int], object],
        loading: Loading,
    ) -> None:
        self._api, self._remove, self._eos_ids = api, remove, loading.eos_ids
        file = loading.folder / "target.gguf"
        api.llama_backend_init()
        model = api.llama_model_load_from_file(bytes(file), api.llama_model_default_params())
        settings = api.llama_context_default_params()
        settings.n_ctx = loading.context + _MARGIN
        settings.n_threads = settings.n_threads_batch = loading.threads
        self._context = model and api.llama_init_from_model(model, settings)
        if not self._context:
            raise PeerError(f"{file} could not be loaded")
        self._words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self._batch = api.llama_batch_init(_CHUNK, 0, 1)
        self._length = 0

    def seconds(self, rows: int, length: int) -> float:
        """See `PassTimer`."""
        # Any text: what a pass costs does not depend on it.
        text = [1000 + place % 1000 for place in range(length + rows)]
        self._cut(min(self._length, length))
        self._read(text[self._length : length])
        self._fill(text[length:], scored=rows)
        begin = time.process_time()
        self._call()
        seconds = time.process_time() - begin
        self._cut(length)
        return seconds

    def make(self, request: Request) -> Text:
        """See `Decoder`.

        Raises:
            PeerError: Something but the likeliest token is asked for.
        """
        import numpy as np

        if request.temperature:
            raise PeerError("only greedy texts")
        self._cut(0)
        watch = Stopwatch()
        new: Sequence[int] = request.prompt
        for _ in range(request.new_tokens):
            self._read(new)
            scores = self._api.llama_get_logits_ith(self._context, -1)
            new = [int(np.ctypeslib.as_array(scores, (self._words,)).argmax())]
            watch.take(new)
            if new[0] in self._eos_ids:
                break
        return watch.text()

    def _read(self, tokens: Sequence[int]) -> None:
        for begin in range(0, len(tokens), _CHUNK):
            self._fill(tokens[begin : begin + _CHUNK], scored=1)
            self._call()

    def _fill(self, tokens: Sequence[int], scored: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, self._length + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = row >= len(tokens) - scored

    def _call(self) -> None:
        status = self._api.llama_decode(self._context, self._batch)
        if status:
            raise PeerError(f"llama_decode of {self._batch.n_tokens} rows: status {status}")
        self._length += self._batch.n_tokens

    def _cut(self, length: int) -> None:
        self._remove(self._context, 0, length, -1)
        self._length = length
