r"""ik_llama.cpp, a fork of llama.cpp for CPUs, through the wheel of ik-llama-cpp-python.

Both libraries in the wheel are for AVX2, without AVX-512 and VNNI, and there are no others in it.
One for the processor at hand is built from the package's sources, and named in a variable:

    pip download --no-deps --no-binary :all: ik-llama-cpp-python==0.1.5
    tar xf ik_llama_cpp_python-0.1.5.tar.gz
    cmake -S ik_llama_cpp_python-0.1.5/vendor/ik_llama.cpp -B ik -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF  # only for other caches than float16
    cmake --build ik --target llama  # all targets fail: a file is missing
    export IK_LLAMA_CPP_LIB_PATH=$PWD/ik/src/libllama.so
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from peers import Loading

REQUIREMENTS = ("ik-llama-cpp-python==0.1.5", "numpy")
SETTINGS = {
    "plain": f"llama_decode of {os.environ.get('IK_LLAMA_CPP_LIB_PATH', 'the wheel, for AVX2')}"
}
_CHUNK = 512  # tokens of a call that reads a text: the library's default
_MARGIN = 256  # cells beyond the texts, for the rows of a pass


class Model:
    """A model and its cache, with the library's defaults: keys and values in float16."""

    def __init__(self, loading: Loading) -> None:
        import ik_llama_cpp._ctypes_api as api

        self._api = api
        self._remove = api._lib.llama_kv_cache_seq_rm  # not among its functions
        self._remove.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 3]
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            loading.target.encode(), api.llama_model_default_params()
        )
        settings = api.llama_context_default_params()
        settings.n_ctx = loading.context + _MARGIN
        settings.n_seq_max = loading.sequences
        settings.n_threads = settings.n_threads_batch = loading.threads
        self._context = self._model and api.llama_init_from_model(self._model, settings)
        if not self._context:
            raise ValueError(f"{loading.target} could not be loaded")
        self._words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(_CHUNK, 0, 1)
        self._lengths = [0] * loading.sequences

    def texts(
        self,
        prompts: Sequence[list[int]],
        new_tokens: int,
        temperature: float,
        seed: int,
        began: Callable[[], None],
        known: int = 0,
    ) -> list[list[int]]:
        """See `peers`."""
        if temperature:
            raise ValueError(f"only greedy texts, not with seed {seed}")
        texts = list[list[int]]()
        for number, prompt in enumerate(prompts):
            self._cut(number, known)
            self._read(number, prompt[known:])
            texts.append([self._best(-1)])
            began()
        for _ in range(new_tokens - 1):
            rows = [
                (number, text[-1])
                for number, text in enumerate(texts)
                if not self._api.llama_token_is_eog(self._model, text[-1])
            ]
            if not rows:
                break
            self._call(rows, scored=len(rows))
            for row, (number, _token) in enumerate(rows):
                texts[number].append(self._best(row))
        return texts

    def seconds(self, rows: int, length: int) -> float:
        """Returns the processor time of a pass over rows, all scored, behind a text."""
        # Any text: what a pass costs does not depend on it.
        text = [1000 + place % 1000 for place in range(length + rows)]
        self._cut(0, min(self._lengths[0], length))
        self._read(0, text[self._lengths[0] : length])
        begin = time.process_time()
        self._call([(0, token) for token in text[length:]], scored=rows)
        seconds = time.process_time() - begin
        self._cut(0, length)
        return seconds

    def _read(self, number: int, tokens: Sequence[int]) -> None:
        for begin in range(0, len(tokens), _CHUNK):
            self._call([(number, token) for token in tokens[begin : begin + _CHUNK]], scored=1)

    def _call(self, rows: Sequence[tuple[int, int]], scored: int) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (number, token) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, self._lengths[number]
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, number
            batch.logits[row] = row >= len(rows) - scored
            self._lengths[number] += 1
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise ValueError(f"llama_decode of {len(rows)} rows: status {status}")

    def _best(self, row: int) -> int:
        import numpy as np

        scores = self._api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(scores, (self._words,)).argmax())

    def _cut(self, number: int, length: int) -> None:
        self._remove(self._context, number, length, -1)
        self._lengths[number] = length
