"""VaultGemma."""

from __future__ import annotations

from edgespec.models.families.gemma2 import Gemma2


class VaultGemma(Gemma2):
    """Gemma 2 without norms of what attention and MLP give."""

    models = "VaultGemma 1B"
    norms_behind = ("", "")
