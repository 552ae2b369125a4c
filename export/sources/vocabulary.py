"""Whether a draft speaks the target's language, and a tokenizer its model's."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import tokenizers

from edgespec.errors import CheckpointError, ExportError
from edgespec.models import Checkpoint
from edgespec.models.fields import Fields, read_text

_SAVE = "save it with a fast tokenizer (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
_log = logging.getLogger(__name__)


def check_vocabularies(expected: dict[str, int], found: dict[str, int]) -> None:
    """Pass a draft whose tokens are the target's, whatever padding the models carry.

    Args:
        expected: the target's tokens, see `read_tokenizer`.
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


def read_tokenizer(checkpoint: Checkpoint) -> tuple[str, dict[str, int]]:
    """A checkpoint's tokenizer.json as its bundle gets it, and every token of it with its id.

    Added tokens without a row of the model are left out, and logged: many finetunes have one for
    padding, which nobody writes.

    Raises:
        CheckpointError: if tokenizer.json is missing, larger than the model, or nothing that the
            runtime could use.
    """
    path = checkpoint.tokenizer_files.get("tokenizer.json")
    if path is None:
        raise CheckpointError(f"{checkpoint.path} has no tokenizer.json: {_SAVE}")
    text, rows = read_text(path), checkpoint.config.vocab_size
    tokens = _read_tokens(path, text)
    if not tokens:
        raise CheckpointError(f"{path} holds no tokens: download it again")
    if max(tokens.values()) >= rows:
        text = _without_rowless(checkpoint, path, text)
        tokens = _read_tokens(path, text)
    largest = max(tokens.values())
    if largest >= rows:
        raise CheckpointError(
            f"{path}: token id {largest} is beyond vocab_size {rows}: "
            "the tokenizer belongs to another model"
        )
    _check_declared(checkpoint, tokens)
    return text, tokens


def _check_declared(checkpoint: Checkpoint, tokens: dict[str, int]) -> None:
    """Refuse tokens that conversations need and only the settings know, as slow tokenizers left it.

    transformers adds them when it loads; here their letters would be read.
    """
    file = checkpoint.tokenizer_files.get("tokenizer_config.json")
    if file is None:
        return
    added = Fields.read(file).group("added_tokens_decoder")
    for id_, token in added.values.items():
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content not in tokens and _is_written(checkpoint, content):
            raise CheckpointError(
                f"{added.source}: {id_} is {content!r}, which tokenizer.json lacks: {_SAVE}"
            )


def _without_rowless(checkpoint: Checkpoint, path: Path, text: str) -> str:
    """The text without the added tokens beyond the model, unless one of them is written."""
    content, rows = json.loads(text), checkpoint.config.vocab_size
    added = content.get("added_tokens") or []
    rowless = [token["content"] for token in added if token["id"] >= rows]
    around = json.dumps(content.get("post_processor"), ensure_ascii=False)
    if any(token in around or _is_written(checkpoint, token) for token in rowless):
        return text
    if rowless:
        names = ", ".join(map(repr, rowless[:4]))
        _log.warning("%s: left out %s, beyond vocab_size %d", path, names, rows)
    content["added_tokens"] = [token for token in added if token["id"] < rows]
    return json.dumps(content, ensure_ascii=False)


def _is_written(checkpoint: Checkpoint, token: str) -> bool:
    """Whether a token is part of conversations or ends texts."""
    return token == checkpoint.eos_token or token in (checkpoint.chat_template or "")


def _read_tokens(path: Path, text: str) -> dict[str, int]:
    """By the library that every run loads it with: what that refuses must not become a bundle."""
    try:
        return tokenizers.Tokenizer.from_str(text).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"{path} is not a tokenizer that can be used ({error}): download it again"
        ) from error
