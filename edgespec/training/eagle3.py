"""A feature-level draft head (EAGLE-3: Li et al., 2025), in PyTorch.

A head reads, at each position, the embedding of the next token and the target's hidden rows there,
and predicts the token after the next. Deeper predictions read the head's own output instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.models.heads.eagle3 import FLAT, FUSION, GATED
from edgespec.training.drafting import FusingHead, Step, TextBatch
from edgespec.training.layers import MlpModule, Projections, RMSNorm, rotation
from edgespec.training.options import EAGLE3
from edgespec.training.shape import HeadShape, speculator


@dataclass(frozen=True)
class Eagle3Shape(HeadShape):
    """The sizes of an EAGLE-3 head.

    Attributes:
        gated: whether a gate mixes a token's embedding and a hidden row, which otherwise are read
            side by side.
    """

    gated: bool = False

    @property
    def mixed(self) -> int:
        """The width of what the attention reads."""
        return self.hidden if self.gated else 2 * self.hidden

    @property
    def parameters(self) -> int:
        """See `HeadShape`."""
        width = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        attention = self.mixed * (width + 2 * kv) + width * self.hidden
        gate = 2 * self.hidden**2 if self.gated else 0
        inner = self.features + 3 * self.intermediate + self.draft_vocabulary
        return attention + gate + inner * self.hidden

    def call_rows(self, tokens: int) -> list[int]:
        """See `HeadShape`."""
        return [1] * tokens

    def layout(self, tokens: int, base: str) -> dict[str, Any]:
        """See `HeadShape`: the layout of `speculators`, which knows no gate."""
        layer = {"model_type": "llama", **self.sizes(), "num_hidden_layers": 1}
        taps = {"eagle_aux_hidden_state_layer_ids": list(self.taps)}
        if self.gated:
            names = {"architectures": [FLAT[0]], FUSION: GATED}
            return {**names, **layer, "draft_vocab_size": self.draft_vocabulary, **taps}
        return {
            "architectures": ["Eagle3DraftModel"],
            **speculator(EAGLE3, tokens, base),
            "transformer_layer_config": layer,
            "draft_vocab_size": self.draft_vocabulary,
            "norm_before_residual": False,
            **taps,
        }


class _Layer(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Projections(shape, shape.mixed)
        self.mlp = MlpModule(shape)
        if shape.gated:
            self.fusion_gate = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)


class Eagle3(FusingHead):
    """A head of one layer, which reads its own output at further depths.

    Args:
        shape: its sizes.
        depths: number of depths to train for.
    """

    decay = 0.8  # Li et al., 2025
    shape: Eagle3Shape

    def __init__(self, shape: Eagle3Shape, depths: int) -> None:
        super().__init__(shape, depths)
        self.layers = nn.ModuleList([_Layer(shape)])
        self.norm = RMSNorm(shape.hidden, shape.eps)

    @property
    def _layer(self) -> _Layer:
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        return layer

    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """See `HeadModule`: at every position, and again from its own outputs.

        At depth s ("training-time test"), row b stands for position b + s: its hidden row is the
        output of depth s - 1 at row b. It sees the keys of depth 0 up to row b, and those of its
        own row at later depths. It predicts token b + s + 2.
        """
        layer, (count, length) = self._layer, batch.tokens.shape
        tokens = layer.input_layernorm(batch.embedded)
        turns = rotation(self.shape, length, batch.tokens.device)
        hidden = self.fc(batch.features).float()
        seen = DraftKeys()
        for depth in range(min(self.depths, length - 1)):
            n = length - 1 - depth
            hidden = hidden[:, :n]
            mixed = self._mix(tokens[:, depth + 1 :], layer.hidden_norm(hidden))
            attended = seen.attend(*layer.self_attn(mixed, turns[:, depth : depth + n]))
            hidden = hidden + layer.self_attn.o_proj(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            at = torch.arange(depth + 1, length, device=hidden.device).expand(count, -1)
            yield Step(self.norm(hidden), at, depth)

    def _mix(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        both = torch.cat((tokens, hidden), dim=-1)
        if not self.shape.gated:
            return both
        gate = torch.sigmoid(self._layer.fusion_gate(both).float())
        return gate * hidden + (1 - gate) * tokens


class DraftKeys:
    """Keys and values of drafts that begin at every row, depth by depth."""

    def __init__(self) -> None:
        self._depths = list[tuple[Tensor, Tensor]]()

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends to the keys of depth 0 up to each row, and to the row's own later ones.

        Args:
            query: [B, heads, n, head_dim] of the next depth.
            key: [B, kv_heads, n, head_dim].
            value: the same.

        Returns:
            [B, n, heads * head_dim].
        """
        n = query.shape[2]
        self._depths = [(k[:, :, :n], v[:, :, :n]) for k, v in (*self._depths, (key, value))]
        keys, values = (torch.cat(each, 2) for each in zip(*self._depths, strict=True))
        same = torch.eye(n, dtype=torch.bool, device=query.device)
        later = [same] * (len(self._depths) - 1)
        visible = torch.cat((torch.ones_like(same).tril(), *later), -1)
        mixed = functional.scaled_dot_product_attention(
            query.to(values.dtype), keys.to(values.dtype), values, visible, enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(2)
