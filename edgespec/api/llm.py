"""Loads a bundle's native graphs, and generates texts with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, overload

from edgespec import bundle as bundles
from edgespec.api import at_once, session_files
from edgespec.api.chat import ChatOptions, Conversation
from edgespec.api.embedding import Embedder, Inputs, engine_row
from edgespec.api.generation import AnswerText, GenerationStream
from edgespec.api.images import Viewer
from edgespec.api.loading import (
    MAX_DRAFT_TOKENS,
    PLANNED_DRAFT_TOKENS,
    RECYCLING_DRAFTS,
    LoadOptions,
)
from edgespec.api.models import planned
from edgespec.api.options import GenerationOptions, conversational
from edgespec.api.predictions import predicted_tokens
from edgespec.api.prompt_files import PromptFiles
from edgespec.api.prompts import USUAL, Prompts
from edgespec.api.result import GenerationResult
from edgespec.api.sessions import Session
from edgespec.api.sources import Sources, stored_prompts
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.library.making import bundle_of
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.growth import TreeDrafter
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import Sequence as Kept
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import AUTO, NO_DRAFT, Limits, Request
from edgespec.runtime.text.infill import InfillPrompt
from edgespec.runtime.text.streaming import TextEnd
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.machine import default_threads
from edgespec.system.options import checked, shown


class LLM:
    """A loaded bundle that generates text, or makes embeddings if its model is for that.

    Any number of threads may use it at once: their texts share passes of the target. It is also a
    context manager that closes the model.

    Args:
        bundle: folder of a bundle; or a model of which one is made, once, in the user's cache
            folder: a checkpoint's folder, a GGUF file, owner/name or owner/name:FILE.gguf on the
            Hub, or a name that `edgespec models` lists. None: the embedded pair, a small model of
            Python code.
        options: fields of `edgespec.api.loading.LoadOptions`: `device`, `draft`, `draft_device`,
            `context`, `memory`, `threads` and more.

    Attributes:
        bundle: the loaded bundle.
        options: the options in use.
        tokenizer: tokenizer of the target.
        plan: where the models run, and their memory.
        context_length: maximum number of tokens of prompt and output together.
        sampling: options by which conversations are sampled: what the model's authors ask for, or
            what is usual. `edgespec chat` and the server begin with them; `generate` and `chat` are
            greedy unless options say otherwise, as `llm.chat(messages, **llm.sampling)` does.
        draft: draft source, one of `DRAFTS`.
        draft_sources: allowed values of a text's `draft_source`.
        engine: continues sequences.
        models: the models by role.

    Raises:
        BundleError: if the bundle cannot be used.
        CheckpointError: if a bundle is to be made of a model that is damaged or not supported.
        ExportError: if a model cannot be downloaded, or its bundle cannot be written.
        DeviceError: if a device does not exist or cannot run the model.
        InputError: if an option is out of range, the bundle has no draft model for the draft
            source, or the folder of the prompt cache cannot be used.
        MemoryLimitError: if memory has no room for the context.
        TypeError: if an option is unknown.
    """

    @shown(LoadOptions)
    def __init__(self, bundle: str | Path | None = None, **options: Any) -> None:
        self.options = checked(LoadOptions, options)
        draft = self.options.draft_model
        self.bundle = bundles.load(bundle_of(bundle, draft))
        if draft is not None:
            self.options = replace(self.options, draft=AUTO)
        self.draft = self.options.draft
        self.sampling = conversational(self.bundle.manifest.sampling)
        self.tokenizer = Tokenizer.of(self.bundle)
        if self.bundle.target.embedding is None:
            self.tokenizer.require_messages_shown(self.bundle.path)
        files = PromptFiles.asked_for(self.options, self.bundle)
        self.plan = planned(self.bundle, self.options)
        self.context_length = self.plan.context
        self._sources = Sources(self.bundle, self.options, self.tokenizer, self.plan)
        self.models = self._sources.models
        threads = self.options.threads or default_threads()
        placed = self.plan.roles[TARGET]
        native = placed.native and placed.behind is None
        viewer = Viewer(self.bundle, self.tokenizer, threads, native)
        self._prompts = Prompts(self.bundle, self.tokenizer, self.context_length, viewer)
        self._stored = None if files is None else stored_prompts(files, self.bundle)
        target = self.models[TARGET]
        self.engine = Engine(target, self._sources.drafters, self._stored, self._sources.timings)
        self.draft_sources = self._sources.names

    def warm_up(self) -> None:
        """Makes first passes of each model, which read the weights from the disk, and times some.

        Call it on a thread of its own while nobody wants a text yet, as `edgespec chat` and
        `edgespec serve` do; a text that begins meanwhile waits for one of them at most.

        Raises:
            DeviceError: if a pass fails.
            InputError: if the model was closed.
        """
        for model in list(self.models.values()):
            with self.engine.exclusive():
                rows = Rows(model.sequence([]), [0], [AFTER], [0])
                model.forward([rows])
                rows.accept([])
        self.engine.measure()

    def close(self) -> None:
        """Ends all texts behind the pass that is being made, and frees the models' memory."""
        self.engine.close()
        if self._stored is not None:
            self._stored.close()
        self.models.clear()

    def require_open(self) -> None:
        """Checks that the model was not closed.

        Raises:
            InputError: if it was closed.
        """
        self.engine.require_open()

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
        """Opens a session, which keeps what it has computed from one text to the next.

        Raises:
            InputError: if the model was closed.
        """
        self.require_open()
        return Session(self, self.engine.target.sequence([]))

    def load_session(self, path: str | Path) -> Session:
        """Opens a session that `Session.save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, or belongs to another bundle or
                version, or the model was closed.
            MemoryLimitError: if texts that are being made need the memory.
        """
        self.require_open()
        tensors = session_files.load(Path(path), self.bundle.digest)
        kept, most = self.engine.target.sequence([]), self.context_length
        with self.engine.exclusive():
            session_files.restore(Path(path), tensors, self.working_models, kept, most)
        return Session(self, kept)

    @property
    def working_models(self) -> dict[str, Model]:
        """The target, and the draft model unless its device has failed."""
        drafting = [each.model for each in self.engine.drafters if isinstance(each, TreeDrafter)]
        return {n: each for n, each in self.models.items() if n == TARGET or each in drafting}

    def drop(self, kept: Kept) -> None:
        """Gives up what a session keeps."""
        if self.models:  # else all was given up
            with self.engine.exclusive():
                self.engine.target.prefixes.drop(kept)

    def forget(self) -> None:
        """Forgets what earlier texts taught the drafters, and what they have computed."""
        self.engine.forget()

    def save_draft_memory(self, path: str | Path) -> None:
        """Saves what recycling learned about the target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        with self.engine.exclusive():
            self._sources.recycling.successors.save(Path(path), self.bundle.digest)

    @shown(ChatOptions)
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> GenerationResult:
        """Generates an answer in a conversation.

        Args:
            messages: dicts with `role` and `content`, a text or parts of the types text and image,
                and `tool_calls` and `tool_call_id`, as in OpenAI's API. A model that reads images
                takes them as `{"type": "image", "image": ...}`: a path, the bytes of a file, a data
                URL or a picture of Pillow; or as OpenAI's `image_url`.
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
        kept: Kept | None = None,
        /,
        **options: Any,
    ) -> GenerationStream:
        """Generates an answer in a conversation piece by piece; see `GenerationStream.pieces`.

        Args:
            messages: see `chat`.
            kept: see `stream`.
            options: see `chat`.

        Raises:
            EdgespecError: as `chat`.
        """
        self.require_open()
        made = checked(ChatOptions, options)
        self.require_texts()
        return self._begin(self._prompts.of_chat(messages, made), made, kept)

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Converts a conversation to a prompt of token ids with the model's chat template.

        Raises:
            InputError: if the model has no chat template, or the template refuses the messages.
        """
        return self._prompts.chat_tokens(messages)

    @shown(GenerationOptions)
    def infill(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        **options: Any,
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
        return self.stream(prompt.tokens, **options).finish()

    def infill_prompt(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        max_new_tokens: int | None = GenerationOptions.max_new_tokens,
    ) -> InfillPrompt:
        """Converts what is around a cursor to a prompt, for `stream`.

        Of texts that are too long for the context, what is near the cursor is kept, and the last
        files (see `InfillFormat.prompt`). Up to a quarter of the context is left for new tokens.

        Args:
            prefix: see `infill`.
            suffix: see `infill`.
            files: see `infill`.
            max_new_tokens: number of new tokens to leave room for; None: that quarter.

        Raises:
            InputError: if the model's tokenizer has no tokens for filling in, or a text is none.
            ContextLengthError: if the context has no room.
        """
        return self._prompts.of_infill(prefix, suffix, files, max_new_tokens)

    @overload
    def generate(self, prompt: str | Sequence[int], **options: Any) -> GenerationResult: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Any
    ) -> list[GenerationResult]: ...

    @shown(GenerationOptions)
    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[list[int]],
        **options: Any,
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
        kept: Kept | None = None,
        /,
        **options: Any,
    ) -> GenerationStream:
        """Generates a text piece by piece: iterate over the stream, then read its `result`.

        Args:
            prompt: see `generate`.
            kept: what a session keeps; for internal use, see `Session.stream`.
            options: see `generate`.

        Raises:
            EdgespecError: as `generate`.
        """
        self.require_open()
        made = checked(GenerationOptions, options)
        asked = self._prompts.of_text(prompt, made)
        self.require_texts()
        return self._begin(asked, made, kept)

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
        embedding = self.bundle.target.embedding
        pooling = "" if embedding is None else embedding.pooling
        return Embedder(self, self._prompts, partial(engine_row, self.engine, pooling))

    def _begin(
        self, asked: Conversation, made: GenerationOptions, kept: Kept | None
    ) -> GenerationStream:
        source = self.options.draft if made.draft_source is None else made.draft_source
        if source not in self.draft_sources:
            raise InputError(
                f"draft_source is {source!r}: a model loaded with draft {self.options.draft!r} "
                f"offers {', '.join(self.draft_sources)}"
            )
        prediction = made.prediction
        if isinstance(prediction, str):  # the context holds no more of it
            prediction = prediction[: self.context_length * USUAL]
        predicted = predicted_tokens(prediction, self.tokenizer, self.tokenizer.vocab_size)
        if source == NO_DRAFT:  # which makes no use of it
            predicted = []
        nodes = MAX_DRAFT_TOKENS if predicted else PLANNED_DRAFT_TOKENS
        if made.num_assistant_tokens is not None:
            nodes = made.num_assistant_tokens
        limits = Limits(
            made.max_new_tokens or self.context_length,
            self.context_length,
            frozenset((*self.bundle.target.eos_ids, *made.stop_token_ids)),
            0 if source == NO_DRAFT else nodes,
            # Of a graph that another program exported, each branch is a call of its own.
            1 if self.bundle.target.native.adopted else made.tree_width,
        )
        size = self.tokenizer.vocab_size
        if unknown := [token for token, _ in made.logit_bias if token >= size]:
            raise InputError(f"logit_bias names token {unknown[0]}: give ids below {size}")
        sampler = Sampler(made, size)
        request = Request(
            asked.prompt, sampler, limits, source, asked.grammar, made.logprobs,
            predicted[: self.context_length] if limits.max_nodes else (), kept,
            turns=asked.turns, look=asked.look,
        )  # fmt: skip
        hidden = self.tokenizer.special_ids - asked.shown.keys()
        added = self.tokenizer.added_tokens.items() if made.stop else ()
        special = {token: id_ for token, id_ in added if id_ in hidden}
        end = TextEnd(made.stop, made.min_indent, made.max_time, special)
        models, memory = list(self.working_models.values()), None
        if source in RECYCLING_DRAFTS:
            memory = "hot" if len(self._sources.recycling.successors) else "cold"
        text = AnswerText(asked, self.tokenizer, end, limits.stop_ids)

        def again(seed: int | None) -> GenerationStream:
            known = replace(made, seed=seed, prediction=predicted or None)
            return self._begin(asked.again(self.tokenizer), known, kept)

        return GenerationStream(self.engine, request, text, models, memory, again)
