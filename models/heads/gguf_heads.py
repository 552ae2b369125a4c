"""Reads draft heads out of GGUF files, as llama.cpp's converter writes them.

DFlash, DFlash2 and DSpark are one architecture there, `dflash`, with fields and tensors of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.fields import Fields
from edgespec.models.gguf.architectures import ARCHITECTURES
from edgespec.models.gguf.config import ConfigReader
from edgespec.models.gguf.gemma4 import Gemma4Reader
from edgespec.models.gguf.names import Naming
from edgespec.models.gguf.opening import whole_header
from edgespec.models.gguf.tensors import GgufTensors
from edgespec.models.named import SUFFIX
from edgespec.models.parts import Parts

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.models.tensors import TensorSource

_BLOCK, _EAGLE3, _ASSISTANT = "dflash", "eagle3", "gemma4-assistant"
_GEMMA4 = ARCHITECTURES["gemma4"]
_ASSISTANT_NAMING = replace(
    _GEMMA4,
    model={
        **_GEMMA4.model,
        "nextn.pre_projection": "pre_projection",
        "nextn.post_projection": "post_projection",
    },
)
_EAGLE3_NAMING = Naming(
    "llama",
    layers="layers",
    layer={"attn_norm_2": "hidden_norm"},
    model={
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "fc": "fc",
        "enc.output_norm": "input_norm",
        "d2t": "d2t",
    },
    interleaved=True,
)
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
    """Reads the config of a head, whose vocabulary is the target's, and perhaps its embedding."""

    def vocabulary(self) -> int:
        """Returns the number of tokens of the file's tokenizer, which is the target's."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list) else 0


def is_gguf_block(path: Path) -> bool:
    """Whether a path is a GGUF file that holds a drafter of blocks."""
    return _architecture(path) == _BLOCK


def is_gguf_eagle3(path: Path) -> bool:
    """Whether a path is a GGUF file that holds an EAGLE-3 head."""
    return _architecture(path) == _EAGLE3


def is_gguf_assistant(path: Path) -> bool:
    """Whether a path is a GGUF file that holds a Gemma 4 assistant."""
    return _architecture(path) == _ASSISTANT


def open_gguf_assistant(path: Path) -> tuple[Fields, GgufTensors]:
    """Opens an assistant, of which converters leave clusters out; returns config and tensors.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata, entries = Fields(header.metadata, str(path)), header.entries
    reader = Gemma4Reader(metadata, _ASSISTANT, _ASSISTANT_NAMING, entries)
    config = {
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": reader.get("embedding_length_out"),
        "text_config": reader.config(()),
    }
    tensors = GgufTensors(str(path), entries, _ASSISTANT_NAMING, reader.layers, {})
    return Fields(config, str(path)), tensors


def _architecture(path: Path) -> object:
    if path.suffix != SUFFIX or not path.is_file():
        return None
    return whole_header(path).metadata.get("general.architecture")


def open_gguf_eagle3(path: Path) -> tuple[Fields, TensorSource]:
    """Opens a head; returns its config, as the layout of `speculators` has it, and its tensors.

    In them `d2t` has ids, and not offsets.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata, entries = Fields(header.metadata, str(path)), header.entries
    reader = _Reader(metadata, _EAGLE3, _EAGLE3_NAMING, entries)
    config: dict[str, object] = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": reader.config(()),
        "eagle_aux_hidden_state_layer_ids": reader.get("target_layers"),
        "target_hidden_size": reader.get("target_hidden_size"),
        "norm_before_residual": bool(reader.get("norm_before_residual")),
        "norm_before_fc": bool(reader.get("norm_before_fc")),
        "draft_vocab_size": (reader.shape("output.weight") or (None,))[0],
    }
    tensors = GgufTensors(str(path), entries, _EAGLE3_NAMING, reader.layers, {})
    return Fields(config, str(path)), Parts(tensors, reader.rows(tensors))


def open_gguf_block(path: Path) -> tuple[Fields, GgufTensors]:
    """Opens a drafter; returns its config, as the flat layout has it, and its tensors.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata, entries = Fields(header.metadata, str(path)), header.entries
    reader = _Reader(metadata, _BLOCK, _NAMING, entries)
    config = reader.config(())
    for name, stored in _ASKED.items():
        if (value := reader.get(stored)) is not None:
            config[name] = value
    layers = reader.get("target_layers")
    if not isinstance(layers, list) or not all(isinstance(each, int) for each in layers):
        raise metadata.invalid(f"{_BLOCK}.target_layers", "must be layers of the target")
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
