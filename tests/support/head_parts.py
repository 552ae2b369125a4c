"""What draft heads of all layouts have in common: how tests teach them, and their arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

Tensor = torch.Tensor
Weights = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


@contextmanager
def repeatable() -> Iterator[None]:
    """Seeds torch, and gives it one thread: products are small, and other tests run beside it."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def continuations(model: Any, prompt: list[int], sampled: Sequence[bool]) -> list[list[int]]:
    """Returns texts that begin with a prompt, each sampled or greedy."""
    tokens = torch.tensor([prompt])
    most = {"max_new_tokens": 120, "pad_token_id": 0}
    return [model.generate(tokens, do_sample=each, **most)[0].tolist() for each in sampled]


def teach(
    step: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    hidden: Callable[[int, int], Tensor],
    weights: Sequence[Tensor],
    texts: Sequence[list[int]],
    times: int,
) -> None:
    """Has a head learn two steps of drafting at every place of some texts.

    Args:
        step: the head's; see `HeadReference.step`.
        hidden: returns the first rows that the head reads of a text, by its index and their number.
        weights: what is learned.
        texts: token ids.
        times: how often all texts are read.
    """

    def loss() -> Tensor:
        loss = torch.zeros(())
        for index, text in enumerate(texts):
            n = len(text) - 1
            tokens = torch.tensor(text[1:])
            sees = torch.ones(n, n).tril().bool()
            logits, own = step(tokens, hidden(index, n), torch.arange(n), sees)
            loss = loss + cross_entropy(logits[:-1], tokens[1:])
            # The second step of a draft reads the head's own rows.
            moved = torch.cat([own[:1], own[:-1]])
            logits, _ = step(tokens, moved, torch.arange(n), sees)
            loss = loss + cross_entropy(logits[:-1], tokens[1:])
        return loss

    learn(weights, times, loss)


def learn(weights: Iterable[Tensor], times: int, loss: Callable[[], Tensor]) -> None:
    """Changes weights so many times so that a loss becomes less."""
    optimizer = torch.optim.Adam(weights, lr=3e-3)
    for _ in range(times):
        found = loss()
        optimizer.zero_grad()
        found.backward()
        optimizer.step()


@torch.no_grad()
def features_of(model: Any, tokens: list[int], taps: list[int]) -> Tensor:
    """Returns the rows that enter these layers, side by side: [n, taps * hidden]."""
    rows = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([rows[tap][0] for tap in taps], 1)


def layer_of(target: Any, **changes: Any) -> dict[str, Any]:
    """Returns the config of a draft's layers for a transformers config of a target."""
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": 96,
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_key_value_heads,
        "head_dim": target.head_dim,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "rope_theta": 10000.0,
        **changes,
    }


def layer_shapes(name: str, layer: dict[str, Any], width: int | None = None) -> Shapes:
    """Returns the shapes of the tensors of a decoder's layer, which reads rows of this width."""
    hidden = layer["hidden_size"]
    inner = layer["intermediate_size"]
    dim = layer["head_dim"]
    heads = layer["num_attention_heads"] * dim
    kv = layer["num_key_value_heads"] * dim
    width = width or hidden
    shapes: Shapes = {
        "self_attn.q_proj": (heads, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (hidden, heads),
        **{f"self_attn.{each}_norm": (dim,) for each in "qk" if layer["model_type"] == "qwen3"},
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{name}.{part}.weight": shape for part, shape in shapes.items()}


def random_weights(shapes: Shapes, generator: torch.Generator, around: float = 1.0) -> Weights:
    """Returns random tensors of these shapes; those of norms and biases are around a number."""
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        scaled = noise * shape[1] ** -0.5 if len(shape) == 2 else around + 0.2 * noise
        weights[name] = scaled
    return weights


def change(config: dict[str, Any], layer: dict[str, Any], changes: dict[str, Any]) -> None:
    """Sets fields of a config, or those of its layers where they have them; None leaves one out."""
    for name, value in changes.items():
        place = layer if name in layer else config
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value


def save(folder: Path, weights: Weights, config: dict[str, Any] | None = None) -> None:
    """Writes weights, and a config if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.detach().contiguous() for k, v in weights.items()}, folder / "model.safetensors"
    )
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


class LayerReference:
    """Parts of a decoder's layers, in float32 torch.

    Args:
        weights: tensors by name.
        layer: config of the layers.
    """

    def __init__(self, weights: Weights, layer: dict[str, Any]) -> None:
        assert layer["hidden_act"] == "silu"
        self.weights = weights
        self.layer = layer

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A product without bias."""
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS normalization."""
        return rms(x, self.layer["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def mlp(self, x: Tensor, name: str) -> Tensor:
        """A gated MLP; the name ends with a dot if it is not empty."""
        gate = torch.nn.functional.silu(self.linear(x, f"{name}mlp.gate_proj"))
        return self.linear(gate * self.linear(x, f"{name}mlp.up_proj"), f"{name}mlp.down_proj")

    def heads(self, x: Tensor, name: str, part: str, positions: Tensor) -> Tensor:
        """Queries, keys or values [heads, n, dim], normalized if there are norms, and turned."""
        dim = self.layer["head_dim"]
        part = f"{name}self_attn.{part}"
        rows = self.linear(x, f"{part}_proj").view(len(x), -1, dim).transpose(0, 1)
        if part.endswith("v"):
            return rows
        rows = self.norm(rows, f"{part}_norm") if f"{part}_norm.weight" in self.weights else rows
        return turned(rows, positions, self.layer["rope_theta"], dim)


def rms(x: Tensor, epsilon: float) -> Tensor:
    """RMS normalization without weights."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def turned(x: Tensor, positions: Tensor, theta: float, rotated: int) -> Tensor:
    """Rotary embedding of heads [heads, n, dim], of which the first `rotated` numbers turn."""
    freq = theta ** -(torch.arange(0, rotated, 2).double() / rotated)
    angles = positions.double()[:, None] * freq
    cos, sin = (torch.cat([f(angles)] * 2, 1).float() for f in (torch.cos, torch.sin))
    x, rest = x[..., :rotated], x[..., rotated:]
    first, second = x.chunk(2, -1)
    return torch.cat([x * cos + torch.cat([-second, first], -1) * sin, rest], -1)


def attended(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """Attention of heads [heads, n, dim], of which k and v may have fewer: [n, heads * dim]."""
    group = q.shape[0] // k.shape[0]
    k = k.repeat_interleave(group, 0)
    v = v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    shares = scores.masked_fill(~sees, float("-inf")).softmax(-1)
    return (shares @ v).transpose(0, 1).reshape(q.shape[1], -1)
