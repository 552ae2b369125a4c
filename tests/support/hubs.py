"""Stand-ins for the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import huggingface_hub
import pytest


def list_files(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    """Has every repository list these files."""
    siblings = [SimpleNamespace(rfilename=name) for name in names]
    told = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr(huggingface_hub, "model_info", lambda _, **__: told)
