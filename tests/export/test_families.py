"""Families whose layers differ from Llama's, in int4: as near to the original, and as exact."""

from __future__ import annotations

import pytest
from parity import PROMPT, devices, distance, load, made, reference

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.export import ExportOptions, export_bundle
from edgespec.measuring.bits import compare_bits
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness

FAMILIES = (
    "exaone4", "gemma2", "gemma4_text", "glm4", "granite", "hunyuan_v1_dense", "lfm2", "olmo3",
    "phi3", "qwen3_5_text", "smollm3", "stablelm",
)  # fmt: skip
# Matrices of one size for all, so that their errors are alike.
SIZES = {"hidden_size": 96, "head_dim": 24, "intermediate_size": 160, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Makes transformers' model and its bundle in int4, once for each architecture."""
    found = {}

    def exported(architecture):
        if architecture not in found:
            folder = tmp_path_factory.mktemp(architecture)
            model = made(folder / "checkpoint", architecture, **SIZES)
            export_bundle(
                folder / "checkpoint", folder / "bundle", options=ExportOptions("int4-small")
            )
            found[architecture] = model, bundles.load(folder / "bundle")
        return found[architecture]

    return exported


@devices
@pytest.mark.parametrize("architecture", FAMILIES)
def test_four_bits_change_logits_as_they_change_llamas(exported, architecture, device):
    distances = {}
    for name in ("llama", architecture):
        model, bundle = exported(name)
        logits = load(bundle, device).prefill(PROMPT[:100])["logits"][0]
        distances[name] = distance(logits, reference(model, PROMPT[:100]))
    most = 2.0 if bundle.target.layers > 2 else 1.5
    assert distances[architecture] < most * distances["llama"]


@devices
@pytest.mark.parametrize("architecture", FAMILIES)
def test_rows_are_the_same_bits_in_all_company(exported, architecture, device):
    _, bundle = exported(architecture)
    model = exactness.load(bundle, TARGET, (engine(device),), 1)
    assert model.exact
    found = compare_bits(model, PROMPT[:140], 50)
    assert found.rows > 90
    assert found.differing == 0, found.where
