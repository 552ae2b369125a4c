"""Random draft heads in both layouts of EAGLE-3, and the published definition in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from checkpoints import make_checkpoint
from head_parts import (
    LayerReference,
    attended,
    change,
    continuations,
    features_of,
    layer_of,
    layer_shapes,
    learn,
    random_weights,
    repeatable,
    save,
    teach,
)
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from edgespec import export
from edgespec.export import ExportOptions

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


def write_target(folder: Path) -> tuple[PreTrainedModel, Path]:
    """Writes a random target of eight layers; returns it and its bundle without a draft."""
    model = make_checkpoint(folder / "checkpoint", "llama", num_hidden_layers=8)
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
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
    change(config, config if flat else layer, changes)
    features = len(taps_of(config, target.num_hidden_layers)) * target.hidden_size
    outputs = config.get("draft_vocab_size", target.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(
        _shapes(config, config if flat else layer, features, outputs), generator
    )
    ids = torch.randperm(target.vocab_size, generator=generator)[:outputs]
    ids = ids.sort().values
    weights["d2t"] = ids - torch.arange(len(ids))
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[ids] = True
    weights["t2d"] = known
    save(folder, weights, config)
    return weights, config


def _shapes(
    config: dict[str, Any], layer: dict[str, Any], features: int, outputs: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a head's tensors."""
    hidden = layer["hidden_size"]
    gated = config.get("edgespec_fusion") == "gated"
    name = "layers.0" if "transformer_layer_config" in config else "midlayer"
    shapes = {
        "fc.weight": (hidden, features),
        **layer_shapes(name, layer, hidden if gated else 2 * hidden),
        f"{name}.hidden_norm.weight": (hidden,),
        "lm_head.weight": (outputs, hidden),
        "norm.weight": (hidden,),
    }
    for number in range(1, layer["num_hidden_layers"]):  # those behind the first are a decoder's
        shapes |= layer_shapes(f"layers.{number}", layer)
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
    save(folder, weights | learned)


def trained_peagle(folder: Path, model: Any, prompt: list[int]) -> None:
    """Writes a head with masks that has learned how a random target continues one prompt."""
    fields = {**PEAGLE, "draft_vocab_size": None}
    weights, config = write_head(folder, model.config, flat=False, **fields)
    taps = taps_of(config, model.config.num_hidden_layers)
    depth = 5
    with repeatable():
        [text] = continuations(model, prompt, (False,))
        read = features_of(model, text, taps)
        n = len(text) - depth - 1
        learned = {k: v.requires_grad_() for k, v in weights.items() if v.dtype == torch.float32}
        embedding = model.get_input_embeddings().weight.data
        head = HeadReference({**weights, **learned}, config, embedding)
        generator = torch.Generator().manual_seed(0)

        def loss() -> torch.Tensor:
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
            return cross_entropy(logits, torch.tensor(text)[positions + 2])

        learn(learned.values(), 150, loss)
    save(folder, weights | learned)


class HeadReference(LayerReference):
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
        self.config = config
        self.embedding = embedding
        prefix = "midlayer." if self.flat else "layers.0."
        super().__init__(
            {k.removeprefix(prefix): v.float() for k, v in weights.items()},
            config if self.flat else config["transformer_layer_config"],
        )
        self.ids = torch.arange(len(weights["d2t"])) + weights["d2t"]

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, taps * hidden] to hidden rows [n, hidden]."""
        if self.config.get("norm_before_fc"):
            features = self.norm(features, "input_norm")
        if self.config.get("fc_norm"):
            size = self.layer["hidden_size"]
            parts = features.split(size, dim=1)
            parts = [self.norm(part, f"fc_norm.{n}") for n, part in enumerate(parts)]
            features = torch.cat(parts, 1)
        return self.linear(features, "fc")

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
        token = self.norm(self.embedding[tokens], "input_layernorm")
        normed = self.norm(hidden, "hidden_norm")
        stream = normed if self.config.get("norm_before_residual") else hidden
        both = torch.cat([token, normed], 1)
        if self.config.get("edgespec_fusion") == "gated":
            share = torch.sigmoid(self.linear(both, "fusion_gate"))
            both = share * normed + (1 - share) * token
        for number in range(self.layer["num_hidden_layers"]):
            name = f"layers.{number}." if number else ""
            x = self.norm(stream, f"{name}input_layernorm") if number else both
            q, k, v = (self.heads(x, name, part, positions) for part in "qkv")
            mixed = self.linear(attended(q, k, v, sees), f"{name}self_attn.o_proj")
            stream = stream + mixed
            stream = stream + self.mlp(self.norm(stream, f"{name}post_attention_layernorm"), name)
        output = self.norm(stream, "norm")
        following = output if self.config.get("norm_output") else stream
        return self.linear(output, "lm_head"), following
