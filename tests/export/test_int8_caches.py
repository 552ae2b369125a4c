"""Caches in 8 bits: what is rounded and how, exact rows, texts, memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer
from commandline import fails
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS
from parity import PROMPT, distance, load, reference, tree_logits
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, Qwen2ForCausalLM

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.components import self_attention
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import require_suited

FAMILIES = ("llama", "qwen2", "gemma2", "gpt_oss")
OPTIONS = ExportOptions("fp32", kv_precision="int8")

engines = pytest.mark.parametrize("device", ENGINES)


class RoundedCache(DynamicCache):
    """Keys and values rounded to whole multiples of a 127th of the largest of a row and head.

    `factors` by layers, [KV, 1, hd], are what keys are divided by before that.
    """

    factors = None

    def update(self, keys, values, layer, *args, **kwargs):
        factor = 1.0 if self.factors is None else self.factors[layer]
        keys, values = rounded(keys / factor) * factor, rounded(values)
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
            write_tokenizer(folder / "checkpoint", 331)
            export_bundle(folder / "checkpoint", folder / "bundle", options=OPTIONS)
            known[name] = model, bundles.load(folder / "bundle")
        return known[name]

    return made


@engines
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_heads_are_rounded_to_a_scale_of_their_own(made, name, device):
    """A number on the edge between two may be rounded to the other, hence the tolerance."""
    model, bundle = made(name)
    runner = load(bundle, device)
    unrounded, expected = reference(model, PROMPT), reference(model, PROMPT, RoundedCache())
    found = runner.prefill(PROMPT)["logits"][0]
    assert distance(found, expected) < 2e-3
    assert distance(found, unrounded) > 2 * distance(found, expected)


@engines
def test_large_biases_of_keys_leave_the_other_numbers_their_digits(tmp_path, device, monkeypatch):
    """As Qwen2 has them. The factors are powers of two, the same for a pair that RoPE turns."""
    make_checkpoint(tmp_path / "checkpoint", "qwen2", head_dim=64)
    file = tmp_path / "checkpoint/model.safetensors"
    tensors = load_file(file)
    for layer in range(2):
        bias = tensors[f"model.layers.{layer}.self_attn.k_proj.bias"]
        bias[[3, 35]] = torch.tensor([120.0, -90.0])
    save_file(tensors, file, {"format": "pt"})
    model = Qwen2ForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).eval()
    write_tokenizer(tmp_path / "checkpoint", 331)
    export_bundle(tmp_path / "checkpoint", tmp_path / "even", options=OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(self_attention, "_even", lambda *_: None)
        export_bundle(tmp_path / "checkpoint", tmp_path / "uneven", options=OPTIONS)
    expected = reference(model, PROMPT)
    even, uneven = (
        load(bundles.load(tmp_path / name), device).prefill(PROMPT)["logits"][0]
        for name in ("even", "uneven")
    )
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


@engines
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_the_same_bits_in_all_company(made, name, device):
    _, bundle = made(name)
    model = exactness.load(bundle, TARGET, (engine(device),), 1)
    assert model.exact
    one, other = Runner(model), Runner(model)
    one.prefill(PROMPT[:330])
    for start in range(0, 330, 30):
        other.prefill(PROMPT[start : start + 30])
    for tree, alone in zip(tree_logits(one), tree_logits(other), strict=True):
        np.testing.assert_array_equal(tree, alone)


@pytest.mark.slow
@engines
def test_every_draft_gives_the_text_of_plain_decoding(pairs, device):
    plain = pairs.llm("small-caches", device, "none")
    options = {"max_new_tokens": NEW_TOKENS}
    expected = plain.generate(LONG_PROMPT, **options)
    sampled = plain.generate(LONG_PROMPT, temperature=1.2, seed=3, **options)
    accepted = 0
    for draft in ("model", "lookup", "auto"):
        llm = pairs.llm("small-caches", device, draft)
        found = llm.generate(LONG_PROMPT, **options)
        assert found.tokens == expected.tokens
        again = llm.generate(LONG_PROMPT, temperature=1.2, seed=3, **options)
        assert again.tokens == sampled.tokens
        accepted += found.accepted
    assert accepted > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cache_takes_little_more_than_a_byte_a_number(made, name):
    _, bundle = made(name)
    runner = Runner(load(bundle, ENGINES[0]).model)
    role = bundle.target
    numbers = 2 * role.layers * role.kv_heads * role.head_dim
    scales = 2 * role.layers * role.kv_heads
    assert runner.bytes == 256 * (numbers + 4 * scales)
    kinds = {(group.dtype, group.scales) for group in role.stages[0].cache_groups}
    assert kinds == {("int8", False), ("float32", True)}


def test_a_copy_holds_the_same_bytes(made):
    _, bundle = made("gemma2")
    one = load(bundle, ENGINES[0])
    one.prefill(PROMPT)
    snapshot = one.snapshot(len(PROMPT))
    assert [str(each.dtype) for each in snapshot.caches] == ["int8", "float32"] * 2
    other = Runner(one.model)
    assert other.fits(snapshot)
    other.restore(snapshot)
    np.testing.assert_array_equal(tree_logits(other), tree_logits(one))
    half = replace(snapshot, caches=[each.astype(np.float16) for each in snapshot.caches])
    assert not other.fits(half)


def test_rows_of_zeros_are_no_division_by_zero(tmp_path):
    make_checkpoint(tmp_path / "checkpoint", "llama")
    file = tmp_path / "checkpoint/model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if "v_proj" in name or "k_proj" in name:
            tensors[name] *= 0
    save_file(tensors, file, {"format": "pt"})
    write_tokenizer(tmp_path / "checkpoint", 331)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options=OPTIONS)
    for device in ENGINES:
        found = load(bundles.load(tmp_path / "bundle"), device).prefill(PROMPT)["logits"]
        assert np.isfinite(found).all()


def test_devices_that_cannot_read_them_are_refused(made):
    _, bundle = made("llama")
    other = engine(ENGINES[0])
    other.integer_caches = False
    with pytest.raises(DeviceError, match=r"its caches have 8 bits.*--kv-precision fp16"):
        require_suited(bundle, TARGET, other)


def test_the_command_exports_and_shows_them(cli, tmp_path):
    make_checkpoint(tmp_path / "checkpoint", "llama")
    write_tokenizer(tmp_path / "checkpoint", 331)
    cli("export", tmp_path / "checkpoint", "-o", tmp_path / "bundle", "--kv-precision", "int8",
        "--precision", "fp32")  # fmt: skip
    assert bundles.load(tmp_path / "bundle").target.precision.kv == "int8"
    assert DRAFT not in bundles.load(tmp_path / "bundle").manifest.roles
    assert "int8" in cli("inspect", tmp_path / "bundle").out
    wrong = cli("export", tmp_path / "checkpoint", "-o", tmp_path / "no", "--kv-precision", "int4")
    fails(wrong, "int4", "int8")
