"""The text part of checkpoints that also read pictures: their config and their tensors' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.fields import ConfigFields

if TYPE_CHECKING:
    from collections.abc import Collection

COMPOSITES = (
    "embedding_gemma2", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "idefics3", "internvl",
    "lfm2_vl", "llama4", "mistral3", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
    "qwen3_vl_moe", "smolvlm",
)  # fmt: skip
"""Each `model_type` whose config has the text part's in `text_config`."""

# Of those whose published configs have the text part's fields beside `vision_config`: its type.
_FLAT = {"qwen2_5_vl": "qwen2_5_vl_text"}
# Fields that the whole model's config has for its text part, too.
_SHARED = ("eos_token_id", "quantization_config", "tie_word_embeddings")

# Published files have the first two, and EmbeddingGemma 2's the third; the fourth is what
# transformers calls it in memory. The fifth is Idefics3's, those with their own name Qwen2.5-VL's,
# and the last a draft head, see `models/heads/mtp.py`.
_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.": "model.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "model.embed_tokens.": "model.embed_tokens.",
    "model.layers.": "model.layers.",
    "model.norm.": "model.norm.",
    "lm_head.": "lm_head.",
    "mtp.": "mtp.",
}


def text_name(name: str) -> str | None:
    """Returns the name of a tensor in a model of text alone; None if it is no part of it."""
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return None


def text_group(fields: ConfigFields) -> ConfigFields:
    """Returns the fields of the text part alone, of the config of the whole model.

    Raises:
        CheckpointError: `text_config` is not an object.
    """
    own = _FLAT.get(str(fields.get("model_type")))
    if own is not None and fields.get("text_config") is None:
        return fields.changed(model_type=own)
    return fields.group("text_config")


def text_fields(fields: ConfigFields, names: Collection[str]) -> ConfigFields:
    """Returns the text part's config.

    Many of these configs do not say whether the output projection is the embedding: it is where
    the files have no projection.

    Args:
        fields: The config of the whole model.
        names: Names of the text part's tensors, see `text_name`.

    Raises:
        CheckpointError: `text_config` is not an object.
    """
    text = text_group(fields)
    shared = {name: fields.get(name) for name in _SHARED if fields.get(name) is not None}
    tied = {"tie_word_embeddings": "lm_head.weight" not in names}
    return ConfigFields({**tied, **text.values, **shared}, text.source)
