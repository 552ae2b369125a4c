"""P-EAGLE (parallel EAGLE, 2026): an EAGLE-3 head that drafts several tokens in one call.

Behind the newest token's row lie rows of a mask token, which read numbers that are learned in place
of the target's hidden rows. Each of them predicts one more token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.drafting import Step, TextBatch
from edgespec.training.eagle3 import Eagle3, Eagle3Shape
from edgespec.training.layers import MlpModule, Projections, RMSNorm, rotation
from edgespec.training.options import PEAGLE
from edgespec.training.shape import speculator


@dataclass(frozen=True, kw_only=True)
class PEagleShape(Eagle3Shape):
    """The sizes of a P-EAGLE head.

    Attributes:
        layers: number of layers.
        mask_token: id of the token that stands for one still to come.
    """

    layers: int
    mask_token: int

    @property
    def parameters(self) -> int:
        """See `HeadShape`."""
        kv = self.kv_heads * self.head_dim
        further = 2 * (self.heads * self.head_dim + kv) + 3 * self.intermediate
        return super().parameters + (self.layers - 1) * further * self.hidden

    def call_rows(self, tokens: int) -> list[int]:
        """See `HeadShape`."""
        return [tokens]

    def layout(self, tokens: int, base: str) -> dict[str, Any]:
        """See `HeadShape`."""
        found = super().layout(tokens, base)
        found["transformer_layer_config"]["num_hidden_layers"] = self.layers
        return {
            **found,
            **speculator(PEAGLE, tokens, base),
            "architectures": ["PEagleDraftModel"],
            "mask_token_id": self.mask_token,
        }


class _Further(nn.Module):
    """A layer behind the first one."""

    def __init__(self, shape: PEagleShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Projections(shape, shape.hidden)
        self.mlp = MlpModule(shape)


class PEagle(Eagle3):
    """A head of several layers, which drafts by masks.

    Args:
        shape: its sizes.
        depths: number of tokens that it drafts.
        mask: [H] the target's embedding of the mask token.
    """

    shape: PEagleShape
    _mask: Tensor

    def __init__(self, shape: PEagleShape, depths: int, mask: Tensor) -> None:
        super().__init__(shape, depths)
        self.layers.extend(_Further(shape) for _ in range(shape.layers - 1))
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, shape.features))
        self.register_buffer("_mask", mask, persistent=False)

    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """See `HeadModule`: as many drafts as make about one mask for each token of the texts.

        Row r of a text predicts token r + 2, and so does each mask by its position. A mask sees the
        text up to the row behind which it lies, and the masks between.
        """
        count, length = batch.tokens.shape
        order, drafts = self._order(batch.tokens, random)
        begun = order[:, :drafts]
        places = torch.arange(length - 1, device=order.device).expand(count, -1)
        deeper = torch.arange(1, self.depths, device=order.device)
        masks = (begun[..., None] + deeper).flatten(1)
        behind = begun.repeat_interleave(self.depths - 1, 1)
        rows = self._rows(batch, masks.shape[1])
        where = torch.cat((places, masks), 1), torch.cat((places, behind), 1)
        normed = self.norm(self._layered(rows, *where))
        text = normed[:, : length - 1].gather(1, order[..., None].expand(-1, -1, rows[0].shape[-1]))
        yield Step(text, order + 1, 0)
        drafted = normed[:, length - 1 :].unflatten(1, (drafts, self.depths - 1))
        for depth in range(1, self.depths):
            yield Step(drafted[:, :, depth - 1], begun + depth + 1, depth)

    def _order(self, tokens: Tensor, random: torch.Generator | None) -> tuple[Tensor, int]:
        """Returns the rows of texts, [B, L - 1], and behind how many of the first masks lie."""
        count, length = tokens.shape
        rows = torch.arange(length - 1)
        last = length - self.depths - 1
        if random is None:
            ranks = (rows % self.depths > 0).float().expand(count, -1)
        else:
            ranks = torch.rand(count, length - 1, generator=random)
        order = (ranks + 2 * (rows >= last)).argsort(stable=True)
        return order.to(tokens.device), -(-last // self.depths)

    def _rows(self, batch: TextBatch, masks: int) -> tuple[Tensor, Tensor]:
        """Returns embeddings and hidden rows of texts with so many masks behind, [B, R, H] each."""
        count = len(batch.tokens)
        hidden = self.fc(batch.features[:, :-1]), self.fc(self.mask_hidden).expand(count, masks, -1)
        tokens = batch.embedded[:, 1:], self._mask.expand(count, masks, -1)
        return torch.cat(tokens, 1), torch.cat(hidden, 1).float()

    def _layered(self, rows: tuple[Tensor, Tensor], places: Tensor, behind: Tensor) -> Tensor:
        """Returns the rows behind the last layer, [B, R, H].

        Args:
            rows: see `_rows`.
            places: [B, R] their positions.
            behind: [B, R] the rows of the text behind which they lie; of these rows themselves.
        """
        tokens, hidden = rows
        turns = rotation(self.shape, int(places.max()) + 1, places.device)[:, places][:, :, None]
        text = places == behind
        one = behind[:, :, None]
        other = behind[:, None, :]
        before = places[:, :, None] >= places[:, None, :]
        seen = (text[:, None, :] & (one >= other)) | ((one == other) & before)
        first = self._layer
        x = self._mix(first.input_layernorm(tokens), first.hidden_norm(hidden))
        layers: Iterable[Any] = self.layers
        for layer in layers:
            if layer is not first:
                x = layer.input_layernorm(hidden)
            query, key, value = layer.self_attn(x, turns)
            mixed = functional.scaled_dot_product_attention(
                query.to(value.dtype), key.to(value.dtype), value, seen[:, None], enable_gqa=True
            )
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden
