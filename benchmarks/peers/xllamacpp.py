"""llama.cpp's server through xllamacpp, whose wheel is for AVX2, without AVX-512 and VNNI.

Its threads spin while they wait for each other: other load on the machine slows it out of all
proportion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from peers.base import PLAIN, GgufFiles, Stopwatch, Unjudged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.base import Loading, Request, Text


class _Xllamacpp(GgufFiles):
    home = "xllamacpp"
    requirements = ("xllamacpp",)
    build: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, str]] = {PLAIN: "Server.handle_completions"}

    def load(self, loading: Loading) -> _Decoder:
        """See `Peer`."""
        import xllamacpp

        how = xllamacpp.CommonParams()
        how.model.path = str(loading.folder / "target.gguf")
        how.n_ctx, how.n_parallel = loading.context, 1
        how.cpuparams.n_threads = how.cpuparams_batch.n_threads = loading.threads
        return _Decoder(xllamacpp.Server(how))


class _Decoder(Unjudged):
    def __init__(self, server: Any) -> None:
        self._server = server

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        asked = {
            "prompt": list(request.prompt), "n_predict": request.new_tokens, "seed": request.seed,
            "temperature": request.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            "cache_prompt": False, "stream": True, "verbose": True, "return_tokens": True,
        }  # fmt: skip
        watch = Stopwatch()
        self._server.handle_completions(asked, lambda part: watch.take(part["__verbose"]["tokens"]))
        return watch.text()


PEER = _Xllamacpp()
