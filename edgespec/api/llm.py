"""The class `LLM`: load a bundle and generate text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast, overload

from edgespec.api import at_once, loading, snapshots
from edgespec.api.chat import ChatOptions
from edgespec.api.embedding import Embedder, Inputs, slot_row
from edgespec.api.keywords import ChatKeywords, GenerationKeywords, LoadKeywords
from edgespec.api.options import GenerationOptions, checked, shown
from edgespec.api.prompts import Prompts
from edgespec.api.result import GenerationResult
from edgespec.api.session import Session
from edgespec.api.stream import TextStream
from edgespec.api.texts import Texts
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.slots import Slot
from edgespec.runtime.text.infill import InfillPrompt


class LLM:
    """A loaded bundle that generates text, or makes embeddings if its model is for that.

    Any number of threads may use it at once: their texts share passes of the target. It is also a
    context manager that closes the model.

    Args:
        bundle: folder of a bundle; None for the embedded pair, a small model of Python code.
        options: fields of `edgespec.runtime.deployment.options.LoadOptions`: `device`, `draft`,
            `draft_device`, `context`, `memory`, `threads` and more.

    Attributes:
        options: the options in use.
        bundle: the loaded bundle.
        tokenizer: the bundle's tokenizer.
        deployment: engines, text limits and memory use.
        lock: lock that is held during each round of a text. Hold it while you use `target` or a
            session's caches yourself.
        draft: draft source, one of `DRAFTS`.
        context_length: maximum number of tokens of prompt and output together.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if a device does not exist or cannot run the model.
        InputError: if an option is out of range.
        MemoryLimitError: if the model does not fit the memory.
        TypeError: if an option is unknown.
    """

    @shown(LoadOptions)
    def __init__(self, bundle: str | Path | None = None, **options: Unpack[LoadKeywords]) -> None:
        loaded = loading.load(bundle, checked(LoadOptions, options))
        self.bundle = loaded.bundle
        self.options = loaded.options
        self.tokenizer = loaded.tokenizer
        self.deployment = loaded.deployment
        self.lock = loaded.lock
        self.draft = self.options.draft
        self.context_length = self.deployment.context
        self._loaded = loaded.roles
        self._learned = loaded.learned
        self._prompts = Prompts(self.bundle, self.tokenizer, self.context_length)
        self._texts = Texts(loaded)

    @property
    def target(self) -> Model:
        """The compiled target model; hold `lock` while you use it."""
        self.require_open()
        return self._loaded[TARGET].model

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """Allowed values of a text's `draft_source`."""
        return self._texts.drafting.sources

    def warm_up(self) -> None:
        """Makes a first call of target and draft model, in which engines arrange the weights.

        This takes seconds with large models, and the first text after loading takes longer by it.
        Call it on a thread of its own while nobody wants a text yet, as `edgespec chat` and
        `edgespec serve` do; a text that begins meanwhile waits.

        Raises:
            DeviceError: if an engine fails.
            InputError: if the model was closed.
        """
        self._texts.warm_up()

    def close(self) -> None:
        """Ends all texts after their current round, and frees models and caches."""
        self._texts.close()

    def require_open(self) -> None:
        """Checks that the model was not closed.

        Raises:
            InputError: if it was closed.
        """
        self._texts.require_open()

    def require_texts(self) -> None:
        """Checks that the model generates text.

        Raises:
            InputError: if it makes embeddings.
        """
        if self.bundle.target.embedding is not None:
            raise InputError(
                "the model makes embeddings, and no text: use LLM.embed or /v1/embeddings, or a "
                "bundle of a model that writes text"
            )

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def session(self) -> Session:
        """Opens a session, which keeps its caches from one text to the next.

        Raises:
            InputError: if the model was closed.
        """
        self.require_open()
        with self.lock:
            return Session(self, self._texts.shared.slots.add())

    def load_session(self, path: str | Path) -> Session:
        """Opens a session that `Session.save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, or belongs to another bundle or
                version.
        """
        self.require_open()
        slots, most = self._texts.shared.slots, self.context_length
        with self.lock:
            return Session(self, snapshots.restored(Path(path), self.bundle.digest, slots, most))

    def drop(self, slot: Slot) -> None:
        """Frees the caches of a session."""
        with self.lock:
            self._texts.shared.slots.remove(slot)

    @shown(ChatOptions)
    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatKeywords]
    ) -> GenerationResult:
        """Generates an answer in a conversation.

        Args:
            messages: dicts with `role` and `content`, as the model's chat template expects them,
                and `tool_calls` and `tool_call_id` as in OpenAI's API.
            options: fields of `edgespec.api.chat.ChatOptions`: `tools`, `thinking_budget`, and
                those of `generate`.

        Raises:
            InputError: if the model has no chat template, the template refuses the messages, or it
                knows no tools; otherwise as `generate`.
        """
        return self.chat_stream(messages, **options).finish()

    @shown(ChatOptions)
    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        slot: Slot | None = None,
        /,
        **options: Unpack[ChatKeywords],
    ) -> TextStream:
        """Generates an answer in a conversation piece by piece; see `TextStream.pieces`.

        Args:
            messages: see `chat`.
            slot: see `stream`.
            options: see `chat`.

        Raises:
            EdgespecError: as `chat`.
        """
        self.require_open()
        made = checked(ChatOptions, options)
        self.require_texts()
        return self._texts.begin(self._prompts.of_chat(messages, made), made, slot)

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Converts a conversation to a prompt of token ids with the model's chat template.

        Raises:
            InputError: if the model has no chat template, or the template refuses the messages.
        """
        return self.tokenizer.encode(self.tokenizer.chat(messages), add_special=False)

    @shown(GenerationOptions)
    def infill(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        **options: Unpack[GenerationKeywords],
    ) -> GenerationResult:
        """Generates the text at a cursor.

        Args:
            prefix: text before the cursor.
            suffix: text behind it.
            files: names and texts of other files to go by, the most useful last.
            options: see `generate`.

        Raises:
            InputError: if the model's tokenizer has no tokens for filling in; otherwise as
                `generate`.
        """
        made = checked(GenerationOptions, options)
        prompt = self.infill_prompt(prefix, suffix, files, made.max_new_tokens)
        options["stop_token_ids"] = (*made.stop_token_ids, *prompt.stop_ids)
        return self.generate(prompt.tokens, **options)

    def infill_prompt(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        max_new_tokens: int = GenerationOptions.max_new_tokens,
    ) -> InfillPrompt:
        """Converts what is around a cursor to a prompt, for `stream`.

        Of texts that are too long for the context, what is near the cursor is kept, and the last
        files (see `InfillFormat.prompt`). Up to a quarter of the context is left for new tokens.

        Args:
            prefix: see `infill`.
            suffix: see `infill`.
            files: see `infill`.
            max_new_tokens: number of new tokens to leave room for.

        Raises:
            InputError: if the model's tokenizer has no tokens for filling in, or a text is none.
            ContextLengthError: if the context has no room.
        """
        return self._prompts.of_infill(prefix, suffix, files, max_new_tokens)

    @overload
    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> GenerationResult: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Unpack[GenerationKeywords]
    ) -> list[GenerationResult]: ...

    @shown(GenerationOptions)
    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[list[int]],
        **options: Unpack[GenerationKeywords],
    ) -> GenerationResult | list[GenerationResult]:
        """Generates a text, or those of several prompts at once.

        Args:
            prompt: text, or token ids, which are used unchanged; or a list of such prompts. Of
                these, `LoadOptions.sessions` are made at once, or 8 if that is 1.
            options: fields of `edgespec.api.options.GenerationOptions`: `max_new_tokens`,
                `temperature`, `seed`, `stop`, `json_schema` and more.

        Returns:
            The text; for a list of prompts, a list of their texts in the same order, each of which
            is what its prompt alone gives.

        Raises:
            InputError: if a prompt is empty or invalid, or an option is out of range. All prompts
                of a list are checked before the first text begins.
            ContextLengthError: if a prompt does not fit the context.
            EdgespecError: if a text fails, after the others of a list have ended.
            TypeError: if an option is unknown.
        """
        if at_once.are_prompts(prompt):
            self.require_open()
            prompts = at_once.tokens_of_all(prompt, self._prompts.tokens)
            parallel = self.options.sessions if self.options.sessions > 1 else at_once.TEXTS_AT_ONCE
            return at_once.results_of_all(
                prompts, lambda tokens: self.stream(tokens, **options), parallel
            )
        return self.stream(cast("at_once.Prompt", prompt), **options).finish()

    @shown(GenerationOptions)
    def stream(
        self,
        prompt: str | Sequence[int],
        slot: Slot | None = None,
        /,
        **options: Unpack[GenerationKeywords],
    ) -> TextStream:
        """Generates a text piece by piece: iterate over the stream, then read its `result`.

        Args:
            prompt: see `generate`.
            slot: caches of a session; for internal use, see `Session.stream`.
            options: see `generate`.

        Raises:
            EdgespecError: as `generate`.
        """
        self.require_open()
        made = checked(GenerationOptions, options)
        asked = self._prompts.of_text(prompt, made)
        self.require_texts()
        return self._texts.begin(asked, made, slot)

    def embed(
        self, texts: Inputs, dimensions: int | None = None, prompt_name: str | None = None
    ) -> Floats:
        """Makes embeddings, if the model is for that: vectors that are near where texts are alike.

        Args:
            texts: a text, or token ids, which are used unchanged; or a list of such.
            dimensions: how many numbers to keep of each vector, the first ones; what the
                checkpoint normalizes is normalized again. None: all.
            prompt_name: name of the checkpoint's prompt to put before texts, such as query; None:
                its default one, if it has one.

        Returns:
            [N, dimensions] float32: a vector for each text, in their order.

        Raises:
            InputError: if the model generates text, a text is empty or invalid, or there is no such
                prompt or so many dimensions.
            ContextLengthError: if a text does not fit the context.
        """
        embedder = self.embedder
        return embedder.vectors(embedder.tokens(texts, prompt_name), dimensions)

    @property
    def embedder(self) -> Embedder:
        """What makes embeddings.

        Raises:
            InputError: if the model generates text, or was closed.
        """
        self.require_open()
        return Embedder(self, self._prompts, partial(slot_row, self, self._texts.shared.slots))

    def save_draft_memory(self, path: str | Path) -> None:
        """Saves what recycling learned about this bundle's target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        with self.lock:  # texts of other threads learn while they hold it
            self._learned.save(Path(path))

    def forget(self) -> None:
        """Discards what earlier texts taught, so that the next one is drafted like a first one."""
        self._learned.forget()
