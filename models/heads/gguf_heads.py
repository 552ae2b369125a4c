"""Reads draft heads out of GGUF files, as llama.cpp's converter writes them.

DFlash, DFlash2 and DSpark are one architecture there, `dflash`, with fields and tensors of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.architectures import ARCHITECTURES
from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.gemma4 import Gemma4Reader
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.opening import whole_header
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.formats.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgespec.models.formats.tensors import TensorSource

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
_BLOCK_NAMING = Naming(
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
        "d2t": "d2t",
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


def open_gguf_head(path: Path) -> tuple[ConfigFields, TensorSource] | None:
    """Opens a GGUF file that holds a head alone; None: it holds a model.

    Returns:
        Its config, of DFlash in the flat layout and of EAGLE-3 in that of `speculators`, and its
        tensors, in which `d2t` has ids and not offsets.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata = ConfigFields(header.metadata, str(path))
    entries = header.entries
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    reader_of, naming, config_of = _KINDS[kind]
    reader = reader_of(metadata, kind, naming, entries)
    config = ConfigFields(config_of(reader), str(path))
    tensors = GgufTensors(str(path), entries, naming, reader.layers, {})
    return config, Parts(tensors, reader.rows(tensors))


def _assistant(reader: ConfigReader) -> dict[str, object]:
    """Returns the config of an assistant, of which converters leave clusters out."""
    return {
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": reader.get("embedding_length_out"),
        "text_config": reader.config(()),
    }


def _eagle3(reader: ConfigReader) -> dict[str, object]:
    return {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": reader.config(()),
        "eagle_aux_hidden_state_layer_ids": reader.get("target_layers"),
        "target_hidden_size": reader.get("target_hidden_size"),
        "norm_before_residual": bool(reader.get("norm_before_residual")),
        "norm_before_fc": bool(reader.get("norm_before_fc")),
        "draft_vocab_size": (reader.shape("output.weight") or (None,))[0],
    }


def _block(reader: ConfigReader) -> dict[str, object]:
    config = reader.config(())
    for name, stored in _ASKED.items():
        if (value := reader.get(stored)) is not None:
            config[name] = value
    layers = reader.get("target_layers")
    if not isinstance(layers, list) or not all(isinstance(each, int) for each in layers):
        raise reader.metadata.invalid(
            f"{reader.kind}.target_layers", "must be layers of the target"
        )
    form = "DFlash2" if "selector_rank" in config else "DFlash"
    markov = reader.shape("markov_w1.weight")
    trust = reader.shape("conf_proj.weight")
    config["architectures"] = [f"{'DSpark' if markov else form}DraftModel"]
    config["mask_token_id"] = reader.metadata.get("tokenizer.ggml.mask_token_id")
    config["target_layer_ids"] = [each - 1 for each in layers]  # whose output enters these
    if ids := reader.shape("d2t"):
        config["draft_vocab_size"] = ids[0]
    if markov:
        config["markov_rank"] = markov[-1]
        joined = trust[-1] if trust else 0
        config["confidence_head_with_markov"] = joined != reader.integer("embedding_length")
    return config


_KINDS: Mapping[
    str, tuple[type[ConfigReader], Naming, Callable[[ConfigReader], dict[str, object]]]
] = {
    "dflash": (_Reader, _BLOCK_NAMING, _block),
    "eagle3": (_Reader, _EAGLE3_NAMING, _eagle3),
    "gemma4-assistant": (Gemma4Reader, _ASSISTANT_NAMING, _assistant),
}
"""Architectures of heads: who reads the config, names, and what becomes of it."""
