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
from typing import TYPE_CHECKING, ClassVar

from peers.base import PLAIN, GgufFiles
from peers.passes import Passes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.base import Loading


class _IkLlamaCpp(GgufFiles):
    home = "ik_llama.cpp"
    requirements = ("ik-llama-cpp-python==0.1.5", "numpy")
    build: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, str]] = {
        PLAIN: f"llama_decode of {os.environ.get('IK_LLAMA_CPP_LIB_PATH', 'the wheel, for AVX2')}"
    }

    def load(self, loading: Loading) -> Passes:
        """See `Peer`."""
        import ik_llama_cpp._ctypes_api as api

        remove = api._lib.llama_kv_cache_seq_rm  # not among its functions
        remove.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 3]
        return Passes(api, remove, loading)


PEER = _IkLlamaCpp()
