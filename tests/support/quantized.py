"""Writes small checkpoints in the formats of GPTQ, AWQ, compressed-tensors and FP8.

Numbers are packed one by one from the definitions of the formats, which are AutoGPTQ's and
GPTQModel's `qlinear` modules, AutoAWQ's `WQLinear_GEMM`, compressed-tensors' `pack_quantized`
(vLLM project), and DeepSeek-V3's `weight_scale_inv`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

# Activations are rounded to 8 bits in blocks of weights: measured 0.04 at most.
IN_8_BITS = 0.06

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Levels:
    """A rounded matrix: weight[n, k] = (levels[n, k] - zeros[n, g]) * scales[n, g], g = groups[k].

    Attributes:
        levels: [N, K] whole numbers below 2 ** bits.
        scales: [N, groups] float32.
        zeros: [N, groups] whole numbers below 2 ** bits.
        groups: [K] the group of each column.
        bits: bits of a level.
    """

    levels: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    groups: np.ndarray
    bits: int

    def weights(self):
        """Returns the matrix, [N, K] float32, computed one by one."""
        found = np.empty(self.levels.shape, np.float32)
        for k, group in enumerate(self.groups):
            found[:, k] = (self.levels[:, k] - self.zeros[:, group]) * self.scales[:, group]
        return found


@dataclass(frozen=True)
class Format:
    """How a checkpoint is quantized.

    Attributes:
        method: quant_method.
        bits: bits of a level; 0: floats of 8 bits.
        size: columns of a group; None: whole rows.
        symmetric: whether all zero points are in the middle.
        order: columns in order, "blocks" for groups in another order, or "scattered".
        half: scales are exact in half precision.
        kind: version or layout within the method.
    """

    method: str
    bits: int
    size: int | None
    symmetric: bool = True
    order: str = "in order"
    half: bool = True
    kind: str = ""


def rounded(weight, form, rng):
    """Rounds a matrix without care; scales are in half precision, or have more bits."""
    rows, width = weight.shape
    size = form.size or width
    count = -(-width // size)
    groups = np.arange(width) // size
    if form.order == "blocks":
        groups = rng.permutation(count)[groups]
    elif form.order == "scattered":
        groups = rng.permutation(groups)
    top = 2**form.bits - 1
    middle = 2 ** (form.bits - 1)
    scales = np.empty((rows, count), np.float32)
    zeros = np.full((rows, count), middle)
    if not form.symmetric:
        zeros = rng.integers(middle - 2, middle + 3, (rows, count))
        zeros[0, 0] = 0  # which GPTQ's first version stores as the largest number
    for group in range(count):
        peak = np.abs(weight[:, groups == group]).max(axis=1)
        scales[:, group] = peak / (middle - 1)
    scales = scales.astype(np.float16).astype(np.float32)
    if not form.half:
        scales *= np.float32(1 + 2**-15)
    levels = np.clip(np.rint(weight / scales[:, groups]) + zeros[:, groups], 0, top).astype(int)
    return Levels(levels, scales, zeros, groups, form.bits)


def words(numbers, bits):
    """Packs each row of whole numbers into 32-bit words, the first into the lowest bits."""
    per = 32 // bits
    found = np.zeros((len(numbers), -(-numbers.shape[1] // per)), np.uint64)
    for place in range(numbers.shape[1]):
        found[:, place // per] += numbers[:, place].astype(np.uint64) << np.uint64(
            bits * (place % per)
        )
    return torch.from_numpy(found.astype(np.uint32).view(np.int32))


def gptq(name, matrix, form):
    """Returns the tensors of a matrix as GPTQ stores them: columns of its transpose are packed."""
    zeros = matrix.zeros.T - (0 if form.kind == "gptq_v2" else 1)
    return {
        f"{name}.qweight": words(matrix.levels, matrix.bits).T,
        f"{name}.qzeros": words(zeros % 2**matrix.bits, matrix.bits),
        f"{name}.scales": _scales(matrix.scales.T, form),
        f"{name}.g_idx": torch.from_numpy(matrix.groups.astype(np.int32)),
    }


def awq(name, matrix, form):
    """Returns the tensors of a matrix as AWQ stores them: eight columns in their order."""

    def shuffled(numbers):
        places = [
            start + column for start in range(0, numbers.shape[1], 8) for column in _AWQ_COLUMNS
        ]
        return words(numbers[:, places], 4)

    return {
        f"{name}.qweight": shuffled(matrix.levels.T),
        f"{name}.qzeros": shuffled(matrix.zeros.T),
        f"{name}.scales": _scales(matrix.scales.T, form),
    }


def packed(name, matrix, form):
    """Returns the tensors of a matrix as compressed-tensors packs them."""
    found = {
        f"{name}.weight_packed": words(matrix.levels, matrix.bits),
        f"{name}.weight_scale": _scales(matrix.scales, form),
        f"{name}.weight_shape": torch.tensor(matrix.levels.shape),
    }
    if not form.symmetric:
        found[f"{name}.weight_zero_point"] = words(matrix.zeros.T, matrix.bits).T
    if form.order != "in order":
        found[f"{name}.weight_g_idx"] = torch.from_numpy(matrix.groups.astype(np.int32))
    return found


def int_bytes(name, matrix, form):
    """Returns the tensors of a matrix as compressed-tensors stores int8."""
    found = {
        f"{name}.weight": torch.from_numpy((matrix.levels - 128).astype(np.int8)),
        f"{name}.weight_scale": _scales(matrix.scales, form),
    }
    if not form.symmetric:
        zeros = (matrix.zeros - 128).astype(np.int8)
        found[f"{name}.weight_zero_point"] = torch.from_numpy(zeros)
    return found


def _scales(scales, form):
    return torch.from_numpy(scales).to(torch.float16 if form.half else torch.float32)


def fp8(name, weight, form):
    """Returns the tensors of a matrix in 8-bit floats, and its values multiplied out."""
    rows, width = weight.shape
    tall, wide = {"block": (form.size, form.size), "row": (1, width), "": (rows, width)}[form.kind]
    scale = np.empty((-(-rows // tall), -(-width // wide)), np.float32)
    stored = torch.empty(rows, width, dtype=torch.float8_e4m3fn)
    values = np.empty_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = np.s_[i * tall : (i + 1) * tall, j * wide : (j + 1) * wide]
            scale[i, j] = np.abs(weight[part]).max() / 448
            stored[part] = torch.from_numpy(weight[part] / scale[i, j]).to(torch.float8_e4m3fn)
            values[part] = stored[part].float().numpy() * scale[i, j]
    found = torch.from_numpy(scale if form.kind else scale.reshape(()))
    key = "weight_scale_inv" if form.kind == "block" else "weight_scale"
    extra = {f"{name}.input_scale": torch.tensor(0.5)} if not form.kind else {}
    return {f"{name}.weight": stored, f"{name}.{key}": found, **extra}, values


_WRITERS = {"gptq": gptq, "awq": awq, "compressed-tensors": packed}


def config(form):
    """Returns the quantization_config that says so."""
    size = -1 if form.size is None else form.size
    common = {"quant_method": form.method}
    if form.method == "gptq":
        version = {"checkpoint_format": form.kind} if form.kind else {}
        return common | {
            "bits": form.bits,
            "group_size": size,
            "desc_act": form.order != "in order",
            "sym": form.symmetric,
            **version,
        }
    if form.method == "awq":
        return common | {
            "bits": 4,
            "group_size": size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["lm_head"],
        }
    if form.method == "fp8":
        block = {"weight_block_size": [form.size, form.size]} if form.kind == "block" else {}
        return common | {"activation_scheme": "dynamic", **block}
    weights = {
        "num_bits": form.bits or 8,
        "type": "int" if form.bits else "float",
        "strategy": "channel" if form.size is None else "group",
        "group_size": form.size,
        "symmetric": form.symmetric,
    }
    return common | {
        "format": form.kind,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def quantize(source: Path, folder: Path, form: Format, plain: Path | None = None):
    """Writes a checkpoint whose layers' matrices are quantized.

    Args:
        source: a checkpoint in floats.
        folder: where to write it.
        form: how it is quantized.
        plain: where to write the same values in float32; None: nowhere.

    Returns:
        The quantized matrices by name: [N, K] float32, and `Levels` or None.
    """
    rng = np.random.default_rng(0)
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    values = {}
    found = {}
    for key in [each for each in tensors if each.endswith("_proj.weight")]:
        name = key.removesuffix(".weight")
        weight = tensors.pop(key).float().numpy()
        if form.bits == 0:
            parts, values[key] = fp8(name, weight, form)
            found[key] = None
        else:
            matrix = found[key] = rounded(weight, form, rng)
            write = int_bytes if form.kind == "int-quantized" else _WRITERS[form.method]
            parts, values[key] = write(name, matrix, form), matrix.weights()
        tensors |= {part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((source / "config.json").read_text())
    settings["quantization_config"] = config(form)
    (folder / "config.json").write_text(json.dumps(settings))
    if plain is not None:
        shutil.copytree(source, plain)
        whole = load_file(source / "model.safetensors")
        whole |= {key: torch.from_numpy(value) for key, value in values.items()}
        save_file(whole, plain / "model.safetensors", {"format": "pt"})
    return {key: (values[key], found[key]) for key in found}
