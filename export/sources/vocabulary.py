"""Reads the tokenizer of a checkpoint, and checks that it fits the model."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from edgespec.bundle.tokenizers import parse_tokenizer
from edgespec.errors import CheckpointError
from edgespec.models.fields import ConfigFields


class TokenConfig(Protocol):
    """What a model's config says of its tokens; see `ModelConfig`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the embedding has rows for."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a text."""


class HasTokenizer(Protocol):
    """A model with a tokenizer; see `Checkpoint`."""

    @property
    def path(self) -> Path:
        """Its folder."""

    @property
    def config(self) -> TokenConfig:
        """Its config."""

    @property
    def tokenizer_files(self) -> Mapping[str, str]:
        """Contents of the tokenizer's files by name."""

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template."""

    @property
    def eos_token(self) -> str | None:
        """The tokenizer's end-of-text token."""


_SAVE = "save it with a fast tokenizer (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
_log = logging.getLogger(__name__)


def end_ids(checkpoint: HasTokenizer, tokens: dict[str, int]) -> tuple[int, ...]:
    """Returns the ids that end a text: those of the model's configs and of `eos_token`.

    Finetuned models often set the tokenizer's `eos_token` to the end that they were trained with,
    such as `<|im_end|>`, but keep the base model's ids in the configs, which they never generate.
    """
    own = tokens.get(checkpoint.eos_token or "")
    ends = checkpoint.config.eos_ids
    return ends if own is None or own in ends else (*ends, own)


def read_tokenizer(checkpoint: HasTokenizer) -> tuple[str, dict[str, int]]:
    """Reads a checkpoint's tokenizer.json.

    Added tokens whose ids exceed the model's vocabulary are removed and logged: many finetuned
    models have such a token for padding, which is never used.

    Returns:
        The text of tokenizer.json for the bundle, and the ids of all tokens.

    Raises:
        CheckpointError: if tokenizer.json is missing, has too many tokens for the model, or cannot
            be used.
    """
    path = checkpoint.path / "tokenizer.json"
    text = checkpoint.tokenizer_files.get("tokenizer.json")
    rows = checkpoint.config.vocab_size
    if text is None:
        raise CheckpointError(f"{checkpoint.path} has no tokenizer.json: {_SAVE}")
    tokens = _read_tokens(path, text)
    if not tokens:
        raise CheckpointError(f"{path} contains no tokens: download it again")
    if max(tokens.values()) >= rows:
        text = _without_rowless(checkpoint, path, text)
        tokens = _read_tokens(path, text)
    largest = max(tokens.values())
    if largest >= rows:
        raise CheckpointError(
            f"{path}: token id {largest} exceeds vocab_size {rows}: "
            "the tokenizer belongs to another model"
        )
    _check_declared(checkpoint, tokens)
    return text, tokens


def _check_declared(checkpoint: HasTokenizer, tokens: dict[str, int]) -> None:
    """Refuses tokens that chats need but that only tokenizer_config.json has.

    Slow tokenizers were saved this way. transformers adds these tokens at load; here they would be
    tokenized as ordinary text.

    Raises:
        CheckpointError: if there is such a token.
    """
    name = "tokenizer_config.json"
    text = checkpoint.tokenizer_files.get(name, "{}")
    added = ConfigFields.parse(text, str(checkpoint.path / name)).group("added_tokens_decoder")
    for id_, token in added.values.items():
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content not in tokens and _is_written(checkpoint, content):
            raise CheckpointError(
                f"{added.source}: {id_} is {content!r}, which is missing in tokenizer.json: {_SAVE}"
            )


def _without_rowless(checkpoint: HasTokenizer, path: Path, text: str) -> str:
    """Removes added tokens whose ids exceed the vocabulary, unless one of them is used."""
    content = json.loads(text)
    rows = checkpoint.config.vocab_size
    added = content.get("added_tokens") or []
    rowless = [token["content"] for token in added if token["id"] >= rows]
    around = json.dumps(content.get("post_processor"), ensure_ascii=False)
    if any(token in around or _is_written(checkpoint, token) for token in rowless):
        return text
    if rowless:
        names = ", ".join(map(repr, rowless[:4]))
        _log.warning("%s: left out %s, whose ids exceed vocab_size %d", path, names, rows)
    content["added_tokens"] = [token for token in added if token["id"] < rows]
    return json.dumps(content, ensure_ascii=False)


def _is_written(checkpoint: HasTokenizer, token: str) -> bool:
    """Returns whether a token is part of the chat template or ends texts."""
    return token == checkpoint.eos_token or token in (checkpoint.chat_template or "")


def _read_tokens(path: Path, text: str) -> dict[str, int]:
    """Reads the tokens with the library that the runtime uses, so that bundles can be loaded."""
    try:
        return parse_tokenizer(text, keep=True).backend.get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"{path} is not a tokenizer that can be used ({error}): download it again"
        ) from error
