"""llama.cpp through llama-cpp-python, built from source where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from peers.base import DRAFT, LOOKUP, PASSES, PLAIN, GgufFiles, Stopwatch, Unjudged
from peers.passes import Passes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from peers.base import Checkpoints, Loading, Request, Text

# Its AMX products crash at the first call on some machines that have AMX (llama.cpp issue 20824).
_WITHOUT_AMX = "-mno-amx-int8 -mno-amx-tile -mno-amx-bf16"
_CPU = Path("/proc/cpuinfo")
_LOOKUP_TOKENS = 10  # the library's default
_DRAFT_TOKENS = 5


class _LlamaCpp:
    home = "llama.cpp"
    requirements = ("llama-cpp-python", "gguf", "ml_dtypes", "numpy")
    build: ClassVar[Mapping[str, str]] = {
        "CMAKE_ARGS": "-DLLAVA_BUILD=OFF",
        **(
            {"CFLAGS": _WITHOUT_AMX, "CXXFLAGS": _WITHOUT_AMX}
            if _CPU.exists() and "amx_int8" in _CPU.read_text()
            else {}
        ),
    }
    settings: ClassVar[Mapping[str, str]] = {
        PLAIN: "Llama.generate",
        LOOKUP: f"LlamaPromptLookupDecoding, {_LOOKUP_TOKENS} tokens",
        DRAFT: f"a second Llama as LlamaDraftModel, {_DRAFT_TOKENS} tokens",
    }

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        from peers.gguf_file import write_gguf

        for role, path in (("target", checkpoints.target), ("draft", checkpoints.draft)):
            if path is not None:
                write_gguf(path, output / f"{role}.gguf", self.precision)

    def load(self, loading: Loading) -> _Decoder | Passes:
        """See `Peer`."""
        import llama_cpp
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        def model(role: str, **how: Any) -> Any:
            return Llama(
                str(loading.folder / f"{role}.gguf"),
                n_ctx=loading.context + _LOOKUP_TOKENS,
                n_threads=loading.threads,
                n_threads_batch=loading.threads,
                verbose=False,
                **how,
            )

        def remove(context: Any, *cells: int) -> None:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), *cells)

        if loading.setting == PASSES:
            return Passes(llama_cpp, remove, loading)
        how: dict[str, Any] = {}
        if loading.setting == LOOKUP:
            how["draft_model"] = LlamaPromptLookupDecoding(num_pred_tokens=_LOOKUP_TOKENS)
        if loading.setting == DRAFT:
            how["draft_model"] = _draft_model(model("draft"))
        if how:  # or there is room for the scores of one batch only
            how["logits_all"] = True
        return _Decoder(model("target", **how), loading.eos_ids)


class _LlamaCppGguf(GgufFiles, _LlamaCpp):
    """With files made by others."""


def _draft_model(llm: Any) -> Callable[..., Any]:
    """The likeliest tokens that a second model goes on with.

    The library has the interface, and no implementation but prompt lookup.
    """
    import numpy as np

    def guess(input_ids: Any, **_: Any) -> Any:
        tokens = []
        for token in llm.generate(input_ids.tolist(), temp=0.0):
            tokens.append(token)
            if len(tokens) == _DRAFT_TOKENS:
                break
        return np.array(tokens, np.intc)

    return guess


class _Decoder(Unjudged):
    def __init__(self, llm: Any, eos_ids: tuple[int, ...]) -> None:
        self._llm = llm
        self._eos_ids = eos_ids

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        self._llm.reset()  # or the beginning of a prompt that was there before is not read again
        self._llm.set_seed(request.seed)
        watch = Stopwatch()
        tokens = self._llm.generate(
            list(request.prompt), temp=request.temperature, top_k=0, top_p=1.0, min_p=0.0
        )
        for made, token in enumerate(tokens, 1):
            watch.take([token])
            if made == request.new_tokens or token in self._eos_ids:
                break
        return watch.text()


PEER = _LlamaCpp("Q4_0")
PEER_Q8 = _LlamaCpp("Q8_0")
PEER_GGUF = _LlamaCppGguf("gguf")
