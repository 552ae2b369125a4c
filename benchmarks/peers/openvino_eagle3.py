"""The graph of an EAGLE-3 head, as OpenVINO GenAI takes it.

The pipeline gives it the target's embedding, and moves `fc` to the target. What leaves `midlayer`
becomes an output. It finds these by the names and forms of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from peers.openvino_graph import MOST, HeadGraph, named

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDS = "d2t"


class Eagle3Graph(HeadGraph):
    """Builds the graph; see `HeadGraph`."""

    def __init__(self, facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        super().__init__(facts, tensors)
        for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
            # There, dimensions that turn together are neighbours; here, half a head apart.
            pairs = tensors[name].reshape(-1, self._dims // 2, 2, tensors[name].shape[1])
            self._tensors[name] = pairs.swapaxes(1, 2).reshape(tensors[name].shape)

    def model(self, ids: Any = None) -> Any:
        """See `HeadGraph`."""
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
        stream = both[1] if self._fact("norm_before_residual") else hidden
        attended = self._attention(ops.concat(both, -1), mask, positions, beams)
        stream = self._mlp(ops.add(stream, attended), "blk.0")
        stream.set_friendly_name("midlayer/add")
        logits = self._linear(self._norm(stream, "output_norm"), "output")
        results = [named(ops.result(logits), "logits")]
        if ids is not None:
            offsets = ops.constant(ids - np.arange(len(ids)))
            offsets.set_friendly_name(_IDS)
            results.append(named(ops.result(offsets), _IDS))
        model = self._made(results, [tokens, features, mask, positions, beams])
        model.set_rt_info(True, "eagle3_mode")
        model.set_rt_info(self._taps(), "hidden_layers_list")
        return model

    def _embedded(self, tokens: Any) -> Any:
        """Looks tokens up in an embedding, whose place the target's takes."""
        if "token_embd.weight" in self._tensors:
            raise ValueError("the head has an embedding of its own, which is not used")
        ops = self._ops
        shape = np.array([self._words(), self._fact("embedding_length")])
        return ops.gather(ops.broadcast(np.float32(0), shape), tokens, np.int64(0))

    def _attention(self, x: Any, mask: Any, positions: Any, beams: Any) -> Any:
        ops = self._ops
        turns = self._turns(positions)
        query = self._turned(self._split(x, "blk.0.attn_q", self._heads), turns)
        key = self._turned(self._split(x, "blk.0.attn_k", self._kv_heads), turns)
        value = self._split(x, "blk.0.attn_v", self._kv_heads)
        keys = self._repeated(self._cached(key, "0.key", beams))
        values = self._repeated(self._cached(value, "0.value", beams))
        # The pipeline puts paged attention in its place, which is causal without a mask.
        kept = ops.convert(ops.subtract(mask, np.int64(1)), np.float32)
        bias = ops.unsqueeze(ops.multiply(kept, np.float32(MOST)), np.array([1, 2]))
        found = ops.scaled_dot_product_attention(query, keys, values, bias)
        return self._linear(self._joined(found), "blk.0.attn_output")
