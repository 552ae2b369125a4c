"""Refuses for embedding models what only models that write text can have."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.bundle import DRAFT, TARGET, Role
from edgespec.errors import InputError
from edgespec.models import Checkpoint


def check_embeddings(checkpoints: Mapping[str, Checkpoint], skips: bool) -> None:
    """Checks the models of an export by their roles.

    Args:
        checkpoints: the models.
        skips: whether the target is to draft with some of its sublayers left out.

    Raises:
        InputError: if a draft makes embeddings, or the target does and would have a draft.
    """
    target, draft = checkpoints[TARGET], checkpoints.get(DRAFT)
    if draft is not None:
        check_draft(draft)
    if draft is not None or skips:
        check_drafted(target, str(target.path))


def check_draft(draft: Checkpoint) -> None:
    """Checks that a model can draft.

    Raises:
        InputError: if it makes embeddings.
    """
    if draft.embedding is not None:
        raise InputError(
            f"{draft.path} makes embeddings, and a draft has to write text: give another draft, or "
            "none"
        )


def check_drafted(target: Role | Checkpoint, name: str = "the bundle") -> None:
    """Checks that a target can have a draft.

    Raises:
        InputError: if it makes embeddings; calls it by this name.
    """
    if target.embedding is not None:
        raise InputError(
            f"{name} makes embeddings, and no text that a draft could be for: give a model that "
            "writes text, or leave out the draft"
        )
