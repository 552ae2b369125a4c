"""Reads drafters of blocks out of GGUF files, as llama.cpp's converter writes them.

DFlash, DFlash2 and DSpark are one architecture there, `dflash`, with fields and tensors of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import Fields
from edgespec.models.gguf.config import ConfigReader
from edgespec.models.gguf.names import Naming
from edgespec.models.gguf.opening import whole_header
from edgespec.models.gguf.tensors import GgufTensors
from edgespec.models.named import SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

_KIND = "dflash"
_NAMING = Naming(
    "qwen3",
    layers="layers",
    layer={
        "attn_conv_base": "attention_conv.base_kernel",
        "attn_conv_proj": "attention_conv.kernel_projection",
        "ffn_conv_base": "mlp_conv.base_kernel",
        "ffn_conv_proj": "mlp_conv.kernel_projection",
    },
    model={
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "fc": "fc",
        "enc.output_norm": "hidden_norm",
        "markov_w1": "markov_head.markov_w1",
        "markov_w2": "markov_head.markov_w2",
        "conf_proj": "confidence_head.proj",
        "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
        "selector_successor.weight": "candidate_selector.successor_codebook",
        "selector_hidden": "candidate_selector.hidden_projection",
    },
    window=True,
    only={
        "logit_scale": (None, 1.0),
        "final_logit_softcapping": (None, 0.0),
        "embedding_scale": (None, 1.0),
        "attention.value_scale": (None, 1.0),
    },
)
_ASKED = {
    "block_size": "block_size",
    "conv_kernel_size": "conv_kernel_size",
    "conv_group_size": "conv_group_size",
    "selector_rank": "selector_rank",
    "selector_top_k": "selector_top_k",
    "sample_from_anchor": "sample_from_anchor",
    "enable_confidence_head": "has_confidence_head",
    "is_causal": "attention.causal",
}


class _Reader(ConfigReader):
    """Reads the config of a drafter, whose embedding is the target's."""

    def vocabulary(self) -> int:
        """Returns the number of tokens of the file's tokenizer, which is the target's."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list) else 0


def is_gguf_block(path: Path) -> bool:
    """Whether a path is a GGUF file that holds a drafter of blocks."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    return whole_header(path).metadata.get("general.architecture") == _KIND


def open_gguf_block(path: Path) -> tuple[Fields, GgufTensors]:
    """Opens a drafter; returns its config, as the flat layout has it, and its tensors.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata, entries = Fields(header.metadata, str(path)), header.entries
    reader = _Reader(metadata, _KIND, _NAMING, entries)
    config = reader.config(())
    for name, stored in _ASKED.items():
        if (value := reader.get(stored)) is not None:
            config[name] = value
    layers = reader.get("target_layers")
    if not isinstance(layers, list) or not all(isinstance(each, int) for each in layers):
        raise metadata.invalid(f"{_KIND}.target_layers", "must be layers of the target")
    form = "DFlash2" if "selector_rank" in config else "DFlash"
    config["architectures"] = [
        "DSparkDraftModel" if "markov_w1.weight" in entries else f"{form}DraftModel"
    ]
    config["mask_token_id"] = metadata.get("tokenizer.ggml.mask_token_id")
    config["target_layer_ids"] = [each - 1 for each in layers]  # whose output enters these
    if (markov := entries.get("markov_w1.weight")) is not None:
        config["markov_rank"] = markov.shape[-1]
        joined = entries["conf_proj.weight"].shape[-1] if "conf_proj.weight" in entries else 0
        config["confidence_head_with_markov"] = joined != reader.integer("embedding_length")
    return Fields(config, str(path)), GgufTensors(str(path), entries, _NAMING, reader.layers, {})
