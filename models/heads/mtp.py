"""Reads the draft head that a checkpoint holds beside the model, in tensors named `mtp.*`.

Where it is a layer behind the model's last, it was given such names (`models/heads/nextn.py`).

Multi-token prediction (DeepSeek-AI, DeepSeek-V3, 2024): the row that the target's last norm gives
for a position and the embedding of the token after it, each normalized, become one row by a
product, which goes through a layer like the target's own with attention. Embedding and output
projection are the target's. Deeper in a draft, the head's normalized output takes the place of the
target's row. As vLLM and SGLang compute it for Qwen3.5, and transformers for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.architectures import ARCHITECTURES
from edgespec.models.checkpoint import load_checkpoint
from edgespec.models.config import ModelConfig
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.heads import nextn
from edgespec.models.heads.checkpoint import HeadCheckpoint, HeadFiles, TargetSizes, check_parts
from edgespec.models.heads.head import Fusion, Head, HeadLayer
from edgespec.models.layers.elements import Linear
from edgespec.models.named import SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.models.checkpoint import Checkpoint
    from edgespec.models.families.llama import Llama
    from edgespec.models.formats.tensors import TensorSource

MTP = "mtp"
"""Name of this form of a head."""

_MODEL_TYPES = (
    "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", *nextn.MODEL_TYPES,
)  # fmt: skip
# Names of tensors in checkpoints, by those that `speculators` has for them.
_OF_CHECKPOINTS = {
    "input_proj": "fc",
    "token_layernorm": "pre_fc_norm_embedding",
    "hidden_layernorm": "pre_fc_norm_hidden",
    "final_layernorm": "norm",
}

_ALONE = "mtp_layers.0"  # with what all names begin in the layout of `speculators`

_PREFIX = f"{MTP}."
_WITHOUT = "export without the head (--draft none)"


def holds_head(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint holds a head that can be read."""
    return checkpoint.config.model_type in _MODEL_TYPES and bool(_names(checkpoint.tensors))


def checkpoint_with_head(path: Path) -> Checkpoint | None:
    """Opens a checkpoint that holds a head that can be read; None: it holds none.

    Raises:
        UnsupportedModelError: The checkpoint needs something that is not implemented.
        CheckpointError: It is damaged or inconsistent.
    """
    config = path / "config.json"
    if not is_gguf(path) and not (config.is_file() and may_hold(ConfigFields.read(config))):
        return None
    checkpoint = load_checkpoint(path)
    return checkpoint if holds_head(checkpoint) else None


def load_mtp(path: Path, target: TargetSizes) -> HeadCheckpoint:
    """Opens the head of a checkpoint, and checks it against its target.

    Raises:
        UnsupportedModelError: The head needs something that is not implemented.
        CheckpointError: It is missing, damaged, inconsistent, or of another target.
    """
    checkpoint = load_checkpoint(path)
    if not _names(checkpoint.tensors):
        raise CheckpointError(
            f"{path} has no tensors {_PREFIX}*, which a draft head consists of: download the "
            "original checkpoint, since tools that write checkpoints anew leave the head out"
        )
    return _opened(path, checkpoint.config, checkpoint.tensors, target)


def is_mtp_alone(fields: ConfigFields) -> bool:
    """Whether a config is that of a head without its model, in the layout of `speculators`."""
    return fields.get("speculators_model_type") == MTP


def load_mtp_alone(files: HeadFiles, target: TargetSizes) -> HeadCheckpoint:
    """Opens a head without its model, and checks it against its target.

    Raises:
        UnsupportedModelError: The head needs something that is not implemented.
        CheckpointError: It is damaged, inconsistent, or of another target.
    """
    fields = files.fields.group("transformer_layer_config")
    family = ARCHITECTURES.get(str(fields.get("model_type")))
    if not may_hold(fields) or family is None:
        raise fields.unsupported("model_type", f"use a head of {', '.join(_MODEL_TYPES)}")
    fields = family.usual(fields.with_defaults(family.defaults))
    config = ModelConfig.from_fields(fields, ConfigFields({}, fields.source))
    return _opened(files.path, config, files.tensors(usual_name), target)


def usual_name(name: str) -> str:
    """Returns the name of a tensor in the layout of `speculators` as checkpoints have it."""
    stem, _, kind = name.removeprefix(f"{_ALONE}.").rpartition(".")
    return f"{_PREFIX}{_OF_CHECKPOINTS.get(stem, f'layers.0.{stem}')}.{kind}"


def _opened(
    path: Path, config: ModelConfig, stored: TensorSource, target: TargetSizes
) -> HeadCheckpoint:
    _check_config(config.fields)
    _check_target(config, target)
    family = ARCHITECTURES[config.model_type]
    model = family(family.of_head(config), f"{_PREFIX}layers")
    head = _head(model, config)
    tensors = model.arranged(stored)
    unknown = _names(tensors) - head.tensors().keys()
    check_parts(tensors, unknown, "a draft head", _WITHOUT)
    check_shapes(tensors, head.tensors())
    ids = np.arange(target.tokens, dtype=np.int64)
    return HeadCheckpoint(path, head, tensors, ids, config.fields)


def _names(tensors: TensorSource) -> frozenset[str]:
    return frozenset(name for name in tensors.names if name.startswith(_PREFIX))


def _check_config(fields: ConfigFields) -> None:
    layers = dict.fromkeys(("mtp_num_hidden_layers", "num_nextn_predict_layers"), (None, 1))
    fields.only(layers, f"a head has one layer: {_WITHOUT}")
    own = {"mtp_use_dedicated_embeddings": (None, False)}
    fields.only(own, f"a head has the target's embedding: {_WITHOUT}")


def _check_target(config: ModelConfig, target: TargetSizes) -> None:
    for name, own, theirs in (
        ("num_hidden_layers", config.num_layers, target.layers),
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("head_dim", config.head_dim, 2 * len(target.inv_freq)),
    ):
        if own != theirs:
            raise config.fields.invalid(
                name, f"must be the target's, {theirs}: the head is another's"
            )


def _head(model: Llama, config: ModelConfig) -> Head:
    hidden = config.hidden_size
    return Head(
        architecture=MTP,
        taps=(config.num_layers,),
        fusion=Fusion(fc=None),
        embedding=None,
        layer=HeadLayer(
            token_norm=model.norm(f"{_PREFIX}pre_fc_norm_embedding", hidden),
            hidden_norm=model.norm(f"{_PREFIX}pre_fc_norm_hidden", hidden),
            gate=None,
            norm_before_residual=False,
            attention=model.attention(0),
            mlp=model.feed_forward(0),
            entry=Linear(f"{_PREFIX}fc.weight", 2 * hidden, hidden),
        ),
        norm=model.norm(f"{_PREFIX}norm", hidden),
        lm_head=None,
        norm_output=True,
        hidden_size=hidden,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        rope=None,
    )


def is_gguf(path: Path) -> bool:
    """Whether this is a GGUF file."""
    return path.suffix == SUFFIX and path.is_file()


def may_hold(fields: ConfigFields) -> bool:
    """Whether checkpoints of a model's family may hold a head."""
    return fields.get("model_type") in _MODEL_TYPES
