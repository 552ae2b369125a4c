"""The tokenizer: text to tokens and back, and conversations to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from edgespec.errors import BundleError, InputError, caught_panics
from edgespec.runtime.text.tokenizer_files import (
    CHAT_TEMPLATE,
    config_of,
    existing,
    folder_files,
    parsed_file,
    parsed_files,
    template_of,
)

if TYPE_CHECKING:
    from edgespec.bundle import Bundle
    from edgespec.runtime.text.template.chat import ChatTemplate

_LONG = 4096  # ids that take a while to decode


class Tokenizer:
    """A model's tokenizer, as its `tokenizer.json` defines it.

    Args:
        backend: The tokenizer of the `tokenizers` library, without truncation and padding.
        config: The content of `tokenizer_config.json`.
        chat_template: The jinja2 source, if the model has one; compiled at its first use.
        tool_template: The source of another one for conversations with tools, if the model has one.
        vocab_size: One more than the highest id; None: it is counted, which takes a while of many.

    Attributes:
        vocab_size: One more than the highest id, added tokens included. A model may have more
            logits (padding).
        special_ids: Ids that `decode` leaves out.
        bos_id: The beginning-of-text token, if there is one.
        eos_id: The tokenizer's end-of-text token, if there is one. A bundle's manifest names all
            tokens that end a text.
        unknown_id: The token for text that the vocabulary lacks, if there is one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        chat_template: str | None = None,
        tool_template: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self._backend = backend
        self._special_tokens = _special_tokens(config)
        self.bos_id = self._id_of(self._special_tokens.get("bos_token"))
        self.eos_id = self._id_of(self._special_tokens.get("eos_token"))
        # Templates write special tokens that only the config may mark as such.
        special = _special_ids(backend)
        backend.add_special_tokens(
            [
                self._special_tokens[name]
                for name, id_ in (("bos_token", self.bos_id), ("eos_token", self.eos_id))
                if id_ is not None and id_ not in special
            ]
        )
        self.special_ids = _special_ids(backend)
        self.vocab_size = _vocab_size(backend) if vocab_size is None else vocab_size
        self.unknown_id = self._id_of(self._special_tokens.get("unk_token"))
        # Most tokenizers add a BOS in their post-processor; this is for those without one.
        self._prepended: list[int] = []
        if config.get("add_bos_token") and self.bos_id is not None:
            self._prepended = [self.bos_id] * (self.bos_id not in backend.encode("").ids)
        # What embedding models read behind a text, where the post-processor does not add it.
        self._appended: list[int] = []
        if config.get("add_eos_token") and self.eos_id is not None:
            self._appended = [self.eos_id] * (self.eos_id not in backend.encode("").ids)
        # One that is empty says nothing of conversations: the model completes prompts.
        self._chat_source = _unless_blank(chat_template)
        self._tool_source = _unless_blank(tool_template) or self._chat_source

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template, so that `chat` works."""
        return self._chat_source is not None

    def special_token(self, name: str) -> str | None:
        """Returns the text of a special token that the config names, such as `prefix`, if any."""
        token = self._special_tokens.get(f"{name}_token")
        return token if self._id_of(token) is not None else None

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer of the `tokenizers` library, which must not be changed."""
        return self._backend

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Returns the tokenizer that a `tokenizer.json` alone defines, of whatever file name.

        Raises:
            BundleError: If the file is missing or damaged.
        """
        backend, vocab_size = parsed_file(existing(path), path)
        return cls(backend, {}, vocab_size=vocab_size)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Returns the tokenizer of a model or bundle folder.

        Args:
            folder: Folder with `tokenizer.json`, and if the model has them `tokenizer_config.json`,
                `special_tokens_map.json` and `chat_template.jinja`.

        Raises:
            BundleError: If `tokenizer.json` is missing or a file is damaged.
        """
        return cls.from_files(folder_files(folder), folder)

    @classmethod
    def of(cls, bundle: Bundle) -> Tokenizer:
        """Returns the tokenizer of a bundle, of those files that its manifest lists.

        Raises:
            BundleError: If a file is missing or damaged, or there are tokens that the model lacks.
        """
        made = cls.from_files(folder_files(bundle.path, bundle.manifest.tokenizer), bundle.path)
        made.require_below(bundle.target.vocab_size, bundle.path)
        return made

    def require_below(self, rows: int, source: Path) -> None:
        """Checks that a model with so many tokens has all of these.

        Raises:
            BundleError: If it has not.
        """
        if (highest := max(self.vocab_size - 1, *self.encode(""), 0)) >= rows:
            raise BundleError(
                f"{source}: its tokenizer has a token {highest}, but the model has {rows} tokens: "
                "fetch or export it again"
            )

    @classmethod
    def from_files(cls, files: Mapping[str, str], source: Path) -> Tokenizer:
        """Returns the tokenizer of these contents of files.

        Args:
            files: Contents of the files of `from_folder` by name.
            source: Where they come from, for messages.

        Raises:
            BundleError: If `tokenizer.json` is missing or a file is damaged.
        """
        backend, vocab_size = parsed_files(files, source)
        config = config_of(files, source)
        template = files.get(CHAT_TEMPLATE, template_of(config, "default"))
        return cls(backend, config, template, template_of(config, "tool_use"), vocab_size)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Returns the token ids of `text`.

        Args:
            text: The text. Special tokens that are written out in it become their ids.
            add_special: Whether to add what the model expects around a text, usually a BOS. Use
                False for text from `chat`, which holds its own.

        Raises:
            InputError: If `text` holds lone surrogates, as undecodable input does.
        """
        _require_unicode(text)
        try:
            with caught_panics():
                # Other than `encode`, it lets other threads go on meanwhile, and keeps no places in
                # the text, which takes most of the time and memory of long ones.
                [found] = self._backend.encode_batch_fast([text], add_special_tokens=add_special)
                ids = found.ids
        except RuntimeError as error:
            raise InputError(f"the tokenizer cannot read this text: {error}") from error
        return [*self._prepended, *ids] if add_special else ids

    def pair(self, first: str, second: str, most: int) -> tuple[list[int], list[int]]:
        """Returns the token ids of a pair of texts, and which of them each is of, 0 or 1.

        Args:
            first: The first text.
            second: The second one, whose end is left out where both do not fit.
            most: Number of tokens that fit; the first text alone may have more.

        Raises:
            InputError: If a text holds lone surrogates, as undecodable input does.
        """
        for each in (first, second):
            _require_unicode(each)
        with caught_panics():
            one, other = (
                self._backend.encode(each, add_special_tokens=False) for each in (first, second)
            )
            around = self._backend.num_special_tokens_to_add(is_pair=True)
            other.truncate(max(most - len(one.ids) - around, 0))
            found = self._backend.post_process(one, other)
        return found.ids, found.type_ids

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest token, as the vocabulary writes it."""
        return max(len(token.encode()) for token in self._backend.get_vocab())

    def ended(self, ids: list[int]) -> list[int]:
        """Returns the ids of a text with its end-of-text token, if the config asks for one.

        Only embedding models read it: generation goes on where the text ends.
        """
        return [*ids, *self._appended]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Returns the text of token ids; bytes that are not UTF-8 become U+FFFD."""
        try:
            if len(ids) < _LONG:
                return self._backend.decode(list(ids), skip_special_tokens=skip_special)
            # Other than `decode`, it lets other threads go on meanwhile.
            return self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]
        except BaseException:  # every round decodes, so the context is only entered for an error
            with caught_panics():
                raise

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens that were added to the vocabulary, such as special ones, by content."""
        added = self._backend.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items()}

    @property
    def chat_source(self) -> str:
        """The source of the chat template, for tools if there are two; empty if there is none."""
        return self._tool_source or ""

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns a conversation in the model's chat template (see `ChatTemplate.render`).

        Raises:
            InputError: If the model has no chat template, or an invalid one, or it refuses the
                messages.
        """
        template = self._chat_template if tools is None else self._tool_template
        return template.render(messages, add_generation_prompt, tools, variables)

    def chat_fault(self) -> str | None:
        """Returns what is wrong with the chat template; None if nothing is or there is none."""
        if self._chat_source is None:
            return None
        from edgespec.runtime.text.template.chat import template_fault

        return template_fault(self._chat_source, self._special_tokens)

    def require_messages_shown(self, source: Path) -> None:
        """Checks that no chat template leaves out what the user says.

        Args:
            source: where the templates come from, for messages.

        Raises:
            BundleError: if one does.
        """
        from edgespec.runtime.text.template.chat import LEFT_OUT, template_fault

        for template in {self._chat_source, self._tool_source}:
            if template is not None and template_fault(template, self._special_tokens) == LEFT_OUT:
                raise BundleError(
                    f"{source}: the chat template shows nothing of what the user says: repair or "
                    "remove it where the model came from, and export again"
                )

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return self._compiled(self._chat_source)

    @cached_property
    def _tool_template(self) -> ChatTemplate:
        return self._compiled(self._tool_source)

    def _compiled(self, source: str | None) -> ChatTemplate:
        if source is None:
            raise InputError("the model has no chat template: give it a plain prompt")
        from edgespec.runtime.text.template.chat import ChatTemplate

        return ChatTemplate(source, self._special_tokens)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text is not valid Unicode at character {error.start}: give UTF-8"
        ) from error


def _unless_blank(source: str | None) -> str | None:
    return source if source and not source.isspace() else None


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    """Returns one more than the highest id: the number of tokens, unless ids have gaps."""
    # Where no id below the number of tokens is missing, none lies above it. Reading all tokens at
    # once would take three times as long, while no other thread runs.
    count = backend.get_vocab_size(with_added_tokens=True)
    if all(backend.id_to_token(id_) is not None for id_ in range(count)):
        return count
    return 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)


def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    added = backend.get_added_tokens_decoder()
    return frozenset(id_ for id_, token in added.items() if token.special)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns `bos_token`, `eos_token` and the like as text.

    The config holds them as strings or as objects.
    """
    tokens: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens
