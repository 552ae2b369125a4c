"""The damage that calibration counts is what rounding a matrix does to its sublayer's output."""

from __future__ import annotations

import numpy as np
import pytest
from parity import made, output_of

from edgespec.export.calibration.calibrate import Texts, calibrate
from edgespec.export.calibration.forward import Forward
from edgespec.export.formats.blocks import dequantize_rows
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.models import load_checkpoint

LENGTH, WARM_UP = 24, 8
TEXTS = Texts(*np.random.default_rng(4).integers(331, size=(2, 4, LENGTH)).tolist())
# Of keys that another layer reads, of queries that read them, of a layer's own input, and of an MLP
# with experts beside it.
NAMES = (
    "0.self_attn.k_proj", "2.self_attn.q_proj", "3.self_attn.o_proj", "1.per_layer_input_gate",
    "2.per_layer_projection", "1.mlp.up_proj", "3.mlp.down_proj",
)  # fmt: skip


class Patched(Forward):
    """A pass of which one matrix can be another."""

    name = ""

    def weights(self, *layers):
        found = super().weights(*layers)
        return {**found, self.name: self.other} if self.name in found else found


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    made(
        folder, "gemma4_text", enable_moe_block=True, num_experts=8, top_k_experts=3,
        moe_intermediate_size=96,
    )  # fmt: skip
    checkpoint = load_checkpoint(folder)
    with RoundedMatrices(folder) as rounded:
        yield checkpoint, calibrate(checkpoint, TEXTS, 32, rounded).damage, rounded


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_the_change_of_a_sublayers_output(calibrated, name):
    check(*calibrated, f"model.layers.{name}.weight")


@pytest.mark.parametrize("kind", ["gate_proj", "down_proj"])
def test_so_it_is_of_experts_beside_an_mlp(calibrated, kind):
    of_experts = {name: each for name, each in calibrated[1].items() if f".{kind}" in name}
    of_experts = {name: each for name, each in of_experts.items() if ".experts." in name}
    assert len(of_experts) == 4 * 8
    for name in sorted(of_experts, key=of_experts.__getitem__)[-4:]:
        check(*calibrated, name)


def check(checkpoint, damage, rounded, name):
    expected = by_hand(checkpoint, name, dequantize_rows(rounded[name], 4))
    assert expected > 1e-9
    assert damage[name] == pytest.approx(expected, rel=1e-2)


def by_hand(checkpoint, name, other):
    forward = Patched(checkpoint, np.array(TEXTS.judged))
    for layer in forward.layers():
        for each in layer:
            output = output_of(forward, each)
            if name in {linear.weight for linear in each.linears}:
                forward.name, forward.other = name, other[:, : checkpoint.tensors.shape(name)[1]]
                change = output_of(forward, each) - output
                square = np.square(change).sum(1) / np.square(forward.hidden + output).sum(1)
                return square[np.arange(len(square)) % LENGTH >= WARM_UP].mean()
            forward.add(output)
    raise AssertionError(name)
