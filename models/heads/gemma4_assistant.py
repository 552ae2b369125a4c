"""Reads Gemma 4's assistants, draft heads that read keys and values of their target.

As transformers 5.24 computes them: all rows of a draft stand at the position of the newest token,
which the target has not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.config import ModelConfig
from edgespec.models.families.gemma4 import Gemma4, Gemma4Unified
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.heads.assistant import Assistant, Clusters
from edgespec.models.heads.checkpoint import (
    HeadCheckpoint,
    HeadFiles,
    TargetSizes,
    check_agrees,
    check_parts,
)
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.sublayers import Attention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Sublayer

ASSISTANT = "gemma4_assistant"
"""Name of this form of a head."""

_FAMILIES: Mapping[str, type[Gemma4]] = {
    ASSISTANT: Gemma4,
    "gemma4_unified_assistant": Gemma4Unified,
}
_LANES = 16  # a cluster's tokens are so many, or a multiple
_ORDERING, _CLUSTERED = "masked_embedding.token_ordering", "masked_embedding.clustered"
_EMBEDDING, _PROJECTION = "model.embed_tokens.weight", "lm_head.weight"
# What an assistant must be without, by its field and the values that mean so.
_ABSENT: Mapping[str, tuple[object, ...]] = {
    "hidden_size_per_layer_input": (None, 0),
    "enable_moe_block": (None, False),
    "use_double_wide_mlp": (None, False),
    "attention_bias": (None, False),
    "quantization_config": (None,),
}

_UNUSED = ("k_proj", "v_proj", "k_norm", "v_norm")


def is_assistant(fields: ConfigFields) -> bool:
    """Whether a config is that of an assistant."""
    return "_assistant" in str(fields.get("model_type"))


def read_assistant(files: HeadFiles, target: TargetSizes) -> HeadCheckpoint:
    """Opens an assistant, and checks it against its target.

    Raises:
        UnsupportedModelError: The config asks for something that is not implemented.
        CheckpointError: Something is missing, damaged, inconsistent, or of another target.
    """
    fields = files.fields
    stored = files.tensors()
    family = _FAMILIES.get(str(fields.get("model_type")))
    text = fields.group("text_config")
    if family is None:
        raise fields.unsupported("model_type", f"use one of {', '.join(_FAMILIES)}")
    for place in (fields, text):
        place.only(_ABSENT, "use an assistant without it")
    # Described with keys and values of its own, which then become the target's.
    own = {**text.values, **dict.fromkeys(_ABSENT), "num_kv_shared_layers": 0}
    text = family.usual(ConfigFields({**family.defaults, **own}, text.source))
    config = ModelConfig.from_fields(text, ConfigFields({}, text.source))
    check_agrees(fields, {"backbone_hidden_size": target.hidden_size})
    check_agrees(text, {"vocab_size": target.vocab_size})
    decoder = _reading(config, family(config).decoder(), target)
    rotation = next(iter(decoder.ropes.values())).inv_freq
    if len(rotation) != len(target.inv_freq) or not np.allclose(rotation, target.inv_freq):
        raise text.invalid("rope_parameters", "must be the target's: the assistant is another's")
    projection = decoder.lm_head.weight if decoder.lm_head.weight in stored.names else _EMBEDDING
    clusters = None
    tensors = Parts(stored, {})
    if fields.flag("use_ordered_embeddings") and isinstance(stored, SafetensorsFolder):
        clusters = _clusters(fields, config, stored)
        part = TensorRows(projection, clusters.ordering, config.vocab_size)
        tensors = _TokenClusters(stored, {_CLUSTERED: part})
        projection = _CLUSTERED
    head = Assistant(
        architecture=ASSISTANT,
        taps=(target.layers,),
        # The embedding is the target's.
        decoder=replace(
            decoder,
            embedding=projection,
            lm_head=Linear(projection, config.hidden_size, config.vocab_size),
            tied=True,
        ),
        before=Linear("pre_projection.weight", 2 * target.hidden_size, config.hidden_size),
        after=Linear("post_projection.weight", config.hidden_size, target.hidden_size),
        clusters=clusters,
    )
    kept = {_ORDERING, _EMBEDDING, _PROJECTION, *head.tensors()}
    unknown = (each for each in tensors.names - kept if not _is_unused(each))
    check_parts(tensors, unknown, "an assistant")
    check_shapes(tensors, head.tensors())
    return HeadCheckpoint(files.path, head, tensors, np.arange(target.tokens, dtype=np.int64))


def _reading(config: ModelConfig, decoder: Decoder, target: TargetSizes) -> Decoder:
    """Returns the layers without keys and values: each reads the target's last one of its kind."""
    pools = {pool.window: pool for pool in target.pools}
    layers: list[tuple[Sublayer, ...]] = []
    for layer in decoder.layers:
        attention, *rest = layer
        assert isinstance(attention, Attention), "the family has it first"
        pool = pools.get(attention.window)
        dim = -(-attention.head_dim // _LANES) * _LANES
        if pool is None or (pool.kv_heads, pool.dim) != (attention.kv_heads, dim):
            raise CheckpointError(
                f"{config.fields.source}: layer {len(layers)} reads {attention.kv_heads} heads of "
                f"{attention.head_dim} of {attention.window or 'all'} positions, and no layer of "
                "the target has them: the assistant is another's"
            )
        # As transformers masks: of the text before a row, one position more than the target sees.
        mask = attention.mask if pool.window is None else f"window:{pool.window + 1}"
        attention = replace(attention, k=None, v=None, k_norm=None, v_norm=None, mask=mask)
        layers.append((replace(attention, source=pool.layer), *rest))
    return replace(decoder, layers=tuple(layers))


def _clusters(fields: ConfigFields, config: ModelConfig, tensors: SafetensorsFolder) -> Clusters:
    count = fields.integer("num_centroids", 2048)
    chosen = fields.integer("centroid_intermediate_top_k", 32, most=count)
    if config.vocab_size % (count * _LANES):
        raise fields.unsupported(
            "num_centroids", f"clusters must have a multiple of {_LANES} tokens, all as many"
        )
    ordering = tensors.read_integers(_ORDERING)
    if not np.array_equal(np.sort(ordering), np.arange(config.vocab_size)):
        raise CheckpointError(
            f"{tensors.place(_ORDERING)}: {_ORDERING} must hold each token below "
            f"{config.vocab_size} once: download the assistant again"
        )
    centroids = Linear("masked_embedding.centroids.weight", config.hidden_size, count)
    return Clusters(centroids, chosen, ordering)


def _is_unused(name: str) -> bool:
    """Whether a tensor makes keys or values of its own, which an assistant never uses."""
    return name.rpartition("self_attn.")[2].partition(".")[0] in _UNUSED


@dataclass(frozen=True, eq=False)
class _TokenClusters(Parts):
    """Parts of a matrix all over it, which is therefore read as a whole, once."""

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        if name not in self.parts:
            return super().read_rows(name, start, stop)
        rows: NDArray[np.float32] = self._whole[self.parts[name].rows[start:stop]]
        return rows

    @cached_property
    def _whole(self) -> NDArray[np.float32]:
        [part] = self.parts.values()
        return self.tensors.read(part.stored)
