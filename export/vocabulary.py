"""Whether a draft speaks the target's language."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

from edgespec.errors import CheckpointError, ExportError
from edgespec.models import Checkpoint


def check_vocabularies(expected: dict[str, int], found: dict[str, int]) -> None:
    """Pass a draft whose tokens are the target's, whatever padding the models carry.

    Args:
        expected: the target's `token_ids`.
        found: the draft's.

    Raises:
        ExportError: with the first difference.
    """
    remedy = "choose a draft of the same family"
    if len(expected) != len(found):
        raise ExportError(
            f"draft vocabulary {len(found)} differs from target {len(expected)}: {remedy}"
        )
    for token, index in expected.items():
        if found.get(token) != index:
            raise ExportError(
                f"token {token!r} is id {index} for the target and {found.get(token)} "
                f"for the draft: {remedy}"
            )


def token_ids(checkpoint: Checkpoint) -> dict[str, int]:
    """Every token of a checkpoint's tokenizer with its id, the added ones included.

    Raises:
        CheckpointError: if tokenizer.json is missing, damaged or larger than the model.
    """
    path = checkpoint.tokenizer_files.get("tokenizer.json")
    if path is None:
        raise CheckpointError(
            f"{checkpoint.path} has no tokenizer.json: save it with a fast tokenizer "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    tokens = _read_tokens(path)
    largest = max(tokens.values(), default=-1)
    if largest >= checkpoint.config.vocab_size:
        raise CheckpointError(
            f"{path}: token id {largest} is beyond vocab_size "
            f"{checkpoint.config.vocab_size}: the tokenizer belongs to another model"
        )
    return tokens


def _read_tokens(path: Path) -> dict[str, int]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = data["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pairs of token and score, ids by order
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        added = {entry["content"]: entry["id"] for entry in data.get("added_tokens", [])}
        return {token: operator.index(id_) for token, id_ in {**vocabulary, **added}.items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a tokenizer ({error}): download it again") from error
