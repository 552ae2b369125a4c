"""Adapters as PEFT saves them: adapter_config.json, and adapter_model.safetensors beside it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.adapters.updates import Adapter, LowRankUpdate
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.vision.text_part import text_name

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PICKLED = "adapter_model.bin"
_MERGE = "merge it into its model (with peft's merge_and_unload) and give the folder of the result"
# What changes the arithmetic or the weights of the model itself, and its harmless values.
_PLAIN: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "lora_bias": (None, False),
    "fan_in_fan_out": (None, False),
    "bias": (None, "none"),
    "layer_replication": (None, []),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "megatron_config": (None, {}),
    # Others, such as pissa, begin with a part of the model's weights, and take it from them.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "loftq", "orthogonal"),
}
_KEY = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.\w+)?\.weight")
_PLAIN_PATTERN = re.compile(r"\^?[\w.\\]+\$?")


def read_peft(folder: Path, file: str = WEIGHTS_FILE) -> Adapter:
    """Reads an adapter of PEFT.

    Args:
        folder: Its folder.
        file: The file of its weights.

    Raises:
        UnsupportedModelError: It is no plain LoRA of matrices.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    if not (folder / file).is_file() and (folder / _PICKLED).is_file():
        raise UnsupportedModelError(
            f"{folder / _PICKLED} is pickled, and could run any code: save the adapter again with "
            "peft's save_pretrained, which writes safetensors"
        )
    fields = ConfigFields.read(folder / CONFIG_FILE)
    fields.only(_PLAIN, _MERGE)
    tensors = SafetensorsFolder(folder, single=file)
    pairs = dict[str, dict[str, str]]()
    for name in tensors.names:
        found = _KEY.fullmatch(name)
        if found is None:
            raise UnsupportedModelError(
                f"{folder / file}: {name} is no part of a LoRA of a matrix: {_MERGE}"
            )
        pairs.setdefault(found["module"], {})[found["part"]] = name
    updates = dict[str, LowRankUpdate]()
    for module, parts in sorted(pairs.items()):
        where = f"{folder / file}: {module}"
        if len(parts) != 2:
            raise CheckpointError(f"{where} lacks lora_A or lora_B: download the adapter again")
        a = tensors.read(parts["A"])
        b = tensors.read(parts["B"])
        stored = f"{module}.weight"
        scale = _scale(fields, module, max(len(a), 1))
        updates[text_name(stored) or stored] = LowRankUpdate.of(where, a, b, scale)
    if not updates:
        raise CheckpointError(f"{folder / file} has no tensors: download the adapter again")
    return Adapter(str(folder), updates)


def _scale(fields: ConfigFields, module: str, rank: int) -> float:
    """Returns by what a module's product is multiplied: alpha / rank, or of rsLoRA its root."""
    alpha = fields.number("lora_alpha")
    patterns = fields.group("alpha_pattern")
    for pattern in patterns.values:
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise patterns.unsupported(pattern, "use names of modules, not expressions")
        name = pattern.strip("^$").replace("\\", "")
        if module == name or (not pattern.startswith("^") and module.endswith(f".{name}")):
            alpha = patterns.number(pattern)
            break
    return alpha / (math.sqrt(rank) if fields.flag("use_rslora") else rank)
