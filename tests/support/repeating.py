"""A model whose greedy texts repeat themselves without end."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoints import make_checkpoint

from edgespec import export
from edgespec.export import ExportOptions

_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def make_repeating(folder: Path) -> Path:
    """Make a bundle of random weights that follow each token by one and the same other."""
    more = {"max_position_embeddings": 2048, "eos_token_id": None}
    model = make_checkpoint(folder / "checkpoint", "llama", **more)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # what tokens before change
                parameter.zero_()
    model.save_pretrained(folder / "checkpoint")
    (folder / "checkpoint" / "chat_template.jinja").write_text(_TEMPLATE)
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
    return folder / "bundle"
