"""Opens a folder of safetensors whose matrices may be quantized, by what its config says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import UnsupportedModelError
from edgespec.models.formats.quantized import awq, bitnet, compressed, float4, fp8, gptq
from edgespec.models.formats.quantized.matrix import QuantizedFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.quantized.matrix import QuantizedMatrix
    from edgespec.models.formats.safetensors_folder import SafetensorsFolder
    from edgespec.models.formats.tensors import TensorSource

READERS: Mapping[str, Callable[[SafetensorsFolder, ConfigFields], dict[str, QuantizedMatrix]]] = {
    "awq": awq.awq_matrices,
    "bitnet": bitnet.bitnet_matrices,
    "compressed-tensors": compressed.compressed_matrices,
    "fp8": fp8.fp8_matrices,
    "gptq": gptq.gptq_matrices,
    "modelopt": float4.modelopt_matrices,
}
"""Readers of quantized matrices by `quant_method`."""

_OF_EXPERTS = "mxfp4"  # whose stacks of experts `expert_tensors.py` takes apart


def opened(tensors: SafetensorsFolder, config: ConfigFields) -> tuple[TensorSource, str]:
    """Returns a folder's tensors, with matrices where several tensors make up one.

    Args:
        tensors: The folder's tensors as they are stored.
        config: `quantization_config` of config.json, empty if there is none.

    Returns:
        The tensors, and the name of the format; empty if nothing is quantized.

    Raises:
        UnsupportedModelError: The format, or something that the config asks for, cannot be read.
        CheckpointError: A tensor is missing or has another shape.
    """
    if not config.values:
        packed = sorted(name for name in tensors.names if name.endswith(".qweight"))
        if packed:
            raise UnsupportedModelError(
                f"{tensors.place(packed[0])}: {packed[0]} is quantized, but config.json has no "
                "quantization_config: add it, with quant_method gptq or awq, or use the original "
                "checkpoint in bf16, fp16 or fp32"
            )
        return tensors, ""
    method = config.get("quant_method")
    if method == _OF_EXPERTS:
        return tensors, ""
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise config.unsupported(
            "quant_method",
            f"use the original checkpoint in bf16, fp16 or fp32, or one of {', '.join(READERS)}",
        )
    return QuantizedFolder(tensors, reader(tensors, config)), str(method)
