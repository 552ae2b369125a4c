"""Multi-token prediction (MTP: DeepSeek-AI, 2024): the head that a model came with, in PyTorch.

Its layer is one of the model's own. It reads the rows that the model's last norm gives, and its own
normalized output at further depths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.drafting import HeadModule, Step, TextBatch
from edgespec.training.eagle3 import DraftKeys
from edgespec.training.layers import MlpModule, Projections, RMSNorm, rotated, rotation
from edgespec.training.options import MTP
from edgespec.training.shape import HeadShape, speculator


@dataclass(frozen=True, kw_only=True)
class MtpShape(HeadShape):
    """The sizes of an MTP head.

    Attributes:
        offset: added to the weights of norms.
        gated: whether a gate follows each head's query.
        turned: dimensions of a head that are rotated, the first ones.
        model: the config of the model.
    """

    offset: float
    gated: bool
    turned: int
    model: Mapping[str, Any]

    @property
    def rotated(self) -> int:
        """See `HeadShape`."""
        return self.turned

    @property
    def parameters(self) -> int:
        """See `HeadShape`."""
        width = self.heads * self.head_dim * (2 + self.gated)
        attention = width + 2 * self.kv_heads * self.head_dim
        inner = attention + 2 * self.hidden + 3 * self.intermediate + self.vocabulary
        return inner * self.hidden

    def call_rows(self, tokens: int) -> list[int]:
        """See `HeadShape`."""
        return [1] * tokens

    def layout(self, tokens: int, base: str) -> dict[str, Any]:
        """See `HeadShape`: the layout of `speculators`."""
        return {
            "architectures": ["MTPDraftModel"],
            **speculator(MTP, tokens, base),
            "num_nextn_predict_layers": 1,
            "transformer_layer_config": dict(self.model),
        }


class _Attention(Projections):
    def __init__(self, shape: MtpShape) -> None:
        super().__init__(shape, shape.hidden)
        inner = shape.heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, inner * (1 + shape.gated), bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps, shape.offset)
        self.k_norm = RMSNorm(shape.head_dim, shape.eps, shape.offset)
        self._heads = shape.heads

    def gated(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns queries, keys and values, see `Projections`, and gates of results.

        Gates are [B, n, heads * head_dim]; None: there are none.
        """
        asked = self.q_proj(x).view(*x.shape[:2], self._heads, -1)
        query = self.q_norm(asked[..., : self._size].transpose(1, 2))
        key = self.k_norm(self.heads(self.k_proj(x)))
        value = self.heads(self.v_proj(x))
        gate = asked[..., self._size :]
        gates = torch.sigmoid(gate.float()).flatten(2) if gate.shape[-1] else None
        return rotated(query, turns), rotated(key, turns), value, gates


class _Layer(nn.Module):
    def __init__(self, shape: MtpShape) -> None:
        super().__init__()
        self.token_layernorm = RMSNorm(shape.hidden, shape.eps, shape.offset)
        self.hidden_layernorm = RMSNorm(shape.hidden, shape.eps, shape.offset)
        self.input_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps, shape.offset)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps, shape.offset)
        self.final_layernorm = RMSNorm(shape.hidden, shape.eps, shape.offset)
        self.self_attn = _Attention(shape)
        self.mlp = MlpModule(shape)


class Mtp(HeadModule):
    """A head of one layer, which proposes all tokens by the model's own output projection.

    Args:
        shape: its sizes.
        depths: number of depths to train for.
        norm: [H] weight of the target's final norm.
    """

    decay = 0.6  # Cai et al., FastMTP, 2025
    projects = False
    shape: MtpShape
    _norm: Tensor

    def __init__(self, shape: MtpShape, depths: int, norm: Tensor) -> None:
        super().__init__(shape, depths)
        self.mtp_layers = nn.ModuleList([_Layer(shape)])
        self.register_buffer("_norm", norm, persistent=False)

    def start(self, norm: Tensor, seed: int) -> None:
        """See `HeadModule`.

        Raises:
            ValueError: always, since one that was trained with its model is gone on with.
        """
        raise ValueError("an MTP head does not begin anew")

    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """See `Eagle3.unroll`."""
        layer = self.mtp_layers[0]
        assert isinstance(layer, _Layer)
        count, length = batch.tokens.shape
        tokens = layer.token_layernorm(batch.embedded)
        turns = rotation(self.shape, length, batch.tokens.device)
        hidden = functional.rms_norm(batch.features, self._norm.shape, self._norm, self.shape.eps)
        seen = DraftKeys()
        for depth in range(min(self.depths, length - 1)):
            n = length - 1 - depth
            both = tokens[:, depth + 1 :], layer.hidden_layernorm(hidden[:, :n])
            rows = layer.input_proj(torch.cat(both, -1)).float()
            x = layer.input_layernorm(rows)
            query, key, value, gates = layer.self_attn.gated(x, turns[:, depth : depth + n])
            mixed = seen.attend(query, key, value)
            mixed = mixed if gates is None else mixed * gates
            rows = rows + layer.self_attn.o_proj(mixed)
            rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
            hidden = layer.final_layernorm(rows)
            at = torch.arange(depth + 1, length, device=hidden.device).expand(count, -1)
            yield Step(hidden, at, depth)
