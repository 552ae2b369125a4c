"""The damage that calibration counts is what rounding a matrix does to its sublayer's output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from nodes import MISSING

from edgespec.export import RoundedMatrices, Texts, calibrate
from edgespec.export.formats.tiles import tile_weights
from edgespec.models import load_checkpoint
from edgespec.tuning.calibrating import opener

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

LENGTH, WARM_UP = 24, 8
TEXTS = Texts(*np.random.default_rng(4).integers(331, size=(2, 4, LENGTH)).tolist())
# Of keys that another layer reads, of queries that read them, of a layer's own input, and of an MLP
# with experts beside it.
NAMES = (
    "0.self_attn.k_proj", "2.self_attn.q_proj", "3.self_attn.o_proj", "1.per_layer_input_gate",
    "2.per_layer_projection", "1.mlp.up_proj", "3.mlp.down_proj",
)  # fmt: skip


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    model = make_checkpoint(
        folder,
        "gemma4_text",
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=3,
        moe_intermediate_size=96,
    )
    checkpoint = load_checkpoint(folder)
    linears = [each.weight for part in checkpoint.decoder.sublayers for each in part.linears]
    with RoundedMatrices(folder, dict.fromkeys(linears, "q4_0")) as rounded:
        damage = calibrate(checkpoint, TEXTS, rounded, opener()).damage
        yield model, damage, rounded


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


def check(model, damage, rounded, name):
    weight = matrix(model, name)
    other = tile_weights("q4_0", rounded[name].tiles, *weight.shape)
    expected = by_hand(model, name, weight, torch.tensor(other))
    assert expected > 1e-9
    assert damage[name] == pytest.approx(expected, rel=1e-2)


def matrix(model, name):
    """A matrix of transformers' model, where those of all experts are one."""
    layer, _, rest = name.partition(".experts.")
    if not rest:
        return model.get_parameter(name).data
    number, kind, _ = rest.split(".")
    stacked = "down_proj" if kind == "down_proj" else "gate_up_proj"
    found = model.get_parameter(f"{layer}.experts.{stacked}").data[int(number)]
    return found if kind == "down_proj" else found.chunk(2)[kind == "up_proj"]


def by_hand(model, name, weight, other):
    """The damage, from what the norm behind the sublayer gives, which is added to the stream."""
    layer = model.get_submodule(".".join(name.split(".")[:3]))
    first = layer.pre_feedforward_layernorm
    last = layer.post_feedforward_layernorm
    if "self_attn" in name:
        first = layer.input_layernorm
        last = layer.post_attention_layernorm
    elif "per_layer" in name:
        first = layer.per_layer_input_gate
        last = layer.post_per_layer_input_norm
    stream, output = passed(model, first, last)
    original = weight.clone()
    weight.copy_(other)
    changed = passed(model, first, last)[1]
    weight.copy_(original)
    change = (changed - output).square().sum(-1) / (stream + output).square().sum(-1)
    return change[:, WARM_UP:].mean().item()


def passed(model, first, last):
    """What a module reads and what another one gives, in the judged texts."""
    seen = []
    hooks = [
        first.register_forward_pre_hook(lambda module, read: seen.append(read[0].clone())),
        last.register_forward_hook(lambda module, read, given: seen.append(given.clone())),
    ]
    with torch.no_grad():
        model(torch.tensor(TEXTS.judged))
    for hook in hooks:
        hook.remove()
    return seen
