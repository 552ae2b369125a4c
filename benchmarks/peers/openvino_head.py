"""An EAGLE-3 head as OpenVINO GenAI takes it: a model in OpenVINO's format, made of a GGUF file.

Its pipeline changes both models. It gives the head the target's embedding and moves `fc` to the
target. What leaves the target's `layers.N` becomes an output, and so does what leaves the head's
`midlayer`. It finds all of these by the names and forms of nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_GROUP = 32  # weights that share a scale, as in Q8_0
_MOST = 65504.0  # of float16
_IDS = "d2t"
_LAYER = re.compile(r'"model\.layers\.self_attn\.add1\.layer(\d+)"')


def write_openvino_target(model: Path, folder: Path) -> None:
    """Writes a target whose layers are called as in other models, so that they are found.

    Args:
        model: folder of what the library makes of a GGUF file.
        folder: folder to create; weights are linked.

    Raises:
        ValueError: Its layers have other names than those that are known.
    """
    graph = model / "openvino_model.xml"
    text, layers = _LAYER.subn(r'"model.layers.\1/add"', graph.read_text(encoding="utf-8"))
    if not layers:
        raise ValueError(
            f"{graph}: no layers are called as by openvino-genai 2026.4, {_LAYER.pattern}: "
            "delete its folder, and have that release make it"
        )
    folder.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix in (".bin", ".json") or "tokenizer" in file.name:
            (folder / file.name).symlink_to(file.resolve())
    (folder / graph.name).write_text(text, encoding="utf-8")


def write_openvino_head(file: Path, target: Path, folder: Path) -> None:
    """Writes the model of a head.

    Args:
        file: GGUF file of the head, as llama.cpp's converter writes it.
        target: folder of its target's model, for the tokenizer.
        folder: folder to create.

    Raises:
        ValueError: The library cannot use such a head.
    """
    import gguf
    import openvino

    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items() if "." in name}
    tensors = {
        each.name: gguf.quants.dequantize(each.data, each.tensor_type)
        for each in reader.tensors
        if each.name != _IDS
    }
    ids = [each.data for each in reader.tensors if each.name == _IDS]
    model = _Head(facts, tensors).model(*ids)
    folder.mkdir(parents=True)
    for each in target.glob("openvino_*tokenizer.*"):
        (folder / each.name).symlink_to(each.resolve())
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)


class _Head:
    """Builds the graph of a head.

    Args:
        facts: of its GGUF file.
        tensors: of that file, in float32.
    """

    def __init__(self, facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        from openvino import opset13

        self._ops = opset13
        self._facts = facts
        self._tensors = dict(tensors)
        self._sinks = list[Any]()
        heads = "eagle3.attention.head_count"
        self._heads, self._kv_heads = facts[heads], facts[f"{heads}_kv"]
        self._dims = facts["eagle3.attention.key_length"]
        for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
            # There, dimensions that turn together are neighbours; here, half a head apart.
            pairs = tensors[name].reshape(-1, self._dims // 2, 2, tensors[name].shape[1])
            self._tensors[name] = pairs.swapaxes(1, 2).reshape(tensors[name].shape)

    def model(self, ids: Any = None) -> Any:
        """Returns the model; ids are the target's of what it proposes, where these are others."""
        import openvino

        ops = self._ops
        tokens = self._input("input_ids", [-1, -1])
        features = self._input("hidden_states", [-1, -1, -1], np.float32)
        mask = self._input("attention_mask", [-1, -1])
        positions = self._input("position_ids", [-1, -1])
        beams = self._input("beam_idx", [-1], np.int32)
        hidden = self._linear(features, "fc")
        both = [
            self._norm(self._embedded(tokens), "blk.0.attn_norm"),
            self._norm(hidden, "blk.0.attn_norm_2"),
        ]
        stream = both[1] if self._facts["eagle3.norm_before_residual"] else hidden
        attended = self._attention(ops.concat(both, -1), mask, positions, beams)
        stream = ops.add(stream, attended)
        mlp = self._norm(stream, "blk.0.ffn_norm")
        gated = ops.multiply(
            ops.swish(self._linear(mlp, "blk.0.ffn_gate")), self._linear(mlp, "blk.0.ffn_up")
        )
        stream = ops.add(stream, self._linear(gated, "blk.0.ffn_down"))
        stream.set_friendly_name("midlayer/add")
        logits = self._linear(self._norm(stream, "output_norm"), "output")
        results = [_named(ops.result(logits), "logits")]
        if ids is not None:
            offsets = ops.constant(ids - np.arange(len(ids)))
            offsets.set_friendly_name(_IDS)
            results.append(_named(ops.result(offsets), _IDS))
        inputs = [tokens, features, mask, positions, beams]
        model = openvino.Model(results, self._sinks, inputs, "head")
        model.set_rt_info(True, "eagle3_mode")
        # Layers whose output is taken, which enters the next ones.
        taps = [each - 1 for each in self._facts["eagle3.target_layers"]]
        model.set_rt_info(taps, "hidden_layers_list")
        return model

    def _input(self, name: str, shape: list[int], dtype: Any = np.int64) -> Any:
        return _named(self._ops.parameter(shape, dtype), name)

    def _linear(self, x: Any, name: str) -> Any:
        """Multiplies by a matrix in int8, with a scale for each `_GROUP` of a row."""
        ops = self._ops
        values = self._tensors[f"{name}.weight"]
        groups = values.reshape(len(values), -1, _GROUP)
        scales = np.abs(groups).max(-1, keepdims=True) / 127
        levels = np.rint(groups / np.where(scales, scales, 1)).astype(np.int8)
        weights = ops.multiply(
            ops.convert(ops.constant(levels), np.float16), ops.constant(scales.astype(np.float16))
        )
        whole = ops.reshape(weights, np.array(values.shape), special_zero=False)
        return ops.matmul(x, ops.convert(whole, np.float32), False, True)

    def _norm(self, x: Any, name: str) -> Any:
        ops = self._ops
        eps = self._facts["eagle3.attention.layer_norm_rms_epsilon"]
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, np.float32(eps)))
        scaled = ops.multiply(ops.divide(np.float32(1), root), x)
        return ops.multiply(scaled, self._tensors[f"{name}.weight"].reshape(1, 1, -1))

    def _embedded(self, tokens: Any) -> Any:
        """Looks tokens up in an embedding, whose place the target's takes."""
        if "token_embd.weight" in self._tensors:
            raise ValueError("the head has an embedding of its own, which is not used")
        ops = self._ops
        words = len(self._facts["tokenizer.ggml.tokens"])
        shape = np.array([words, self._facts["eagle3.embedding_length"]])
        return ops.gather(ops.broadcast(np.float32(0), shape), tokens, np.int64(0))

    def _attention(self, x: Any, mask: Any, positions: Any, beams: Any) -> Any:
        ops = self._ops
        turns = self._turns(positions)
        query = self._turned(self._split(x, "blk.0.attn_q", self._heads), turns)
        key = self._turned(self._split(x, "blk.0.attn_k", self._kv_heads), turns)
        keys = self._cached(key, "key", beams)
        values = self._cached(self._split(x, "blk.0.attn_v", self._kv_heads), "value", beams)
        # The pipeline puts paged attention in its place, which is causal without a mask.
        kept = ops.convert(ops.subtract(mask, np.int64(1)), np.float32)
        bias = ops.unsqueeze(ops.multiply(kept, np.float32(_MOST)), np.array([1, 2]))
        found = ops.scaled_dot_product_attention(query, keys, values, bias)
        rows = ops.transpose(found, np.array([0, 2, 1, 3]))
        joined = ops.reshape(rows, np.array([0, 0, self._heads * self._dims]), True)
        return self._linear(joined, "blk.0.attn_output")

    def _split(self, x: Any, name: str, heads: int) -> Any:
        """Projects rows to heads: [B, heads, T, dims]."""
        ops = self._ops
        rows = ops.reshape(self._linear(x, name), np.array([0, 0, heads, self._dims]), True)
        return ops.transpose(rows, np.array([0, 2, 1, 3]))

    def _turns(self, positions: Any) -> tuple[Any, Any]:
        """Returns cosines and sines of positions: [B, 1, T, dims]."""
        ops = self._ops
        base = self._facts["eagle3.rope.freq_base"]
        speeds = base ** -(np.arange(0, self._dims, 2) / self._dims)
        places = ops.unsqueeze(ops.convert(positions, np.float32), np.array([1, 3]))
        angles = ops.multiply(places, np.tile(speeds, 2).astype(np.float32).reshape(1, 1, 1, -1))
        return ops.cos(angles), ops.sin(angles)

    def _turned(self, x: Any, turns: tuple[Any, Any]) -> Any:
        ops = self._ops
        first, second = ops.split(x, np.int64(3), 2).outputs()
        across = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, turns[0]), ops.multiply(across, turns[1]))

    def _cached(self, x: Any, name: str, beams: Any) -> Any:
        """Puts rows behind those of before, and repeats them for the heads that read them."""
        ops = self._ops
        known = f"past_key_values.0.{name}"
        batch = ops.gather(ops.shape_of(x), np.array([0]), np.int64(0))
        shape = ops.concat([batch, np.array([self._kv_heads, 0, self._dims])], 0)
        before = ops.read_value(
            ops.broadcast(np.float32(0), shape),
            known,
            np.float32,
            [-1, self._kv_heads, -1, self._dims],
        )
        rows = ops.concat([ops.gather(before, beams, np.int64(0)), x], 2)
        self._sinks.append(ops.assign(rows, known))
        each = np.array([1, 1, self._heads // self._kv_heads, 1, 1])
        repeated = ops.broadcast(
            ops.unsqueeze(rows, np.array([2])), each, broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(repeated, np.array([0, self._heads, -1, self._dims]), True)


def _named(node: Any, name: str) -> Any:
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node
