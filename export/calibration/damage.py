"""How much rounding damages each matrix of a model, and which get more bits for that."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.models import Attention, Checkpoint, Linear, MlpAndMoe, Moe
from edgespec.models.layers.sublayers import FeedForward, inner_parts

_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class CalibrationResult:
    """The results of calibrating a model.

    Attributes:
        damage: damage of each matrix of the layers, by name: how much its sublayer's output changes
            if this matrix alone is rounded, as the mean over tokens of the squared change divided
            by the square of the residual stream. It is 0 for matrices that are not rounded.
        sizes: number of weights of each of these matrices.
    """

    damage: Mapping[str, float]
    sizes: Mapping[str, int]


def to_widen(
    calibration: CalibrationResult, more: Mapping[str, float], room: float
) -> frozenset[str]:
    """Returns the matrices that need more bits most: those with the most damage per added bit.

    Args:
        calibration: the model's calibration.
        more: bits that each weight of a matrix would have more, by name.
        room: maximum bits that are added, as the mean over all weights.
    """
    cost = defaultdict[str, float](float)
    gain = defaultdict[str, float](float)
    members = defaultdict[str, list[str]](list)
    for name in calibration.damage.keys() & more.keys():
        group = _EXPERT.sub(".experts.", name)  # experts of a layer have one format
        members[group].append(name)
        cost[group] += calibration.sizes[name] * more[name]
        gain[group] += calibration.damage[name]
    left = room * sum(calibration.sizes.values())
    chosen = set[str]()
    for group in sorted(cost, key=lambda each: (-gain[each] / cost[each], each)):
        if gain[group] and cost[group] <= left:
            chosen.update(members[group])
            left -= cost[group]
    return frozenset(chosen)


def by_rule(checkpoint: Checkpoint) -> CalibrationResult:
    """Returns what stands for the damage of matrices where no text is read.

    Most by weight are those of values: with grouped heads, they are a hundredth of the weights and
    cause a third of the damage. Then come the last matrices of MLPs, of the first and the last
    eighth of the layers before every third of the others; they are those that have more bits in
    llama.cpp's Q4_K_M.
    """
    layers = len(checkpoint.decoder.layers)
    damage = dict[str, float]()
    for number, layer in enumerate(checkpoint.decoder.layers):
        inner = number - layers // 8
        outer = inner < 0 or number >= 7 * layers // 8
        for each in (part for sublayer in layer for part in inner_parts(sublayer)):
            if isinstance(each, Attention) and each.v is not None:
                damage[each.v.weight] = 3.0
            elif isinstance(each, FeedForward):
                worth = 2.0 if outer else 1.0 if inner % 3 == 2 else 0.0
                damage |= {linear.weight: worth for linear in _downs(each)}
    linears = [linear for each in checkpoint.decoder.sublayers for linear in each.linears]
    sizes = {each.weight: each.in_features * each.out_features for each in linears}
    return CalibrationResult({name: sizes[name] * worth for name, worth in damage.items()}, sizes)


def _downs(layer: FeedForward) -> list[Linear]:
    if isinstance(layer, MlpAndMoe):
        return [*_downs(layer.mlp), *_downs(layer.moe)]
    return [each.down for each in (layer.experts if isinstance(layer, Moe) else [layer])]
