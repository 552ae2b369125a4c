"""Caches in 8 bits: what is rounded and how, the same bits in any pass, and the command."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from commandline import fails
from nodes import MISSING, same_bits
from parity import PROMPT, Text, distance, load, reference
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, Qwen2ForCausalLM

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.export.native import attention

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

FAMILIES = ("llama", "qwen2", "gemma2", "gpt_oss")
OPTIONS = ExportOptions("fp32", kv_precision="int8")


class RoundedCache(DynamicCache):
    """Keys and values rounded to whole multiples of a 127th of the largest of a row and head.

    `factors` by layers, [KV, 1, hd], are what keys are divided by before that.
    """

    factors = None

    def update(self, keys, values, layer, *args, **kwargs):
        factor = 1.0 if self.factors is None else self.factors[layer]
        keys = rounded(keys / factor) * factor
        values = rounded(values)
        return super().update(keys, values, layer, *args, **kwargs)


def rounded(rows):
    scale = rows.abs().amax(dim=-1, keepdim=True) * np.float32(1 / 127)
    return (rows / scale).round() * scale


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a random checkpoint of a family and its bundle with caches in 8 bits."""
    known = {}

    def made(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            model = make_checkpoint(folder / "checkpoint", name)
            export.make(folder / "checkpoint", folder / "bundle", options=OPTIONS)
            known[name] = model, bundles.load(folder / "bundle")
        return known[name]

    return made


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_heads_are_rounded_to_a_scale_of_their_own(made, name):
    """A number on the edge between two may be rounded to the other, hence the tolerance."""
    model, bundle = made(name)
    unrounded = reference(model, PROMPT)
    expected = reference(model, PROMPT, RoundedCache())
    found = Text(load(bundle)).read(PROMPT)[-1]
    assert distance(found, expected) < 2e-3
    assert distance(found, unrounded) > 2 * distance(found, expected)


def test_large_biases_of_keys_leave_the_other_numbers_their_digits(tmp_path, monkeypatch):
    """As Qwen2 has them. The factors are powers of two, the same for a pair that RoPE turns."""
    make_checkpoint(tmp_path / "checkpoint", "qwen2", head_dim=64)
    file = tmp_path / "checkpoint/model.safetensors"
    tensors = load_file(file)
    for layer in range(2):
        bias = tensors[f"model.layers.{layer}.self_attn.k_proj.bias"]
        bias[[3, 35]] = torch.tensor([120.0, -90.0])
    save_file(tensors, file, {"format": "pt"})
    model = Qwen2ForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).eval()
    export.make(tmp_path / "checkpoint", tmp_path / "even", options=OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "_key_scale", lambda *_: "")
        export.make(tmp_path / "checkpoint", tmp_path / "uneven", options=OPTIONS)
    expected = reference(model, PROMPT)
    even, uneven = (Text(load(tmp_path / name)).read(PROMPT)[-1] for name in ("even", "uneven"))
    assert distance(even, expected) < 0.6 * distance(uneven, expected)
    cache = RoundedCache()
    biases = (model.model.layers[n].self_attn.k_proj.bias.detach().numpy() for n in range(2))
    cache.factors = [factors(bias) for bias in biases]
    assert {float(each) for each in cache.factors[0].unique()} == {1.0, 32.0}
    assert distance(even, reference(model, PROMPT, cache)) < 2e-3


def factors(bias):
    """Of one key head: the power of two up to half the size of each pair of biases, at least 1."""
    pairs = bias.reshape(2, -1)
    half = np.sqrt((pairs**2).mean(axis=0)).clip(2) / 2
    return torch.tensor(np.tile(2.0 ** np.floor(np.log2(half)), 2), dtype=torch.float32)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_have_the_same_bits_in_any_pass(made, name):
    _, bundle = made(name)
    one = Text(load(bundle, threads=2))
    other = Text(load(bundle))
    same_bits(one.read(PROMPT[:130]), other.read(PROMPT[:130], chunk=30))
    same_bits(one.tree(), other.tree())


def test_rows_of_zeros_are_no_division_by_zero(tmp_path):
    make_checkpoint(tmp_path / "checkpoint", "llama")
    file = tmp_path / "checkpoint/model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if "v_proj" in name or "k_proj" in name:
            tensors[name] *= 0
    save_file(tensors, file, {"format": "pt"})
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=OPTIONS)
    assert np.isfinite(Text(load(tmp_path / "bundle")).read(PROMPT)).all()


def test_the_command_exports_and_shows_them(cli, tmp_path):
    make_checkpoint(tmp_path / "checkpoint", "llama")
    cli(
        "export",
        tmp_path / "checkpoint",
        "-o",
        tmp_path / "bundle",
        "--kv-precision",
        "int8",
        "--precision",
        "fp32",
    )
    assert bundles.load(tmp_path / "bundle").target.precision.kv == "int8"
    assert "int8" in cli("inspect", tmp_path / "bundle").out
    wrong = cli("export", tmp_path / "checkpoint", "-o", tmp_path / "no", "--kv-precision", "int4")
    fails(wrong, "int4", "int8")
