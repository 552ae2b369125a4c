"""Recurrent layers in PyTorch, over rows of texts side by side; see `runtime/kernels`.

A state is computed for some rows at a time, all of whose results are found at once, as in
`export/portable/recurrent.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from edgespec.training.text_pass import Given, Node, TextPass

_ROWS = 64  # whose results are found at once
_ROWS_BY_KEY = 16  # likewise where each number of a key has a decay of its own
_UNIT_EPS = 1e-6  # of the normalization of queries and keys


def short_conv(node: Node, rows: TextPass, given: Given) -> Tensor:
    """`ShortConv`: a gated convolution of a row and those before it; see its source."""
    x: Tensor = given[0]
    before, after, values = x.view(*rows.positions.shape, -1).chunk(3, -1)
    mixed, recent = _convolved(node, rows, before * values, given[1])
    rows.keep(node.pool, (recent, x.new_zeros(len(recent))))
    return (after * mixed).flatten(0, 1)


def gated_delta(node: Node, rows: TextPass, given: Given) -> Tensor:
    """`GatedDelta`: linear attention by the gated delta rule; see its source."""
    x: Tensor = given[0].view(*rows.positions.shape, -1)
    weight, factor, bias, norm = given[1:5]
    sizes = _StateSizes.of(node)
    shares = sizes.channels, sizes.values, sizes.value_heads, len(bias)
    own, gate, rates, steps = torch.split_with_sizes(x, shares, -1)
    mixed, recent = _convolved(node, rows, own, weight)
    parts = sizes.keys, sizes.keys, sizes.values
    queries, keys, values = torch.split_with_sizes(functional.silu(mixed), parts, -1)
    result, state = _read(
        rows.begun(node.pool, recent.shape[1:], sizes.state)[1],
        _of_length(sizes.by_key(queries), sizes.key_size**-0.5),
        _of_length(sizes.by_key(keys), 1.0),
        sizes.by_value(values),
        sizes.by_decay(rows.real(functional.softplus(steps + bias)) * factor),
        rows.real(torch.sigmoid(rates)),
    )
    rows.keep(node.pool, (recent, state))
    result = functional.rms_norm(result, norm.shape, norm, node.attributes["eps"])
    sigmoid = node.attributes.get("activation") == "sigmoid"
    gate = torch.sigmoid(gate) if sigmoid else functional.silu(gate)
    return (result.flatten(2) * gate).flatten(0, 1)


def state_space(node: Node, rows: TextPass, given: Given) -> Tensor:
    """`StateSpace`: a state space model, Mamba-2's; see its source."""
    x: Tensor = given[0].view(*rows.positions.shape, -1)
    weight, shift, factor, bias, skip, norm = given[1:7]
    sizes = _StateSizes.of(node)
    parts = sizes.values, sizes.channels, sizes.value_heads
    gate, own, steps = torch.split_with_sizes(x, parts, -1)
    mixed, recent = _convolved(node, rows, own, weight)
    parts = sizes.values, sizes.keys, sizes.keys
    values, keys, queries = torch.split_with_sizes(functional.silu(mixed + shift), parts, -1)
    steps = rows.real(functional.softplus(steps + bias))
    given_values = sizes.by_value(values)
    result, state = _read(
        rows.begun(node.pool, recent.shape[1:], sizes.state)[1],
        sizes.by_key(queries),
        sizes.by_key(keys),
        given_values * steps.transpose(1, 2)[..., None],
        sizes.by_decay(steps * factor),
    )
    rows.keep(node.pool, (recent, state))
    result = result + skip[:, None] * given_values.transpose(1, 2)
    gated: Tensor = result.flatten(2) * functional.silu(gate)
    if norm is None:
        return gated.flatten(0, 1)
    # A norm is of a group's values side by side.
    groups = gated.view(*gated.shape[:2], sizes.key_heads, -1)
    normed = functional.rms_norm(groups, groups.shape[-1:], eps=node.attributes["eps"])
    weighted: Tensor = normed.flatten(2) * norm
    return weighted.flatten(0, 1)


@dataclass(frozen=True)
class _StateSizes:
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, node: Node) -> Self:
        own = node.attributes
        return cls(own["key_heads"], own["value_heads"], own["key_size"], own["value_size"])

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        return 2 * self.keys + self.values

    @property
    def state(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_size, self.value_size

    def by_key(self, x: Tensor) -> Tensor:
        """Returns keys or queries [B, L, keys] of the heads of values, [B, heads, L, key size]."""
        x = x.view(*x.shape[:2], self.key_heads, self.key_size).transpose(1, 2)
        return x.repeat_interleave(self.value_heads // self.key_heads, 1)

    def by_value(self, x: Tensor) -> Tensor:
        """Returns values [B, L, values] by head, [B, heads, L, value size]."""
        return x.view(*x.shape[:2], self.value_heads, self.value_size).transpose(1, 2)

    def by_decay(self, x: Tensor) -> Tensor:
        """Returns decays [B, L, decays] by head, [B, heads, L, 1 or key size]."""
        return x.view(*x.shape[:2], self.value_heads, -1).transpose(1, 2)


def _of_length(x: Tensor, length: float) -> Tensor:
    size = x.shape[-1]
    normed: Tensor = functional.rms_norm(x, (size,), eps=_UNIT_EPS / size)
    return normed * (length / math.sqrt(size))


def _convolved(node: Node, rows: TextPass, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the convolution of rows [B, L, channels], and the last rows that the next one reads.

    Args:
        node: the operator.
        rows: the pass.
        x: the rows.
        weight: [size, channels], that of the row itself last.
    """
    count, length, channels = x.shape
    before = len(weight) - 1
    known = rows.begun(node.pool, (before, channels), ())[0]
    every = torch.cat((known, x), 1)
    mixed = weight[-1] * x
    for n in range(before):
        mixed = mixed + weight[n] * every[:, n : n + length]
    if rows.lengths is None:
        return mixed, every[:, length:]
    last = rows.lengths[:, None] + torch.arange(before, device=x.device)
    return mixed, every.gather(1, last[..., None].expand(count, before, channels))


def _read(
    state: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    decays: Tensor,
    rates: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns what rows read of states, [B, L, heads, value size], and the states behind them.

    A row multiplies its state by its decay and adds its key times its value. With rates, what it
    adds is its key times rate (value - key state), which depends on what the rows before it add: a
    triangular system of equations (Yang et al., 2024).

    Args:
        state: [B, heads, key size, value size] before the rows.
        queries: [B, heads, L, key size].
        keys: the same.
        values: [B, heads, L, value size].
        decays: [B, heads, L, 1 or key size], their logarithms.
        rates: [B, L, heads].
    """
    results = []
    step = _ROWS if decays.shape[-1] == 1 else _ROWS_BY_KEY
    for start in range(0, decays.shape[2], step):
        part = slice(start, start + step)
        query, key, value, decay = (each[:, :, part] for each in (queries, keys, values, decays))
        total = decay.cumsum(2)
        later = total.new_ones(total.shape[2], total.shape[2], dtype=torch.bool).triu(1)
        # What is left of each row's part at each row, and of the state.
        fade = total[..., :, None, :] - total[..., None, :, :]
        fade = fade.masked_fill(later[..., None], -torch.inf).exp()
        since = total.exp()
        if rates is not None:
            rate = rates[:, part].transpose(1, 2)[..., None]
            missing = value - (key * since) @ state
            value = torch.linalg.solve_triangular(
                rate * _alike(key, key, fade), rate * missing, upper=False, unitriangular=True
            )
        results.append((query * since) @ state + _alike(query, key, fade) @ value)
        left = (key * fade[..., -1, :, :]).transpose(-1, -2)
        state = state * since[..., -1, :, None] + left @ value
    return torch.cat(results, 2).transpose(1, 2), state


def _alike(x: Tensor, keys: Tensor, fade: Tensor) -> Tensor:
    """Returns how alike rows are to what is left of the keys that they see, [B, heads, L, L].

    Args:
        x: [B, heads, L, key size].
        keys: the same.
        fade: [B, heads, L, L, 1 or key size].
    """
    if fade.shape[-1] == 1:
        return x @ keys.transpose(-1, -2) * fade[..., 0]
    return (x[..., None, :] * fade * keys[..., None, :, :]).sum(-1)
