"""The graph of a DFlash drafter, as OpenVINO GenAI takes it.

A call reads the target's rows of tokens that are new in the text, whose keys and values it keeps,
and a block behind them: the newest token and masks. The pipeline gives it the target's embedding,
and the target's output projection where it has none of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from peers.openvino_graph import MOST, HeadGraph, named

TOKENS = "tokens"  # what a call proposes, as we ask for it
_MASK_TOKEN = "tokenizer.ggml.mask_token_id"


class DFlashGraph(HeadGraph):
    """Builds the graph; see `HeadGraph`."""

    def model(self, ids: Any = None) -> Any:
        """See `HeadGraph`."""
        hidden, taps = self._fact("embedding_length"), self._taps()
        block = self._input("inputs_embeds", [1, -1, hidden], np.float32)
        features = self._input("hidden_states", [1, -1, len(taps) * hidden], np.float32)
        mask = self._input("attention_mask", [1, -1])  # not used: of one text it has only ones
        positions = self._input("position_ids", [1, -1])
        beams = self._input("beam_idx", [1], np.int32)
        anchored = self._fact("sample_from_anchor")
        # The library asks for one row more than tokens, and reads as many from the first row on.
        places, stream = (
            self._rows(each, 0, -1) if anchored else each for each in (positions, block)
        )
        both = _Both(
            self._norm(self._linear(features, "fc"), "enc.output_norm"),
            self._ops.gather(self._ops.shape_of(features), np.array([1]), np.int64(0)),
            self._turns(places),
            beams,
        )
        for number in range(self._fact("block_count")):
            stream = self._layer(stream, both, number)
        rows = self._norm(stream if anchored else self._rows(stream, 1), "output_norm")
        result = self._result(rows, ids)
        model = self._made([result], [block, features, mask, positions, beams])
        model.set_rt_info(True, "dflash_mode")
        model.set_rt_info(str(self._facts[_MASK_TOKEN]), ["dflash", "mask_token_id"])
        model.set_rt_info(",".join(map(str, taps)), ["dflash", "target_layer_ids"])
        model.set_rt_info(self._fact("block_size") - (not anchored), ["dflash", TOKENS])
        return model

    def _layer(self, stream: Any, both: _Both, number: int) -> Any:
        ops = self._ops
        name = f"blk.{number}"
        x = self._norm(stream, f"{name}.attn_norm")
        _, turns = zip(*(self._parted(each, both) for each in both.turns), strict=True)
        query = self._turned(self._split(x, f"{name}.attn_q", self._heads), turns)
        read = ops.concat([both.context, x], 1)
        key = self._turned(self._split(read, f"{name}.attn_k", self._kv_heads), both.turns)
        value = self._split(read, f"{name}.attn_v", self._kv_heads)
        seen = [
            self._seen(rows, f"{number}.{part}", both)
            for part, rows in (("key", key), ("value", value))
        ]
        found = self._joined(ops.scaled_dot_product_attention(query, *seen))
        return self._mlp(ops.add(stream, self._linear(found, f"{name}.attn_output")), name)

    def _seen(self, rows: Any, name: str, both: _Both) -> Any:
        """Puts a block's rows behind those of the whole context, which alone are kept."""
        context, block = self._parted(rows, both)
        known = self._cached(context, name, both.beams)
        return self._repeated(self._ops.concat([known, block], 2))

    def _parted(self, rows: Any, both: _Both) -> list[Any]:
        """Returns the context's rows of [1, heads, T, dims], and the block's."""
        lengths = self._ops.concat([both.length, np.array([-1])], 0)
        parts: list[Any] = self._ops.variadic_split(rows, np.int64(2), lengths).outputs()
        return parts

    def _rows(self, x: Any, begin: int, end: int = sys.maxsize) -> Any:
        """Returns some rows of [1, T, ...]."""
        along = (np.array([each]) for each in (begin, end, 1, 1))
        return self._ops.slice(x, *along)

    def _result(self, rows: Any, ids: Any) -> Any:
        ops = self._ops
        if "output.weight" not in self._tensors:
            return named(ops.result(rows), "last_hidden_state")
        logits = self._linear(rows, "output")
        if ids is not None:  # the library takes rows for those of the target's whole vocabulary
            places = np.full(self._words(), len(ids))
            places[ids] = np.arange(len(ids))
            end = np.array([0, 0, 1])
            more = ops.pad(logits, np.zeros_like(end), end, "constant", np.float32(-MOST))
            logits = ops.gather(more, places, np.int64(2))
        return named(ops.result(logits), "logits")


@dataclass(frozen=True)
class _Both:
    """What all layers read of a context and of the block behind it.

    Attributes:
        context: rows of what is new of it, [1, n, hidden].
        length: n.
        turns: cosines and sines of the context's rows and the block's.
        beams: which text is which, of one.
    """

    context: Any
    length: Any
    turns: tuple[Any, Any]
    beams: Any
