"""A feature-level draft head (EAGLE-3: Li et al., 2025), in PyTorch.

A head reads, at each position, the embedding of the next token and the target's hidden rows there,
and predicts the token after the next. Deeper predictions read the head's own output instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgespec.training.drafting import HeadModule, Step, TextBatch
from edgespec.training.layers import MlpModule, Projections, RMSNorm, rotated, rotation
from edgespec.training.shape import GATED, HeadShape


@dataclass(frozen=True)
class Eagle3Shape(HeadShape):
    """The sizes of an EAGLE-3 head.

    Attributes:
        fusion: one of `FUSIONS`.
    """

    fusion: str

    @property
    def mixed(self) -> int:
        """The width of what the attention reads."""
        return self.hidden if self.fusion == GATED else 2 * self.hidden

    @property
    def parameters(self) -> int:
        """See `HeadShape`."""
        width = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        attention = self.mixed * (width + 2 * kv) + width * self.hidden
        gate = 2 * self.hidden**2 if self.fusion == GATED else 0
        inner = self.features + 3 * self.intermediate + self.draft_vocabulary
        return attention + gate + inner * self.hidden

    def call_rows(self, tokens: int) -> list[int]:
        """See `HeadShape`."""
        return [1] * tokens

    def layout(self) -> dict[str, Any]:
        """See `HeadShape`: the flat layout of EAGLE-3."""
        # SGLang names the layer whose output is tapped.
        eagle = {
            "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in self.taps],
            "use_aux_hidden_state": True,
        }
        gated = {"edgespec_fusion": GATED} if self.fusion == GATED else {}
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **self.sizes(),
            "num_hidden_layers": 1,
            "draft_vocab_size": self.draft_vocabulary,
            "eagle_config": eagle,
            **gated,
        }


class _Layer(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Projections(shape, shape.mixed)
        self.mlp = MlpModule(shape)
        if shape.fusion == GATED:
            self.fusion_gate = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)


class Eagle3(HeadModule):
    """A head of one layer, which reads its own output at further depths.

    Args:
        shape: its sizes.
        depths: number of depths to train for.
    """

    decay = 0.8  # Li et al., 2025
    shape: Eagle3Shape

    def __init__(self, shape: Eagle3Shape, depths: int) -> None:
        super().__init__(shape, depths)
        self.midlayer = _Layer(shape)
        self.norm = RMSNorm(shape.hidden, shape.eps)

    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """See `HeadModule`: at every position, and again from its own outputs.

        At depth s ("training-time test"), row b stands for position b + s: its hidden row is the
        output of depth s - 1 at row b. It sees the keys of depth 0 up to row b, and those of its
        own row at later depths. It predicts token b + s + 2.
        """
        layer, (count, length) = self.midlayer, batch.tokens.shape
        tokens = layer.input_layernorm(batch.embedded)
        turns = rotation(self.shape, length, batch.tokens.device)
        hidden = self.fc(batch.features).float()
        first: tuple[Tensor, Tensor] | None = None
        own: list[tuple[Tensor, Tensor]] = []
        for depth in range(min(self.depths, length - 1)):
            n = length - 1 - depth
            hidden = hidden[:, :n]
            mixed = self._mix(tokens[:, depth + 1 :], layer.hidden_norm(hidden))
            query, key, value = self._attended(mixed, turns[:, depth : depth + n])
            if first is None:
                first = key, value
            else:
                own.append((key, value))
            seen = first[0][:, :, :n], first[1][:, :, :n]
            own = [(k[:, :, :n], v[:, :, :n]) for k, v in own]
            hidden = hidden + layer.self_attn.o_proj(_attend(query, seen, own))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            at = torch.arange(depth + 1, length, device=hidden.device).expand(count, -1)
            yield Step(self.norm(hidden), at, depth)

    def _mix(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        both = torch.cat((tokens, hidden), dim=-1)
        if self.shape.fusion != GATED:
            return both
        gate = torch.sigmoid(self.midlayer.fusion_gate(both).float())
        return gate * hidden + (1 - gate) * tokens

    def _attended(self, mixed: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, [B, heads, n, head_dim] each."""
        attention = self.midlayer.self_attn
        size = self.shape.head_dim
        query, key, value = (
            made(mixed).unflatten(-1, (-1, size)).transpose(1, 2)
            for made in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return rotated(query, turns), rotated(key, turns), value


def _attend(query: Tensor, seen: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attends to the keys of depth 0 up to each row, and to the row's own later ones.

    Args:
        query: [B, heads, n, head_dim].
        seen: keys and values of depth 0, [B, kv_heads, n, head_dim] each.
        own: keys and values of each later depth, the same.

    Returns:
        [B, n, heads * head_dim].
    """
    keys, values = seen
    batch, kv_heads, n, size = keys.shape
    query = query.reshape(batch, kv_heads, -1, n, size) / math.sqrt(size)
    scores = query @ keys[:, :, None].transpose(-1, -2)
    future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    later = [(query * key[:, :, None]).sum(-1, keepdim=True) for key, _ in own]
    shares = torch.cat((scores, *later), dim=-1).float().softmax(dim=-1).to(values.dtype)
    out = shares[..., :n] @ values[:, :, None]
    for number, (_, value) in enumerate(own):
        out = out + shares[..., n + number, None] * value[:, :, None]
    return out.permute(0, 3, 1, 2, 4).reshape(batch, n, -1)
