"""Draft heads in checkpoints: random tensors, and their definitions in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_parts import attended, continuations, random_weights, repeatable, rms, teach, turned
from safetensors.torch import load_file, save_file
from torch.func import functional_call
from transformers.modeling_layers import MtpLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5MLP
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

Weights = dict[str, torch.Tensor]


def write_mtp(folder: Path, config: Any, seed: int = 3) -> Weights:
    """Adds a random head to a saved checkpoint with a transformers config; returns its tensors."""
    hidden = config.hidden_size
    dim = config.head_dim
    heads = config.num_attention_heads * dim
    kv = config.num_key_value_heads * dim
    layer = "mtp.layers.0"
    shapes = {
        "mtp.fc": (hidden, 2 * hidden),
        f"{layer}.self_attn.q_proj": (2 * heads, hidden),
        f"{layer}.self_attn.k_proj": (kv, hidden),
        f"{layer}.self_attn.v_proj": (kv, hidden),
        f"{layer}.self_attn.o_proj": (hidden, heads),
        f"{layer}.self_attn.q_norm": (dim,),
        f"{layer}.self_attn.k_norm": (dim,),
        f"{layer}.input_layernorm": (hidden,),
        f"{layer}.post_attention_layernorm": (hidden,),
        "mtp.pre_fc_norm_embedding": (hidden,),
        "mtp.pre_fc_norm_hidden": (hidden,),
        "mtp.norm": (hidden,),
    }
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    for name, each in feed_forward(config).named_parameters():
        shapes[f"{layer}.mlp.{name}"] = tuple(each.shape)
    weights = random_weights(shapes, torch.Generator().manual_seed(seed), around=0.0)
    add_tensors(folder, weights)
    return weights


def feed_forward(config: Any) -> torch.nn.Module:
    """Returns what follows attention in a layer, as transformers has it."""
    if getattr(config, "num_experts", 0):
        return Qwen3_5MoeSparseMoeBlock(config)
    return Qwen3_5MLP(config, config.intermediate_size)


def add_tensors(folder: Path, tensors: Weights) -> None:
    """Puts tensors into the file of a checkpoint, in place of those of the same names."""
    file = folder / "model.safetensors"
    tensors = {name: each.contiguous() for name, each in tensors.items()}
    save_file(load_file(file) | tensors, file, {"format": "pt"})


def trained_mtp(folder: Path, model: Any, prompt: list[int]) -> None:
    """Adds a head that has learned how a random target continues one prompt."""
    weights = write_mtp(folder, model.config)
    with repeatable():
        texts = continuations(model, prompt, (False, True))
        rows = [normed_rows(model, text) for text in texts]
        for each in weights.values():
            each.requires_grad_()
        step = MtpReference(weights, model).step
        teach(step, lambda index, n: rows[index][:n], list(weights.values()), texts, 80)
    add_tensors(folder, {name: each.detach() for name, each in weights.items()})


@torch.no_grad()
def normed_rows(model: Any, tokens: list[int]) -> torch.Tensor:
    """Returns what the target's last norm gives for each token: [n, hidden]."""
    return model.model(torch.tensor([tokens])).last_hidden_state[0]


class NextnReference:
    """A random head as GLM has it, a layer of transformers, which is added to a checkpoint.

    Args:
        folder: the checkpoint.
        model: the target.
        seed: of its weights.
    """

    def __init__(self, folder: Path, model: Any, seed: int = 3) -> None:
        self._model = model
        base = model.model
        self._layer = MtpLayer(model.config, type(base.layers[-1]), type(base.norm), 1).eval()
        generator = torch.Generator().manual_seed(seed)
        tensors = dict[str, torch.Tensor]()
        place = f"model.layers.{model.config.num_hidden_layers}"
        for name, each in self._layer.state_dict().items():
            noise = torch.randn(each.shape, generator=generator)
            shift = each.ndim == 1 and "norm" in name
            each.copy_(noise * (each[0].numel() ** -0.5 if each.ndim > 1 else 0.2) + shift)
            own = name.replace("mtp_block.", "").replace("post_norm", "shared_head.norm")
            if ".experts." not in name:
                tensors[f"{place}.{own}"] = each
                continue
            parts = ["down_proj"] if "down" in name else ["gate_proj", "up_proj"]
            for number, expert in enumerate(each):
                for part, matrix in zip(parts, expert.chunk(len(parts)), strict=True):
                    tensors[f"{place}.mlp.experts.{number}.{part}.weight"] = matrix
        # Published checkpoints hold these once more.
        tensors[f"{place}.embed_tokens.weight"] = base.embed_tokens.weight.data.clone()
        tensors[f"{place}.shared_head.head.weight"] = model.lm_head.weight.data.clone()
        add_tensors(folder, tensors)

    def step(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        sees: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `MtpReference`."""
        base = self._model.model
        places = positions[None]
        token = base.embed_tokens(tokens)[None]
        turns = base.rotary_emb(token, places)
        rows = self._layer(token, hidden[None], turns, sees[None, None], places, None)[0]
        return self._model.lm_head(rows), rows


class MtpReference:
    """The definition of the head, in float32 torch, for one text and without a cache.

    Args:
        weights: the tensors as `write_mtp` returns them.
        model: the target.
    """

    def __init__(self, weights: Weights, model: Any) -> None:
        short = {name.removeprefix("mtp."): each for name, each in weights.items()}
        self.weights = {name.removeprefix("layers.0."): each for name, each in short.items()}
        self.config = model.config
        self.feed_forward = feed_forward(model.config)
        self.embedding = model.get_input_embeddings().weight.data
        self.lm_head = model.lm_head.weight.data
        self.ids = torch.arange(len(self.lm_head))

    def step(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        sees: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs rows, each seeing those that `sees` [n, n] says.

        Returns:
            Logits [n, V], and the hidden rows [n, hidden] that the next step reads.
        """
        w = self.weights
        token = self.norm(self.embedding[tokens], "pre_fc_norm_embedding")
        both = torch.cat([token, self.norm(hidden, "pre_fc_norm_hidden")], 1)
        stream = both @ w["fc.weight"].T
        x = self.norm(stream, "input_layernorm")
        stream = stream + self.attend(x, positions, sees)
        x = self.norm(stream, "post_attention_layernorm")
        own = {name[4:]: each for name, each in w.items() if name.startswith("mlp.")}
        stream = stream + functional_call(self.feed_forward, own, x[None])[0]
        output = self.norm(stream, "norm")
        return output @ self.lm_head.T, output

    def attend(self, x: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        """Gated attention with partly rotated heads, over these rows alone."""
        w = self.weights
        n = len(x)
        dim = self.config.head_dim
        rope = self.config.rope_parameters
        rotated = int(dim * rope["partial_rotary_factor"])
        both = (x @ w["self_attn.q_proj.weight"].T).view(n, -1, 2 * dim)
        q = both[..., :dim]
        gate = both[..., dim:].reshape(n, -1)
        k, v = ((x @ w[f"self_attn.{part}_proj.weight"].T).view(n, -1, dim) for part in "kv")
        q = self.norm(q, "self_attn.q_norm")
        k = self.norm(k, "self_attn.k_norm")
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        q, k = (turned(each, positions, rope["rope_theta"], rotated) for each in (q, k))
        mixed = attended(q, k, v, sees) * torch.sigmoid(gate)
        return mixed @ w["self_attn.o_proj.weight"].T

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS normalization; weights are stored as the difference to 1."""
        return rms(x, self.config.rms_norm_eps) * (1 + self.weights[f"{name}.weight"])
