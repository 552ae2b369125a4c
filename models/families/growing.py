"""Queries that grow with the position, so that attention stays sharp in long texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.layers.rope import Rope
from edgespec.models.layers.sublayers import Attention

if TYPE_CHECKING:
    from edgespec.bundle.manifest import Growth
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Sublayer

_TABLE = "growth"


def with_growth(decoder: Decoder, growth: Growth | None, unrotated: bool = False) -> Decoder:
    """Returns the description of a model whose queries grow, unless no text is so long.

    Args:
        decoder: The description without that.
        growth: What they grow by; None: they do not.
        unrotated: Whether they grow in layers without RoPE alone.
    """
    if growth is None or growth.factor(decoder.context_length - 1) == 1:
        return decoder

    def grown(sublayer: Sublayer) -> Sublayer:
        if isinstance(sublayer, Attention) and not (unrotated and sublayer.rope):
            return replace(sublayer, growth=_TABLE)
        return sublayer

    layers = tuple(tuple(map(grown, layer)) for layer in decoder.layers)
    table = Rope(np.zeros(1, np.float32), growth=growth)
    return replace(decoder, layers=layers, ropes={**decoder.ropes, _TABLE: table})
