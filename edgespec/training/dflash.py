"""DFlash (Chen et al., 2026): a small transformer that drafts a block of tokens in one call.

Its layers read the text as keys and values made of the target's hidden rows. The block's rows are
the newest token, which the target has not read yet, and masks; they see the text and each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.drafting import FusingHead, Step, TextBatch
from edgespec.training.layers import MlpModule, Projections, RMSNorm, rotated, rotation
from edgespec.training.options import DFLASH, DSPARK
from edgespec.training.shape import HeadShape, speculator

_QUIET = 0.2  # of the target's final norm, with which a training begins
_FADING = 4.0  # positions in which the weight of a loss falls to 1 / e


@dataclass(frozen=True)
class BlockShape(HeadShape):
    """The sizes of a head that drafts blocks.

    Attributes:
        layers: number of layers.
        block: rows of a block, the newest token's included.
        mask_token: id of the token that stands for one still to come.
        markov_rank: width of what a token adds to the next one's logits; 0 where nothing does.
    """

    layers: int
    block: int
    mask_token: int
    markov_rank: int = 0

    @property
    def parameters(self) -> int:
        """The number of weights that a block reads, without those of norms."""
        width = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        layer = 2 * (width + kv) + 3 * self.intermediate
        inner = self.layers * layer + self.draft_vocabulary
        return inner * self.hidden + self.draft_vocabulary * self.markov_rank

    def call_rows(self, tokens: int) -> list[int]:
        """See `HeadShape`."""
        return [self.block]

    def layout(self, tokens: int, base: str) -> dict[str, Any]:
        """See `HeadShape`: the layout of `speculators`."""
        kind = DSPARK if self.markov_rank else DFLASH
        markov = {
            "markov_rank": self.markov_rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }
        return {
            "architectures": ["DSparkSpeculator" if self.markov_rank else "DFlashSpeculator"],
            **speculator(kind, tokens, base),
            "transformer_layer_config": {
                "model_type": "qwen3",
                **self.sizes(),
                "num_hidden_layers": self.layers,
                "attention_bias": False,
            },
            "draft_vocab_size": self.draft_vocabulary,
            "block_size": self.block,
            "aux_hidden_state_layer_ids": list(self.taps),
            "mask_token_id": self.mask_token,
            "sample_from_anchor": bool(self.markov_rank),
            **(markov if self.markov_rank else {}),
        }


class _Attention(Projections):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape, shape.hidden)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.eps)


@dataclass(frozen=True)
class _Places:
    """Where rows are, and what they see.

    Attributes:
        text: [2, L, head_dim] rotation of the text's positions.
        block: [2, B, 1, A * block, head_dim] rotation of those of the blocks.
        seen: [B, 1, A * block, L + A * block] which rows of text and blocks a block's row sees.
    """

    text: Tensor
    block: Tensor
    seen: Tensor


class _Layer(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = _Attention(shape)
        self.mlp = MlpModule(shape)

    def forward(self, rows: Tensor, context: Tensor, places: _Places) -> Tensor:
        attention = self.self_attn
        inner = self.input_layernorm(rows)
        query = rotated(attention.q_norm(attention.heads(attention.q_proj(inner))), places.block)
        keys = []
        values = []
        for source, turn in ((context, places.text), (inner, places.block)):
            keys.append(rotated(attention.k_norm(attention.heads(attention.k_proj(source))), turn))
            values.append(attention.heads(attention.v_proj(source)))
        group = query.shape[1] // keys[0].shape[1]
        key, value = (torch.cat(each, 2).repeat_interleave(group, 1) for each in (keys, values))
        mixed = functional.scaled_dot_product_attention(
            query.to(value.dtype), key.to(value.dtype), value, places.seen
        )
        rows = rows + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = rows + self.mlp(self.post_attention_layernorm(rows))
        return out


class DFlash(FusingHead):
    """A head that drafts blocks; the newest token's row predicts nothing.

    Args:
        shape: its sizes.
        mask: [H] the target's embedding of the mask token.
    """

    decay = math.exp(-1 / _FADING)
    first: ClassVar[int] = 1
    shape: BlockShape
    _mask: Tensor

    def __init__(self, shape: BlockShape, mask: Tensor) -> None:
        super().__init__(shape, shape.block - self.first)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.register_buffer("_mask", mask, persistent=False)

    def start(self, norm: Tensor, seed: int) -> None:
        """See `HeadModule`; but logits begin small, since the rows of masks point nowhere yet."""
        super().start(norm, seed)
        with torch.no_grad():
            self.norm.weight.mul_(_QUIET)

    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """See `HeadModule`: as many blocks as make about one row for each token of the texts."""
        anchors = self._anchors(batch.tokens, random)
        rows = self.block_rows(batch, anchors)
        for depth in range(self.depths):
            at = anchors + depth
            yield self._step(Step(rows[:, :, self.first + depth], at, depth), batch.tokens)

    def _step(self, step: Step, tokens: Tensor) -> Step:
        return step

    def _anchors(self, tokens: Tensor, random: torch.Generator | None) -> Tensor:
        """Returns positions of newest tokens, [B, A], none of them the first of a text."""
        batch, length = tokens.shape
        starts = length - self.depths - 1
        count = -(-length // self.depths)
        if random is None:
            chosen = torch.arange(0, starts, self.depths).expand(batch, -1)
        else:
            chosen = torch.rand(batch, starts, generator=random).argsort(-1)[:, :count]
        return chosen.to(tokens.device) + 1

    def block_rows(self, batch: TextBatch, anchors: Tensor) -> Tensor:
        """Returns the rows of blocks, normalized, [B, A, block, H].

        Args:
            batch: the texts.
            anchors: [B, A] positions of the newest tokens; features before them are read.
        """
        (count, length), block = batch.tokens.shape, self.shape.block
        places = (anchors[..., None] + torch.arange(block, device=anchors.device)).flatten(1)
        numbers = torch.arange(places.shape[1], device=anchors.device) // block
        text = torch.arange(length, device=anchors.device) < anchors[:, numbers, None]
        own = (numbers[:, None] == numbers).expand(count, -1, -1)
        turns = rotation(self.shape, length + block, anchors.device)
        seen = torch.cat((text, own), -1)[:, None]
        where = _Places(turns[:, :length], turns[:, places][:, :, None], seen)
        rows = self._mask.expand(*anchors.shape, block, -1).clone()
        rows[:, :, 0] = batch.embedded.gather(1, anchors[..., None].expand(-1, -1, rows.shape[-1]))
        rows = rows.flatten(1, 2)
        context = self.hidden_norm(self.fc(batch.features))
        for layer in self.layers:
            rows = layer(rows, context, where)
        normed: Tensor = self.norm(rows)
        return normed.view(*anchors.shape, block, -1)
