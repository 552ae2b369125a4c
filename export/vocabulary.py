"""Whether a draft speaks the target's language."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from edgespec.errors import CheckpointError, ExportError
from edgespec.models import Checkpoint
from edgespec.models.fields import read_text


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


def end_ids(checkpoint: Checkpoint, tokens: dict[str, int]) -> tuple[int, ...]:
    """What ends a text: the ids of the model's configs, and the tokenizer's `eos_token`.

    Finetunes often give the tokenizer the end that they were trained on, `<|im_end|>`, and leave
    the base model's in the configs, which they never write.
    """
    own = tokens.get(checkpoint.eos_token or "")
    ends = checkpoint.config.eos_ids
    return ends if own is None or own in ends else (*ends, own)


def token_ids(checkpoint: Checkpoint) -> dict[str, int]:
    """Every token of a checkpoint's tokenizer with its id, the added ones included.

    Raises:
        CheckpointError: if tokenizer.json is missing, larger than the model, or nothing that the
            runtime could use.
    """
    path = checkpoint.tokenizer_files.get("tokenizer.json")
    if path is None:
        raise CheckpointError(
            f"{checkpoint.path} has no tokenizer.json: save it with a fast tokenizer "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    tokens = _read_tokens(path)
    if not tokens:
        raise CheckpointError(f"{path} holds no tokens: download it again")
    largest = max(tokens.values())
    if largest >= checkpoint.config.vocab_size:
        raise CheckpointError(
            f"{path}: token id {largest} is beyond vocab_size "
            f"{checkpoint.config.vocab_size}: the tokenizer belongs to another model"
        )
    return tokens


def _read_tokens(path: Path) -> dict[str, int]:
    """By the library that every run loads it with: what that refuses must not become a bundle."""
    text = read_text(path)
    try:
        return tokenizers.Tokenizer.from_str(text).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"{path} is not a tokenizer that can be used ({error}): download it again"
        ) from error
