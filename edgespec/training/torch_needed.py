"""PyTorch, which only this room uses, and only while a head is trained."""

from __future__ import annotations

from importlib.util import find_spec

from edgespec.errors import InputError


def require_torch() -> None:
    """Checks that PyTorch is installed, without importing it.

    Raises:
        InputError: if it is not.
    """
    if find_spec("torch") is None:
        raise InputError("training needs PyTorch: install edgespec[train]")
