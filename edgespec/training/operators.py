"""The operators of native graphs in PyTorch, over rows of texts side by side.

What `runtime/kernels` computes, without its rounding of activations to 8 bits. Rows [S, ...] are
those of B texts of L rows each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgespec.training.recurrent import gated_delta, short_conv, state_space
from edgespec.training.text_pass import Given, Node, Operator, Pair, TextPass


def embedding(node: Node, _: TextPass, given: Given) -> Tensor:
    """`BlockEmbedding`: rows of a table by token."""
    rows: Tensor = functional.embedding(given[0], node.matrices[0])
    return rows[:, : node.attributes["width"]].float()


def linear(node: Node, _: TextPass, given: Given) -> Tensor:
    """`BlockLinear`: products with matrices side by side; see its source."""
    x: Tensor = given[0]
    bias: Tensor | None = given[1]
    residual: Tensor | None = given[2]
    own = node.attributes
    y = torch.cat([node.product(x, each) for each in node.matrices], -1)
    y = y if bias is None else y + bias
    factor: float = own.get("factor", 1.0)
    cap: float = own.get("soft_cap", 0.0)
    y = y * factor
    if cap:
        y = cap * torch.tanh(y / cap)
    return y if residual is None else y + residual


def experts(node: Node, _: TextPass, given: Given) -> Tensor:
    """`ExpertLinear`: products of rows with the matrices of their experts; see its source."""
    x: Tensor = given[0]
    chosen: Tensor = given[1].to(x.device)
    bias: Tensor | None = given[2]
    shares: Tensor | None = given[3]
    count = node.attributes["experts"]
    flat = chosen.flatten()
    if len(x) != len(flat):
        x = x.repeat_interleave(chosen.shape[1], 0)
    parts = [each.view(count, -1, each.shape[-1]) for each in node.matrices]
    y = x.new_empty(len(flat), sum(each.shape[1] for each in parts))
    for expert in sorted(set(flat.tolist())):
        own = (flat == expert).nonzero()[:, 0]
        y[own] = torch.cat([node.product(x[own], each[expert]) for each in parts], -1)
    y = y if bias is None else y + bias[flat]
    if shares is None:
        return y
    return (y.view(*chosen.shape, -1) * shares[..., None]).sum(1)


def gated_unit(node: Node, _: TextPass, given: Given) -> Tensor:
    """`GatedUnit`: activation(gate) * up."""
    both: Tensor = given[0]
    gate, up = both.chunk(2, -1)
    own = node.attributes
    if own["activation"] == "silu":
        return functional.silu(gate) * up
    if own["activation"] == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh") * up
    gate = gate.clamp(max=own["limit"])
    up = up.clamp(-own["limit"], own["limit"])
    return gate * torch.sigmoid(own["alpha"] * gate) * (up + 1)


def norm(node: Node, _: TextPass, given: Given) -> Tensor:
    """`Norm`: RMSNorm, or with a bias LayerNorm."""
    x: Tensor = given[0]
    weight, *bias = given[1:]
    eps = node.attributes["epsilon"]
    if bias:
        return functional.layer_norm(x, x.shape[-1:], weight, bias[0], eps)
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def moments(node: Node, _: TextPass, given: Given) -> Tensor:
    """`Moments`: mean, and root of variance and epsilon."""
    x: Tensor = given[0]
    variance = x.var(-1, correction=0, keepdim=True) + node.attributes["epsilon"]
    return torch.cat((x.mean(-1, keepdim=True), variance.sqrt()), -1)


def attention(node: Node, rows: TextPass, given: Given) -> Tensor:
    """`TreeAttention`: each row sees those of its text up to itself; see its source."""
    own = node.attributes
    q, new, gate = _turned(node, rows, given)
    known = rows.known(node.pool, new)
    mixed = _mixed(own, rows, q, known, given[12] if len(given) > 12 else None)
    mixed = mixed.transpose(1, 2).flatten(2).flatten(0, 1)
    return mixed if gate is None else mixed * torch.sigmoid(gate)


def _turned(node: Node, rows: TextPass, given: Given) -> tuple[Tensor, Pair | None, Tensor | None]:
    """Returns queries, new keys and values [B, heads, L, head_dim], and gates [S, all heads]."""
    own = node.attributes
    heads = own["heads"]
    kv = own["kv_heads"]
    size = own["head_dim"]
    q_norm, k_norm = (given[n] if len(given) > n else None for n in (10, 11))
    x = given[0].view(*rows.positions.shape, -1, size)
    gate = None
    asked = x[..., : heads * (1 + own.get("gated", 0)), :]
    rest = x[..., asked.shape[-2] :, :]
    if own.get("gated"):
        asked, gate = asked.reshape(*x.shape[:2], heads, 2 * size).chunk(2, -1)
        gate = gate.flatten(2).flatten(0, 1)

    def turned(part: Tensor, name: str, weight: Tensor | None) -> Tensor:
        late = own.get("norm_after_rope")
        part = part if late else _head_norm(part, own.get(f"{name}_eps"), weight)
        part = _rotated(part, given[1], given[2])
        return _head_norm(part, own.get(f"{name}_eps"), weight) if late else part

    q = turned(asked, "q", q_norm).transpose(1, 2)
    source = own["source"]
    if source == "other":
        return q, None, gate
    k = rest[..., :kv, :]
    v = k if source == "keys" else rest[..., kv:, :]
    v = _head_norm(v, own.get("v_eps"), None)
    return q, (turned(k, "k", k_norm).transpose(1, 2), v.transpose(1, 2)), gate


def _head_norm(x: Tensor, eps: float | None, weight: Tensor | None) -> Tensor:
    """Normalizes heads of x [B, L, heads, head_dim], each on its own or all as one vector."""
    if not eps:
        return x
    if weight is not None and len(weight) != x.shape[-1]:
        return functional.rms_norm(x.flatten(2), weight.shape, weight, eps).view(x.shape)
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def _rotated(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """Rotates the first elements of heads of x [B, L, heads, head_dim]."""
    if cos is None or sin is None:
        return x
    half = cos.shape[-1]
    cos, sin = (each.view(*x.shape[:2], 1, half) for each in (cos, sin))
    first, second, rest = torch.split_with_sizes(x, (half, half, x.shape[-1] - 2 * half), -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, rest), -1)


def _mixed(
    own: Mapping[str, Any], rows: TextPass, q: Tensor, known: Pair, sinks: Tensor | None
) -> Tensor:
    """Returns values by their shares, [B, heads, L, head_dim] float32."""
    keys, values = known
    window = own.get("window", 0)
    chunked = bool(own.get("chunked", 0))
    cap: float = own.get("soft_cap", 0.0)
    scale: float = own["scale"]
    q = q.to(keys.dtype)
    if sinks is None and not cap:
        whole = rows.cache is None and not window
        return functional.scaled_dot_product_attention(
            q,
            keys,
            values,
            None if whole else rows.mask(window, chunked),
            is_causal=whole,
            scale=scale,
            enable_gqa=True,
        ).float()
    group = q.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1) for each in known)
    scores = scale * (q @ keys.transpose(-1, -2)).float()
    scores = cap * torch.tanh(scores / cap) if cap else scores
    scores = scores.masked_fill(~rows.mask(window, chunked), -torch.inf)
    if sinks is not None:
        sinks = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sinks), -1)
    shares = scores.softmax(-1)[..., : keys.shape[2]]
    return (shares.to(values.dtype) @ values).float()


def _split(node: Node, _: TextPass, given: Given) -> tuple[Tensor, ...]:
    x: Tensor = given[0]
    axis = node.attributes["axis"]
    if len(given) > 1:
        return torch.split_with_sizes(x, given[1].tolist(), axis)
    return x.chunk(node.attributes["num_outputs"], axis)


def _reshape(_: Node, __: TextPass, given: Given) -> Tensor:
    x: Tensor = given[0]
    sizes = [x.shape[n] if size == 0 else size for n, size in enumerate(given[1].tolist())]
    return x.reshape(sizes)


def _gather(node: Node, _: TextPass, given: Given) -> Tensor:
    x: Tensor = given[0]
    chosen: Tensor = given[1]
    axis = node.attributes["axis"]
    found = x.index_select(axis, chosen.flatten().to(x.device))
    return found.view(*x.shape[:axis], *chosen.shape, *x.shape[axis + 1 :])


def _top(node: Node, _: TextPass, given: Given) -> tuple[Tensor, Tensor]:
    found = given[0].topk(int(given[1]), node.attributes["axis"])
    return found.values, found.indices


def _of_values(function: Callable[..., Any]) -> Operator:
    """An operator of ONNX that reads tensors alone."""
    return lambda _, __, given: function(*given)


def _total(*given: Tensor) -> Tensor:
    return sum(given[1:], given[0])


OPERATORS: Mapping[str, Operator] = {
    "Add": _of_values(torch.add),
    "BlockEmbedding": embedding,
    "BlockLinear": linear,
    "Concat": lambda node, _, given: torch.cat(
        [each for each in given if each is not None], node.attributes["axis"]
    ),
    "Div": _of_values(torch.div),
    "Expand": _of_values(
        lambda x, shape: x * torch.ones(shape.tolist(), dtype=x.dtype, device=x.device)
    ),
    "ExpertLinear": experts,
    "Gather": _gather,
    "GatherElements": lambda node, _, given: torch.gather(
        given[0], node.attributes["axis"], given[1]
    ),
    "GatedDelta": gated_delta,
    "GatedUnit": gated_unit,
    "Gelu": lambda node, _, given: functional.gelu(
        given[0], approximate=node.attributes["approximate"]
    ),
    "Identity": _of_values(lambda x: x),
    "Less": _of_values(torch.lt),
    "Moments": moments,
    "Mul": _of_values(torch.mul),
    "Neg": _of_values(torch.neg),
    "Norm": norm,
    "Relu": _of_values(torch.relu),
    "Reshape": _reshape,
    "Shape": _of_values(lambda x: torch.tensor(x.shape)),
    "ShortConv": short_conv,
    "Sigmoid": _of_values(torch.sigmoid),
    "Softmax": _of_values(lambda x: x.softmax(-1)),
    "Split": _split,
    "StateSpace": state_space,
    "Sub": _of_values(torch.sub),
    "Sum": _of_values(_total),
    "Tanh": _of_values(torch.tanh),
    "TopK": _top,
    "TreeAttention": attention,
    "Unsqueeze": _of_values(lambda x, axes: x.unsqueeze(axes.tolist()[0])),
    "Where": _of_values(torch.where),
}
"""What nodes compute, by their types."""
