"""Draft heads that checkpoints hold as layers behind the model's last, as GLM's (DeepSeek's form).

`models/heads/mtp.py` reads them under the names that Qwen3.5 has.
"""

from __future__ import annotations

import re

MODEL_TYPES = ("glm4_moe", "glm4_moe_lite")
"""Each `model_type` whose checkpoints may hold a head so."""

COPIES = ("embed_tokens", "shared_head.head")
"""What such a layer holds of the model itself once more, which is left out."""

HEAD = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
}
"""Names of a head's tensors but for those of its layer."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(\w+)")


def draft_name(name: str, layers: int) -> str | None:
    """Returns the name of a tensor, in which a head begins with `mtp.`; None if it is a copy.

    Args:
        name: Its name in the file.
        layers: Number of the model's layers.
    """
    found = _LAYER.fullmatch(name)
    number = -1 if found is None else int(found[1]) - layers
    if found is None or number < 0:
        return name
    stem = found[2]
    kind = found[3]
    if stem in COPIES:
        return None
    return f"mtp.{HEAD.get(stem, f'layers.{number}.{stem}')}.{kind}"
