"""Random draft heads in both layouts of EAGLE-3, and the published definition in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from checkpoints import make_checkpoint, write_tokenizer
from head_parts import attended, continuations, repeatable, rms, teach, turned
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from edgespec.export import ExportOptions, export_bundle

OUTPUTS = 96  # tokens that a random head proposes
IDS = "eagle_aux_hidden_state_layer_ids"
# Each part of the definition that a config can ask for, in either layout.
HEADS = {
    "flat": (True, {}),
    "flat, taps named by output": (True, {"eagle_config": {IDS: [0, 3, 6]}}),
    "flat, residual of the norm": (True, {"norm_before_residual": True}),
    "flat, gated": (True, {"edgespec_fusion": "gated"}),
    "flat, all tokens": (True, {"draft_vocab_size": None}),
    "speculators": (False, {}),
    "speculators, taps named by input": (False, {IDS: [1, 2, 8]}),
    "speculators, residual before the norm": (False, {"norm_before_residual": False}),
    "speculators, norms": (False, {"norm_before_fc": True, "norm_output": True}),
    "speculators, norm of each tap": (False, {"fc_norm": True, "rope_theta": 500.0}),
    "speculators, three layers of Qwen3": (
        False,
        {"num_hidden_layers": 3, "model_type": "qwen3", "norm_output": True},
    ),
}
PEAGLE = {
    "speculators_model_type": "peagle", "mask_token_id": 330, "num_hidden_layers": 2,
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 6}]},
}  # fmt: skip
# Heads that draft several tokens at once, by what their configs ask for besides.
PEAGLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "norms": {"norm_before_fc": True, "norm_before_residual": False},
    "of taps, Qwen3": {"fc_norm": True, "model_type": "qwen3", "draft_vocab_size": None},
}


INNER = 96
"""Width of a random draft's MLP."""


def layer_of(target: Any, **changes: Any) -> dict[str, Any]:
    """Returns the config of a draft's layers for a transformers config of a target."""
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": INNER,
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


def write_target(folder: Path) -> tuple[PreTrainedModel, Path]:
    """Writes a random target of eight layers; returns it and its bundle without a draft."""
    model = make_checkpoint(folder / "checkpoint", "llama", num_hidden_layers=8)
    write_tokenizer(folder / "checkpoint", 331)
    export_bundle(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
    return model, folder / "bundle"


def write_head(
    folder: Path, target: Any, *, flat: bool = True, seed: int = 3, **changes: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Writes a random head for a transformers config of a target.

    Args:
        folder: folder to create.
        target: config of the target; the head's layer has its sizes.
        flat: whether to write the flat layout, or that of `speculators`.
        seed: seed of the weights.
        changes: fields of the config to set; None leaves a field out.

    Returns:
        The weights and the config, as written.
    """
    layer = layer_of(target, model_type="llama", num_hidden_layers=1)
    own: dict[str, Any] = {"draft_vocab_size": OUTPUTS}
    if flat:
        config = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **own}
    else:
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "norm_before_residual": True,
            **own,
        }
    for name, value in changes.items():
        place = layer if not flat and name in layer else config
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    features = len(taps_of(config, target.num_hidden_layers)) * target.hidden_size
    outputs = config.get("draft_vocab_size", target.vocab_size)
    shapes = _shapes(config, layer, features, outputs)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        weights[key] = noise * shape[1] ** -0.5 if len(shape) == 2 else 1 + 0.2 * noise
    ids = torch.randperm(target.vocab_size, generator=generator)[:outputs]
    ids = ids.sort().values
    weights["d2t"] = ids - torch.arange(len(ids))
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[ids] = True
    weights["t2d"] = known
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _save(folder, weights)
    return weights, config


def _shapes(
    config: dict[str, Any], layer: dict[str, Any], features: int, outputs: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a head's tensors."""
    hidden, inner, dim = layer["hidden_size"], INNER, layer["head_dim"]
    gated = config.get("edgespec_fusion") == "gated"
    width = hidden if gated else 2 * hidden
    heads, kv = layer["num_attention_heads"] * dim, layer["num_key_value_heads"] * dim
    name = "layers.0" if "transformer_layer_config" in config else "midlayer"
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, features),
        f"{name}.self_attn.q_proj.weight": (heads, width),
        f"{name}.self_attn.k_proj.weight": (kv, width),
        f"{name}.self_attn.v_proj.weight": (kv, width),
        f"{name}.self_attn.o_proj.weight": (hidden, heads),
        f"{name}.mlp.gate_proj.weight": (inner, hidden),
        f"{name}.mlp.up_proj.weight": (inner, hidden),
        f"{name}.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (outputs, hidden),
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.hidden_norm.weight": (hidden,),
        f"{name}.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for number in range(layer["num_hidden_layers"]):
        part = name if not number else f"layers.{number}"
        if number:  # those behind the first one are a decoder's
            like = {key: shape for key, shape in shapes.items() if key.startswith(f"{name}.")}
            for key, shape in like.items():
                if "hidden_norm" not in key:
                    wide = len(shape) == 2 and shape[1] == width
                    shapes[key.replace(name, part)] = (shape[0], hidden) if wide else shape
        if layer["model_type"] == "qwen3":
            shapes |= {f"{part}.self_attn.{each}_norm.weight": (dim,) for each in "qk"}
    if config.get("speculators_model_type") == "peagle":
        shapes["mask_hidden"] = (1, 1, features)
    if gated:
        shapes[f"{name}.fusion_gate.weight"] = (hidden, 2 * hidden)
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (features,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{n}.weight": (hidden,) for n in range(features // hidden)}
    return shapes


def taps_of(config: dict[str, Any], layers: int) -> list[int]:
    """Returns the layers whose entering rows a head reads."""
    if config.get(IDS):
        return config[IDS]
    after = config.get("eagle_config", {}).get(IDS)
    return [each + 1 for each in after] if after else sorted({2, layers // 2, layers - 3})


@torch.no_grad()
def features_of(model: Any, tokens: list[int], taps: list[int]) -> torch.Tensor:
    """Returns the rows that enter these layers, side by side: [n, taps * hidden]."""
    rows = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([rows[tap][0] for tap in taps], 1)


def trained_head(folder: Path, model: Any, prompt: list[int], **changes: Any) -> None:
    """Writes a head that has learned how a random target continues one prompt.

    Without learning, none of its tokens would be accepted, and little would be tested.
    """
    weights, config = write_head(folder, model.config, draft_vocab_size=None, **changes)
    taps = taps_of(config, model.config.num_hidden_layers)
    with repeatable():
        texts = continuations(model, prompt, (False, True, True))
        features = [features_of(model, text, taps) for text in texts]
        learned = {k: v.requires_grad_() for k, v in weights.items() if v.dtype == torch.float32}
        embedding = model.get_input_embeddings().weight.data
        head = HeadReference({**weights, **learned}, config, embedding)

        def hidden(index: int, n: int) -> torch.Tensor:
            return head.fuse(features[index][:n])

        teach(head.step, hidden, list(learned.values()), texts, 100)
    _save(folder, {name: value.detach() for name, value in (weights | learned).items()})


def trained_peagle(folder: Path, model: Any, prompt: list[int]) -> None:
    """Writes a head with masks that has learned how a random target continues one prompt."""
    fields = {**PEAGLE, "draft_vocab_size": None}
    weights, config = write_head(folder, model.config, flat=False, **fields)
    taps, depth = taps_of(config, model.config.num_hidden_layers), 5
    with repeatable():
        [text] = continuations(model, prompt, (False,))
        read, n = features_of(model, text, taps), len(text) - depth - 1
        learned = {k: v.requires_grad_() for k, v in weights.items() if v.dtype == torch.float32}
        embedding = model.get_input_embeddings().weight.data
        head = HeadReference({**weights, **learned}, config, embedding)
        optimizer = torch.optim.Adam(learned.values(), lr=3e-3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(150):
            anchors = torch.randperm(n, generator=generator)[:24]
            masks = anchors[:, None] + torch.arange(1, depth)
            positions = torch.cat([torch.arange(n), masks.flatten()])
            begins = torch.cat([torch.arange(n), anchors.repeat_interleave(depth - 1)])
            of_text = torch.arange(len(positions)) < n
            before = positions[:, None] >= positions
            sees = of_text & (begins[:, None] >= begins)
            sees |= ~of_text & (begins[:, None] == begins) & before
            told = learned["mask_hidden"][0].expand(masks.numel(), -1)
            tokens = torch.tensor([*text[1 : n + 1], *[330] * masks.numel()])
            logits, _ = head.step(tokens, head.fuse(torch.cat([read[:n], told])), positions, sees)
            loss = cross_entropy(logits, torch.tensor(text)[positions + 2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    _save(folder, {name: value.detach() for name, value in (weights | learned).items()})


def _save(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")


class HeadReference:
    """The published definition of a head, in float32 torch, for one text and without a cache.

    Args:
        weights: weights as `write_head` returns them.
        config: config as `write_head` returns it.
        embedding: [V, hidden] the target's embedding.
    """

    def __init__(
        self, weights: dict[str, torch.Tensor], config: dict[str, Any], embedding: torch.Tensor
    ) -> None:
        self.flat = "transformer_layer_config" not in config
        self.layer = config if self.flat else config["transformer_layer_config"]
        self.config, self.embedding = config, embedding
        prefix = "midlayer." if self.flat else "layers.0."
        self.weights = {k.removeprefix(prefix): v.float() for k, v in weights.items()}
        self.ids = torch.arange(len(weights["d2t"])) + weights["d2t"]

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, taps * hidden] to hidden rows [n, hidden]."""
        w = self.weights
        if self.config.get("norm_before_fc"):
            features = self.norm(features, "input_norm")
        if self.config.get("fc_norm"):
            size = self.layer["hidden_size"]
            parts = features.split(size, dim=1)
            parts = [self.norm(part, f"fc_norm.{n}") for n, part in enumerate(parts)]
            features = torch.cat(parts, 1)
        return features @ w["fc.weight"].T

    def step(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        sees: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs rows, each seeing those that `sees` [n, n] says.

        Returns:
            Logits [n, outputs], and the hidden rows [n, hidden] that the next step reads.
        """
        w, layer = self.weights, self.layer
        token = self.norm(self.embedding[tokens], "input_layernorm")
        normed = self.norm(hidden, "hidden_norm")
        stream = normed if self.config.get("norm_before_residual") else hidden
        both = torch.cat([token, normed], 1)
        if self.config.get("edgespec_fusion") == "gated":
            share = torch.sigmoid(both @ w["fusion_gate.weight"].T)
            both = share * normed + (1 - share) * token
        stream = stream + self.attend(both, positions, sees)
        stream = stream + self.mlp(stream)
        for number in range(1, layer["num_hidden_layers"]):
            name = f"layers.{number}."
            x = self.norm(stream, f"{name}input_layernorm")
            stream = stream + self.attend(x, positions, sees, name)
            stream = stream + self.mlp(stream, name)
        output = self.norm(stream, "norm")
        following = output if self.config.get("norm_output") else stream
        assert layer["hidden_act"] == "silu"
        return output @ w["lm_head.weight"].T, following

    def mlp(self, stream: torch.Tensor, name: str = "") -> torch.Tensor:
        """What a layer's MLP adds to the stream."""
        w, x = self.weights, self.norm(stream, f"{name}post_attention_layernorm")
        gate = torch.nn.functional.silu(x @ w[f"{name}mlp.gate_proj.weight"].T)
        return (gate * (x @ w[f"{name}mlp.up_proj.weight"].T)) @ w[f"{name}mlp.down_proj.weight"].T

    def attend(
        self, x: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, name: str = ""
    ) -> torch.Tensor:
        """Attention with rotary embedding, over these rows alone."""
        w, layer, n = self.weights, self.layer, len(x)
        dim = layer["head_dim"]
        q, k, v = (
            (x @ w[f"{name}self_attn.{part}_proj.weight"].T).view(n, -1, dim).transpose(0, 1)
            for part in "qkv"
        )
        if layer["model_type"] == "qwen3":
            q, k = (
                self.norm(each, f"{name}self_attn.{part}_norm")
                for each, part in ((q, "q"), (k, "k"))
            )
        q, k = (turned(each, positions, layer["rope_theta"], dim) for each in (q, k))
        return attended(q, k, v, sees) @ w[f"{name}self_attn.o_proj.weight"].T

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """RMS normalization."""
        return rms(x, self.layer["rms_norm_eps"]) * self.weights[f"{name}.weight"]
