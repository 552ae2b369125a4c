"""GGUF files in other formats, by the quantizers of llama.cpp in the wheel of xllamacpp.

The wheel has the function that quantizes a matrix (`ggml_quantize_chunk`), and not the one that
says which matrix gets which format: Q4_K_M's rule is `_format`, as llama.cpp states it.
"""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from peers import python_of
from peers.gguf_copy import rewrite

from edgespec.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Values = np.ndarray[Any, np.dtype[np.float32]]

_HIDDEN_COLUMNS = ["token_embd", "output", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"]
_HIDDEN_ROWS = ["attn_output", "ffn_down"]
_HIDDEN = ["output_norm", "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"]
_AS_THEY_ARE = ["attn_q_norm", "attn_k_norm", "rope_freqs"]
_SMALLER_BLOCKS = {Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0}  # for rows of other lengths
_PART = 1 << 22  # weights that a thread quantizes in a call


def write_permuted(source: Path, output: Path) -> None:
    """Writes the same dense model in F16 with columns in another order, the same one every time.

    Files that are quantized already would be found again by formats with the same blocks. The
    order of hidden columns and of an MLP's units has no influence on what a model says.

    Raises:
        InputError: if there are tensors of which it is not known how they are permuted.
    """
    reader = gguf.GGUFReader(source)
    draws = np.random.default_rng(0)
    norm = next(each for each in reader.tensors if each.name == "output_norm.weight")
    hidden = draws.permutation(norm.n_elements)
    units = dict[str, Any]()

    def permuted(tensor: Any) -> tuple[Values, Kind]:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        *layer, name, what = tensor.name.split(".")
        if name in _HIDDEN or (name in _HIDDEN_ROWS and what == "bias"):
            values = values[..., hidden]
        elif name in _HIDDEN_COLUMNS and what == "weight":
            values = values[:, hidden]
        elif name in _HIDDEN_ROWS:
            values = values[hidden]
        elif name not in _AS_THEY_ARE and what != "bias":
            raise InputError(f"{source} has {tensor.name}: give a dense model")
        if name.startswith("ffn_") and name not in _HIDDEN:
            key = layer[-1]
            size = values.shape[1 if name == "ffn_down" else 0]
            order = units.setdefault(key, draws.permutation(size))
            values = values[:, order] if name == "ffn_down" else values[order]
        return values, Kind.F16 if values.ndim > 1 else Kind.F32

    rewrite(reader, output, permuted)


def write_q4_k_m(
    source: Path, output: Path, cache: Path, matrix: Mapping[str, Values] | None = None
) -> None:
    """Writes a file in F16 as Q4_K_M.

    Args:
        source: the file.
        output: the file to write.
        cache: folder of the peers' environments.
        matrix: mean squares of what matrices read, by their names: an importance matrix.
    """
    reader = gguf.GGUFReader(source)
    quantize = _quantizer(cache)
    names = {each.name for each in reader.tensors}
    layers = 1 + max(int(found[1]) for name in names if (found := re.match(r"blk\.(\d+)\.", name)))

    def formatted(tensor: Any) -> tuple[Values, Kind]:
        if tensor.data.ndim < 2:
            return tensor.data, Kind.F32
        kind = _format(tensor.name, layers, "output.weight" not in names, tensor.data.shape[1])
        values = np.ascontiguousarray(tensor.data, np.float32)
        return quantize(values, kind, (matrix or {}).get(tensor.name)), kind

    rewrite(reader, output, formatted)


def _format(name: str, layers: int, tied: bool, columns: int) -> Kind:
    kind = Kind.Q4_K
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        kind = Kind.Q6_K
    elif "attn_v." in name or "ffn_down." in name:
        eighth = layers // 8
        if layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2:
            kind = Kind.Q6_K
    return _SMALLER_BLOCKS[kind] if columns % 256 else kind


def _quantizer(cache: Path) -> Callable[[Values, Kind, Values | None], Any]:
    """Returns the function of a matrix [N, K], a format, and weights of errors [K]: bytes."""
    environment = python_of("xllamacpp", cache).parents[1]
    library = ctypes.CDLL(str(next(environment.glob("lib/*/site-packages/xllamacpp/*.so"))))
    library.llama_backend_init()  # fills tables
    chunk = library.ggml_quantize_chunk
    whole = ctypes.c_int64
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, whole, whole, whole, ctypes.c_void_p]
    chunk.restype = ctypes.c_size_t
    library.ggml_quantize_init.argtypes = [ctypes.c_int]

    def quantize(values: Values, kind: Kind, squares: Values | None) -> Any:
        rows, columns = values.shape
        block, size = gguf.GGML_QUANT_SIZES[kind]
        out = np.empty((rows, columns // block * size), np.uint8)
        weights = None if squares is None else np.ascontiguousarray(squares, np.float32)
        library.ggml_quantize_init(kind)
        part = max(1, _PART // columns)

        def rows_from(first: int) -> None:
            count = min(part, rows - first)
            given = None if weights is None else weights.ctypes.data
            # The destination is where the first row lies: the function adds the rows before.
            chunk(kind, values.ctypes.data, out.ctypes.data, first * columns, count, columns, given)

        with ThreadPoolExecutor() as threads:
            list(threads.map(rows_from, range(0, rows, part)))
        return out

    return quantize
