"""Tests that a row of a mixture has the same bits, whichever experts the other rows choose."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from pairs import ENGINES

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.components import moe
from edgespec.measuring.bits import compare_bits
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness

# Blocks of 128, with which some kernels compute a last row without a partner differently.
SHAPES = {
    "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "head_dim": 32,
    "num_key_value_heads": 2,
}  # fmt: skip
BESIDE_AN_MLP = {
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "global_head_dim": 64,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
CASES = [
    ("gemma4_text", "int4"), ("gpt_oss", "fp32"), ("gpt_oss", "int4"), ("granitemoe", "int4"),
    ("olmoe", "int8"), ("qwen3_moe", "int4"),
]  # fmt: skip
engines = pytest.mark.parametrize("engine_name", ENGINES)


def exported(folder, architecture, precision):
    own = BESIDE_AN_MLP if architecture == "gemma4_text" else {}
    make_checkpoint(folder / "target", architecture, **SHAPES, **own)
    write_tokenizer(folder / "target", 331)
    export_bundle(folder / "target", folder / "bundle", None, ExportOptions(precision))
    bundle = bundles.load(folder / "bundle")
    assert bundle.target.precision.block_size == (0 if precision == "fp32" else 128)
    return bundle


def differing(bundle, engine_name):
    """How many rows of some texts have other bits in company, and whether loading has seen it."""
    model = exactness.load(bundle, TARGET, (engine(engine_name),), 2)
    count = 0
    for seed, start in enumerate((1, 60)):
        text = np.random.default_rng(seed).integers(0, 331, start + 80).tolist()
        found = compare_bits(model, text, start, seed)
        assert found.rows > 80
        count += found.differing
    return count, model.exact


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def bundle(request, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("bits"), *request.param)


@engines
def test_rows_are_the_same_bits_in_all_company(bundle, engine_name):
    assert differing(bundle, engine_name) == (0, True)


def test_experts_with_odd_numbers_of_rows_would_not_do(tmp_path, monkeypatch):
    """Shows that the test above can fail."""
    monkeypatch.setattr(moe, "_TOGETHER", 1)
    bundle = exported(tmp_path, "qwen3_moe", "int4")
    count, exact = differing(bundle, "onnxruntime:cpu")
    if not count:
        pytest.skip("this processor's kernels compute odd rows like others")
    assert not exact
