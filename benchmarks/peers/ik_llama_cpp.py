"""ik_llama.cpp, a fork of llama.cpp for CPUs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, ClassVar

from peers.base import PLAIN, GgufFiles
from peers.passes import Passes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.base import Loading


class _IkLlamaCpp(GgufFiles):
    """Built for the processor at hand, which takes an hour of one core."""

    home = "ik_llama.cpp"
    requirements = ("ik-llama-cpp-python==0.1.5", "numpy")
    build: ClassVar[Mapping[str, str]] = {
        "PIP_NO_BINARY": "ik-llama-cpp-python",
        "CMAKE_ARGS": "-DGGML_NATIVE=ON",
    }
    settings: ClassVar[Mapping[str, str]] = {PLAIN: "llama_decode"}

    def load(self, loading: Loading) -> Passes:
        """See `Peer`."""
        import ik_llama_cpp._ctypes_api as api

        remove = api._lib.llama_kv_cache_seq_rm  # not among its functions
        remove.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 3]
        return Passes(api, remove, loading)


class _Wheel(_IkLlamaCpp):
    """As PyPI has it: for AVX2, without AVX-512 and VNNI."""

    home = "ik_llama.cpp-wheel"
    build: ClassVar[Mapping[str, str]] = {}


PEER = _IkLlamaCpp()
PEER_WHEEL = _Wheel()
