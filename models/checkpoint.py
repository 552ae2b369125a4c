"""Opens a checkpoint folder in the format of transformers, and checks it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.config import ModelConfig
from edgespec.models.families.gemma3 import Gemma3
from edgespec.models.families.llama import Llama, Mistral
from edgespec.models.families.olmo2 import Olmo2
from edgespec.models.families.qwen2 import Qwen2
from edgespec.models.families.qwen3 import Qwen3
from edgespec.models.fields import Fields, read_text
from edgespec.models.safetensors_folder import SafetensorsFolder
from edgespec.models.tensors import TensorSource, check_shapes, equal_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.layers import Decoder

ARCHITECTURES: Mapping[str, type[Llama]] = {
    "gemma3_text": Gemma3,
    "llama": Llama,
    "mistral": Mistral,
    "olmo2": Olmo2,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
}
"""The supported architectures by `model_type`."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)

_HEAD = "lm_head.weight"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A model's description and its weights, which stay on disk until they are read.

    Attributes:
        path: The folder.
        config: The values of config.json and generation_config.json.
        decoder: The description of the model; every tensor that it names exists in its shape.
        tensors: The weights.
        tokenizer_files: Paths of the existing TOKENIZER_FILES by name.
        chat_template: Jinja source of the default chat template; None if there is none.
        eos_token: The tokenizer's end-of-text token; None if it has none.
    """

    path: Path
    config: ModelConfig
    decoder: Decoder
    tensors: TensorSource
    tokenizer_files: Mapping[str, Path]
    chat_template: str | None
    eos_token: str | None


def load_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint folder, and checks every tensor's name, dtype and shape.

    Raises:
        UnsupportedModelError: The model needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder: give a checkpoint's folder")
    _refuse_parts(path)
    fields = Fields.read(path / "config.json")
    model_type = fields.get("model_type")
    architecture = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        raise fields.unsupported("model_type", f"use one of {', '.join(ARCHITECTURES)}")
    tensors = SafetensorsFolder(path)
    config = ModelConfig.from_fields(
        fields.with_defaults(architecture.defaults), _optional(path / "generation_config.json")
    )
    decoder = architecture(config).decoder()
    _check_tensors(fields, decoder, tensors)
    _log_unused(path, decoder, tensors)
    return Checkpoint(
        path=path,
        config=config,
        decoder=decoder,
        tensors=tensors,
        tokenizer_files={name: path / name for name in TOKENIZER_FILES if (path / name).is_file()},
        chat_template=chat_template(path),
        eos_token=eos_token(path),
    )


def _optional(path: Path) -> Fields:
    return Fields.read(path) if path.exists() else Fields({}, str(path))


def _refuse_parts(path: Path) -> None:
    """Refuses adapters and GGUF files, which are published like checkpoints."""
    adapter = path / "adapter_config.json"
    if adapter.exists():
        raise Fields.read(adapter).unsupported(
            "base_model_name_or_path",
            "this is an adapter for that model: merge both (with peft's merge_and_unload) and give "
            "the folder of the result, or delete this file if it is merged already",
        )
    gguf = sorted(path.glob("*.gguf"))
    if gguf and not any(path.glob("*.safetensors")):
        raise UnsupportedModelError(
            f"{gguf[0]} is GGUF, which is not supported: give the checkpoint that it was made from"
        )


def _check_tensors(fields: Fields, decoder: Decoder, tensors: TensorSource) -> None:
    """Refuses weights that contradict the config, including `tie_word_embeddings`."""
    packed = sorted(name for name in tensors.names if name.endswith(".qweight"))
    if packed:  # early checkpoints of this kind had no quantization_config
        raise UnsupportedModelError(
            f"{tensors.place(packed[0])}: {packed[0]} is quantized by GPTQ or AWQ, which is "
            "not supported: "
            "use the original checkpoint in bf16, fp16 or fp32"
        )
    tie = "tie_word_embeddings"
    if not decoder.tied and _HEAD not in tensors.names:
        raise fields.invalid(tie, f"contradicts the weights, which lack {_HEAD}")
    check_shapes(tensors, decoder.tensors())
    if (
        decoder.tied
        and _HEAD in tensors.names
        and not equal_tensors(tensors, _HEAD, decoder.embedding)
    ):
        raise fields.invalid(tie, f"contradicts {_HEAD}, which differs from {decoder.embedding}")


def _log_unused(path: Path, decoder: Decoder, tensors: TensorSource) -> None:
    """Logs unused tensors, except RoPE's frequencies, which old checkpoints contain."""
    unused = sorted(
        name
        for name in tensors.names - decoder.tensors().keys()
        if name != _HEAD and not name.endswith(".rotary_emb.inv_freq")
    )
    if unused:
        _log.warning("%s: %d tensors are not used, %s first", path, len(unused), unused[0])


def chat_template(path: Path) -> str | None:
    """Returns a folder's chat template, from its own file or else from the tokenizer's config."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    fields = _optional(path / "tokenizer_config.json")
    template = fields.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise fields.invalid("chat_template", "must be text or a list of named templates")
    return template


def eos_token(path: Path) -> str | None:
    """Returns a folder's end-of-text token as the runtime reads it.

    tokenizer_config.json overrides special_tokens_map.json, also with an explicit null.
    """
    names = ("special_tokens_map.json", "tokenizer_config.json")
    map_, config = (_optional(path / name) for name in names)
    token = config.with_defaults(map_.values).get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
