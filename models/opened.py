"""What a checkpoint is made of, in whatever format it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.pooled import PoolingConfig
    from edgespec.models.vision.reading import AnyTower

CHAT_TEMPLATE = "chat_template.jinja"

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    CHAT_TEMPLATE,
)


@dataclass(frozen=True)
class CheckpointParts:
    """The parts of a checkpoint, which are not compared with each other yet.

    Attributes:
        fields: The content of config.json.
        tensors: The weights.
        tokenizer_files: Contents of those of `TOKENIZER_FILES` that exist, by name.
        quantization: See `Checkpoint`.
        pooled: How embeddings are made with it; None: it writes text.
        tower: What makes rows of pictures; None: it reads texts alone.
    """

    fields: ConfigFields
    tensors: TensorSource
    tokenizer_files: Mapping[str, str]
    quantization: str = ""
    pooled: PoolingConfig | None = None
    tower: AnyTower | None = None
