"""What families have in common that rotate a part of each head, or have fused projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.llama import Llama
from edgespec.models.formats.parts import Parts, TensorRows, stacked
from edgespec.models.layers.rope import partial_rope_from_config, rotated_dimensions, rotation_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.elements import Linear, Norm
    from edgespec.models.layers.rope import Rope


class PartialRotation(Llama):
    """Llama with heads of which a part is rotated, and whose dimensions are ordered for that.

    Attributes:
        interleaved: Whether neighbouring dimensions are a pair, see `rotation_order`.
    """

    interleaved: ClassVar[bool] = False

    def ropes(self) -> dict[str, Rope]:
        """Returns the rotation table; frequencies of dimensions that are not rotated are 0."""
        return {DEFAULT_ROPE: partial_rope_from_config(self.config.fields, self.config.head_dim)}

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with the dimensions of queries and keys in the order of `Rope`."""
        head_dim = self.config.head_dim
        rotated = rotated_dimensions(self.config.fields, head_dim)
        order = rotation_order(head_dim, rotated, self.interleaved)
        if np.array_equal(order, np.arange(head_dim)):
            return tensors
        gate = np.arange(head_dim, 2 * head_dim)
        parts = dict[str, TensorRows]()
        for index in sorted(set(range(self.config.num_layers)) - self.config.recurrent):
            layer = self.attention(index)
            parts |= ordered(layer.q, np.append(order, gate) if layer.gated else order)
            for part in (layer.k, layer.q_norm, layer.k_norm):
                parts |= ordered(part, order)
        return Parts(tensors, parts)


def ordered(part: Linear | Norm | None, order: NDArray[np.int64]) -> dict[str, TensorRows]:
    """Returns the tensors of a projection or norm with the rows of each head in this order."""
    shapes = {} if part is None else part.tensors()
    return {
        name: TensorRows(name, np.arange(rows).reshape(-1, len(order))[:, order].ravel(), rows)
        for name, (rows, *_) in shapes.items()
    }


def split(stored: str, *layers: Linear) -> dict[str, TensorRows]:
    """Returns the weights of linear layers as parts of one stored tensor, in this order."""
    return stacked(stored, {layer.weight: layer.out_features for layer in layers})
