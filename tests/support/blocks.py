"""Random block drafters in the layouts of DFlash and DSpark, and their definition in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
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
)
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

Tensor = torch.Tensor
OUTPUTS = 96  # tokens that a drafter with its own output projection proposes
MASK = 330
# What a config can ask for, by form: flat or not, and fields.
BLOCKS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "dflash, flat": ("dflash", True, {}),
    "dflash, block in its group": (
        "dflash", True,
        {"block_size": None, "dflash_config": {
            "block_size": 4, "mask_token_id": MASK, "target_layer_ids": [0, 6],
        }},
    ),
    "dflash, one layer": ("dflash", True, {"num_hidden_layers": 1, "rope_theta": 500.0}),
    "dflash, windows": (
        "dflash", True, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
    ),
    "dflash, windows both ways": (
        "dflash", True, {"layer_types": ["full_attention", "sliding_attention"],
                         "sliding_window": 9, "is_causal": False},
    ),
    "dflash, speculators": ("dflash", False, {}),
    "dflash, own tokens": ("dflash", False, {"draft_vocab_size": OUTPUTS}),
    "dflash2": ("dflash2", False, {}),
    "dflash2, flat": ("dflash2", True, {"block_size": 5}),
    "dflash2, three taps and windows": (
        "dflash2", False, {"conv_kernel_size": 3, "conv_group_size": 8, "sliding_window": 9,
                           "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "dspark": ("dspark", False, {}),
    "dspark, flat": ("dspark", True, {}),
    "dspark, own tokens": ("dspark", False, {"draft_vocab_size": OUTPUTS}),
    "dspark, confidence of the row": ("dspark", False, {"confidence_head_with_markov": False}),
    "dspark, no confidence": ("dspark", False, {"enable_confidence_head": False}),
    "dspark, as dflash": ("dspark", False, {"sample_from_anchor": False}),
}  # fmt: skip


def write_block(
    folder: Path,
    target: Any,
    form: str = "dflash",
    flat: bool = True,
    seed: int = 3,
    **changes: Any,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Writes a random block drafter for a transformers config of a target.

    Args:
        folder: folder to create.
        target: config of the target; the layers have its sizes.
        form: dflash or dspark.
        flat: whether to write the flat layout, or that of `speculators`.
        seed: seed of the weights.
        changes: fields of the config to set; None leaves a field out.

    Returns:
        The weights and the config, as written.
    """
    layer = layer_of(target, model_type="qwen3", num_hidden_layers=2)
    own: dict[str, Any] = {"block_size": 8}
    if form == "dspark":
        own |= {"markov_rank": 8, "markov_head_type": "vanilla"}
    if form == "dflash2":
        own |= {"conv_kernel_size": 2, "conv_group_size": 16}
        own |= {"selector_rank": 8, "selector_top_k": 16}
    if flat:
        name = {
            "dflash": "DFlashDraftModel",
            "dflash2": "DFlash2DraftModel",
            "dspark": "Qwen3DSparkModel",
        }[form]
        group = {"mask_token_id": MASK, "target_layer_ids": [1, 4, 5]}
        config = {"architectures": [name], **layer, **own, "dflash_config": group}
    else:
        config = {
            "speculators_model_type": form,
            "transformer_layer_config": layer,
            **own,
            "draft_vocab_size": target.vocab_size,
            "mask_token_id": MASK,
            "aux_hidden_state_layer_ids": [2, 5, 6],
        }
    change(config, config if flat else layer, changes)
    outputs = config.get("draft_vocab_size", target.vocab_size)
    shapes = _shapes(config, form, target.vocab_size, outputs)
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shapes, generator)
    if outputs < target.vocab_size:
        ids = torch.randperm(target.vocab_size, generator=generator)[:outputs].sort().values
        weights["d2t"] = ids - torch.arange(outputs)
    save(folder, weights, config)
    return weights, config


def _shapes(
    config: dict[str, Any], form: str, vocab_size: int, outputs: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a drafter's tensors."""
    layer = config.get("transformer_layer_config", config)
    hidden = layer["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(taps_of(config)) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for number in range(layer["num_hidden_layers"]):
        shapes |= layer_shapes(f"layers.{number}", layer)
        if form == "dflash2":
            taps = config["conv_kernel_size"]
            groups = hidden // config["conv_group_size"]
            for part in ("attention_conv", "mlp_conv"):
                shapes[f"layers.{number}.{part}.base_kernel"] = (2, taps, hidden)
                name = f"layers.{number}.{part}.kernel_projection.weight"
                shapes[name] = (2 * taps * groups, hidden)
    if form == "dflash2":
        rank = config["selector_rank"]
        name = "candidate_selector"
        for part in ("predecessor", "successor"):
            shapes[f"{name}.{part}_codebook"] = (vocab_size, rank)
        shapes[f"{name}.hidden_projection.weight"] = (rank, hidden)
    if form == "dspark":
        rank = config["markov_rank"]
        shapes["markov_head.markov_w1.weight"] = (vocab_size, rank)
        shapes["markov_head.markov_w2.weight"] = (outputs, rank)
        if config.get("enable_confidence_head", True):
            width = hidden + rank * config.get("confidence_head_with_markov", True)
            shapes["confidence_head.proj.weight"] = (1, width)
            shapes["confidence_head.proj.bias"] = (1,)
    if outputs < vocab_size:
        shapes["lm_head.weight"] = (outputs, hidden)
    return shapes


def taps_of(config: dict[str, Any]) -> list[int]:
    """Returns the layers whose entering rows a drafter reads."""
    if "dflash_config" in config:
        return [each + 1 for each in config["dflash_config"]["target_layer_ids"]]
    return list(config["aux_hidden_state_layer_ids"])


class BlockReference(LayerReference):
    """The definition of a block drafter, in float32 torch, for one text and without a cache.

    Args:
        weights: weights as `write_block` returns them.
        config: config as `write_block` returns it.
        target: the target in transformers.
    """

    def __init__(self, weights: dict[str, Tensor], config: dict[str, Any], target: Any) -> None:
        super().__init__(weights, config.get("transformer_layer_config", config))
        self.config = config
        self.size = config.get("block_size") or config["dflash_config"]["block_size"]
        form = config.get("speculators_model_type") or config["architectures"][0].lower()
        self.from_anchor = config.get("sample_from_anchor", "dspark" in form)
        self.embedding = target.get_input_embeddings().weight.data
        self.projection = weights.get("lm_head.weight", target.lm_head.weight.data)
        self.ids = torch.arange(len(self.projection)) + weights.get("d2t", 0)

    def rows(self, features: Tensor, tokens: list[int], places: list[int]) -> Tensor:
        """Rows of blocks, [blocks * size, hidden].

        Args:
            features: [n, taps * hidden] of the first tokens of a text.
            tokens: the text.
            places: of each block, position of its newest token, at most n.
        """
        n = len(features)
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        ids = [[tokens[place]] + [MASK] * (self.size - 1) for place in places]
        stream = self.embedding[torch.tensor(ids).view(-1)]
        own = (torch.tensor(places)[:, None] + torch.arange(self.size)).view(-1)
        positions = torch.cat([torch.arange(n), own])
        for number in range(self.layer["num_hidden_layers"]):
            name = f"layers.{number}"
            x, kernels = self.entered(
                self.norm(stream, f"{name}.input_layernorm"), name, "attention"
            )
            both = torch.cat([context, x])
            q = self.heads(x, f"{name}.", "q", own)
            k, v = (self.heads(both, f"{name}.", part, positions) for part in "kv")
            sees = self.sees(number, own, positions)
            mixed = self.linear(attended(q, k, v, sees), f"{name}.self_attn.o_proj")
            stream = stream + self.left(mixed, name, "attention", kernels)
            x = self.norm(stream, f"{name}.post_attention_layernorm")
            x, kernels = self.entered(x, name, "mlp")
            stream = stream + self.left(self.mlp(x, f"{name}."), name, "mlp", kernels)
        return self.norm(stream, "norm")

    def entered(self, x: Tensor, layer: str, part: str) -> tuple[Tensor, Tensor | None]:
        """What a sublayer reads behind its convolution, and kernels [n, 2, taps, groups]."""
        name = f"{layer}.{part}_conv"
        if f"{name}.base_kernel" not in self.weights:
            return x, None
        taps, hidden = self.weights[f"{name}.base_kernel"].shape[1:]
        groups = hidden // self.config["conv_group_size"]
        kernels = x @ self.weights[f"{name}.kernel_projection.weight"].T
        kernels = kernels.view(len(x), 2, taps, groups)
        return self.convolved(x, name, kernels, 0), kernels

    def left(self, x: Tensor, layer: str, part: str, kernels: Tensor | None) -> Tensor:
        """What a sublayer gives behind its convolution."""
        return x if kernels is None else self.convolved(x, f"{layer}.{part}_conv", kernels, 1)

    def convolved(self, x: Tensor, name: str, kernels: Tensor, side: int) -> Tensor:
        """Sums over a row and those before it in its block."""
        base = self.weights[f"{name}.base_kernel"][side]
        size = self.config["conv_group_size"]
        blocks = x.view(-1, self.size, x.shape[1])
        result = torch.zeros(())
        for tap, own in enumerate(base):
            above = torch.zeros_like(blocks)
            above[:, tap:] = blocks[:, : self.size - tap]
            factor = own + kernels[:, side, tap].repeat_interleave(size, 1)
            result = result + above.view_as(x) * factor
        return result

    def selected(self, rows: Tensor, token: int | Tensor) -> Tensor:
        """Logits of all positions behind a token, or a token for each (DFlash2)."""
        w = self.weights
        name = "candidate_selector"
        before = w[f"{name}.predecessor_codebook"][token]
        context = before * (self.predicting(rows) @ w[f"{name}.hidden_projection.weight"].T)
        return self.logits(rows) + context @ w[f"{name}.successor_codebook"].T

    def sees(self, number: int, own: Tensor, at: Tensor) -> Tensor:
        """Which positions `at` rows of blocks see in a layer; the last of these are their own."""
        layer = self.layer
        n = len(at) - len(own)
        first = own[:: self.size].repeat_interleave(self.size)[:, None]
        block = torch.arange(len(own)) // self.size
        sees = torch.cat([at[None, :n] < first, block[:, None] == block[None]], 1)
        windows = layer.get("layer_types", ["full_attention"] * (number + 1))
        if windows[number] == "sliding_attention":
            sees &= at > own[:, None] - layer["sliding_window"]
            if layer.get("is_causal") is not False and "conv_group_size" not in self.config:
                sees &= at <= own[:, None]
        return sees

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of all positions that rows of blocks predict, [positions, outputs]."""
        return self.predicting(rows) @ self.projection.T

    def predicting(self, rows: Tensor) -> Tensor:
        """The rows that predict something."""
        rows = rows.view(-1, self.size, rows.shape[1])
        return rows[:, 1 - self.from_anchor :].flatten(0, 1)

    def behind(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What each position of DSpark gives behind a token: logits, and that of confidence."""
        w = self.weights
        own = self.predicting(rows)
        before = w["markov_head.markov_w1.weight"][tokens]
        logits = self.logits(rows) + before @ w["markov_head.markov_w2.weight"].T
        weight = w["confidence_head.proj.weight"][0]
        both = torch.cat([own, before], 1)[:, : len(weight)]
        return logits, both @ weight + w["confidence_head.proj.bias"]


def trained_block(folder: Path, model: Any, prompt: list[int], form: str) -> None:
    """Writes a drafter that has learned how a random target continues one prompt."""
    flat = form == "dflash"
    weights, config = write_block(folder, model.config, form, flat=flat, block_size=6)
    with repeatable():
        texts = continuations(model, prompt, (False,))
        features = [features_of(model, text, taps_of(config)) for text in texts]
        learned = [each.requires_grad_() for each in weights.values()]
        reference = BlockReference(weights, config, model)
        generator = torch.Generator().manual_seed(0)

        def loss() -> Tensor:
            loss = torch.zeros(())
            for text, read in zip(texts, features, strict=True):
                choice = torch.randperm(len(text) - len(prompt) - 6, generator=generator)[:24]
                places = (choice + len(prompt)).tolist()
                rows = reference.rows(read, text, places)
                wanted = torch.tensor([text[n + 1 : n + 7] for n in places])
                wanted = wanted[:, : reference.size - (not reference.from_anchor)].flatten()
                logits = reference.logits(rows)
                if form == "dflash2":
                    before = torch.tensor([text[n : n + 5] for n in places]).flatten()
                    logits = reference.selected(rows, before)
                if form == "dspark":
                    before = torch.tensor([text[n : n + 6] for n in places]).flatten()
                    logits, trust = reference.behind(rows, before)
                    right = (logits.argmax(1) == wanted).float()
                    loss = loss + binary_cross_entropy_with_logits(trust, right)
                loss = loss + cross_entropy(logits, wanted)
            return loss

        learn(learned, 150, loss)
    save(folder, weights)
