"""The API: a model that is loaded, and the texts and vectors that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast, overload

from edgespec import bundle as bundles
from edgespec.llm import at_once, session_files
from edgespec.llm.at_once import Prompt
from edgespec.llm.chat import ChatOptions
from edgespec.llm.embedding import Embedder, Inputs
from edgespec.llm.instance import ModelInstance
from edgespec.llm.keywords import ChatKeywords, GenerationKeywords, LoadKeywords
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.messages import Messages
from edgespec.llm.options import GenerationOptions, conversational
from edgespec.llm.ranking import RankedDocument, Reranker
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import Result
from edgespec.llm.sessions import Session
from edgespec.llm.stream import Stream
from edgespec.llm.submission import submit
from edgespec.runtime.arrays import Floats
from edgespec.runtime.plan import MIB
from edgespec.runtime.speculation.generation import AUTO
from edgespec.runtime.text.infill import InfillPrompt
from edgespec.store.making import bundle_name, bundle_of
from edgespec.system.options import shown
from edgespec.system.processes import Unpicklable

if TYPE_CHECKING:
    from edgespec.export import Progress


class LLM(Unpicklable):
    """A loaded bundle that generates text, or makes embeddings or ranks texts.

    Any number of threads may use it at once: their texts share passes of the target. It is also a
    context manager that closes the model.

    Args:
        bundle: folder of a bundle; or a model of which one is made, once, in the user's cache
            folder: a checkpoint's folder, a GGUF file, owner/name or owner/name:FILE.gguf on the
            Hub, or a name that `edgespec search` or `edgespec models` lists, such as qwen3.5:4b.
            None: the embedded pair, a small model of Python code.
        progress: called with target or draft, how much of it is done and of how much while a bundle
            is made, by the thread that loads; None: bars show it where stderr is a terminal.
        options: fields of `edgespec.llm.load.options.LoadOptions`: `device`, `draft`,
            `draft_device`, `context`, `memory`, `threads` and more.

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
    def __init__(
        self,
        bundle: str | Path | None = None,
        *,
        progress: Progress | None = None,
        **options: Unpack[LoadKeywords],
    ) -> None:
        made = LoadOptions.of(options)
        draft = made.draft_model
        found = bundles.load(bundle_of(bundle, draft, progress))
        self._open(ModelInstance(found, made if draft is None else replace(made, draft=AUTO)))

    def _open(self, loaded: ModelInstance) -> None:
        self._loaded = loaded
        self.bundle = loaded.bundle
        self.options = loaded.options
        self.tokenizer = loaded.tokenizer
        self.plan = loaded.plan
        self.draft = self.options.draft
        self.draft_sources = loaded.sources.names
        self.sampling = conversational(self.bundle.manifest.sampling)
        self.context_length = self.plan.context

    @property
    def engines(self) -> dict[str, str]:
        """What runs the target, and the draft if it is a model, as results name it; by role."""
        return {role: each.device for role, each in self._loaded.models.items()}

    def warm_up(self) -> None:
        """Makes first passes of each model, which read the weights from the disk, and times some.

        Call it on a thread of its own while nobody wants a text yet, as `edgespec chat` and
        `edgespec serve` do; a text that begins meanwhile waits for one of them at most.

        Raises:
            DeviceError: if a pass fails.
            InputError: if the model was closed.
        """
        self._loaded.warm_up()

    def close(self) -> None:
        """Ends all texts behind the pass that is being made, and frees the models' memory."""
        self._loaded.close()

    def __repr__(self) -> str:
        engines = ", ".join(f"{role} on {engine}" for role, engine in self.engines.items())
        sizes = (f"{each.total / MIB:,.0f} MiB of {each.memory}" for each in self.plan.demands)
        plan = f"context {self.context_length:,}, {', '.join(sizes)}"
        how = f"{engines}, draft {self.draft}, {plan}" if engines else "closed"
        return f"<LLM {bundle_name(self.bundle)}: {how}>"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def session(self) -> Session:
        """Opens a session, which keeps what it has computed from one text to the next.

        Raises:
            InputError: if the model was closed.
        """
        self._loaded.engine.require_open()
        return Session(self._loaded, self._loaded.engine.target.sequence([]))

    def load_session(self, path: str | Path) -> Session:
        """Opens a session that `Session.save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, or belongs to another bundle or
                version, or the model was closed.
            MemoryLimitError: if texts that are being made need the memory.
        """
        loaded = self._loaded
        loaded.engine.require_open()
        tensors = session_files.read_tensors(Path(path), self.bundle.digest)
        kept = loaded.engine.target.sequence([])
        most = self.context_length
        with loaded.engine.exclusive():
            session_files.restore(Path(path), tensors, loaded.working_models, kept, most)
        return Session(loaded, kept)

    def forget(self) -> None:
        """Forgets what earlier texts taught the drafters, and what they have computed."""
        self._loaded.engine.forget()

    def save_draft_memory(self, path: str | Path) -> None:
        """Saves what recycling learned about the target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        with self._loaded.engine.exclusive():
            self._loaded.sources.recycling.successors.save(Path(path), self.bundle.digest)

    def submit(self, request: GenerationRequest) -> Stream:
        """Prepares a text, which begins when its stream is read.

        `generate`, `chat` and the others are this for options as keyword arguments.

        Raises:
            InputError: if the prompt or its messages are invalid, the model was closed or makes
                embeddings, or an option names what the model does not have.
            ContextLengthError: if the prompt does not fit the context.
        """
        return submit(self._loaded, request)

    @shown(ChatOptions)
    def chat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Result:
        """Generates an answer in a conversation.

        Args:
            messages: a text, which is a user's message; or dicts with `role` and `content`, a text
                or parts of the types text and image, and `tool_calls` and `tool_call_id`, as in
                OpenAI's API. A model that reads images takes them as `{"type": "image", "image":
                ...}`: a path, the bytes of a file, a data URL or a picture of Pillow; or as
                OpenAI's `image_url`.
            options: fields of `edgespec.llm.chat.ChatOptions`: `tools`, `thinking_budget`, and
                those of `generate`.

        Raises:
            InputError: if the model has no chat template, the template refuses the messages, or it
                knows no tools; otherwise as `generate`.
        """
        return self.chat_stream(messages, **options).finish()

    @shown(ChatOptions)
    def chat_stream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Stream:
        """Generates an answer as `chat`, piece by piece; see `Stream.pieces`."""
        return self.submit(GenerationRequest(messages, ChatOptions.of(options)))

    @shown(ChatOptions)
    async def achat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Result:
        """Generates an answer as `chat`, while the event loop goes on.

        A task that is cancelled cancels the text, and its slots are free behind the pass under way.
        """
        from edgespec.llm.asynchronous import read_to_end

        return await read_to_end(partial(self.chat_stream, messages, **options))

    def chat_tokens(self, messages: Messages) -> list[int]:
        """Converts a conversation to a prompt of token ids with the model's chat template.

        Raises:
            InputError: if the model has no chat template, or the template refuses the messages.
        """
        return self._loaded.prompts.chat_tokens(messages)

    @shown(GenerationOptions)
    def infill(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        **options: Unpack[GenerationKeywords],
    ) -> Result:
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
        made = GenerationOptions.of(options)
        prompt = self.infill_prompt(prefix, suffix, files, made.max_new_tokens)
        made = replace(made, stop_token_ids=(*made.stop_token_ids, *prompt.stop_ids))
        return self.submit(GenerationRequest(prompt.tokens, made)).finish()

    def infill_prompt(
        self,
        prefix: str,
        suffix: str = "",
        files: Sequence[tuple[str, str]] = (),
        max_new_tokens: int | None = GenerationOptions.max_new_tokens,
    ) -> InfillPrompt:
        """Converts what is around a cursor, as `infill` takes it, to a prompt for `stream`.

        Of texts that are too long for the context, what is near the cursor is kept, and the last
        files (see `InfillFormat.prompt`). Up to a quarter of the context is left for new tokens.

        Room is left for `max_new_tokens`, or that quarter if they are None.

        Raises:
            InputError: if the model's tokenizer has no tokens for filling in, or a text is none.
            ContextLengthError: if the context has no room.
        """
        return self._loaded.prompts.of_infill(prefix, suffix, files, max_new_tokens)

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[GenerationKeywords]) -> Result: ...

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Unpack[GenerationKeywords]
    ) -> list[Result]: ...

    @shown(GenerationOptions)
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        **options: Unpack[GenerationKeywords],
    ) -> Result | list[Result]:
        """Generates a text, or those of several prompts at once.

        Args:
            prompt: text, or token ids, which are used unchanged; or a list of such prompts. Of
                these, `LoadOptions.sessions` are made at once, or 8 if that is 1.
            options: fields of `edgespec.llm.options.GenerationOptions`: `max_new_tokens`,
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
        made = GenerationOptions.of(options)
        if at_once.are_prompts(prompt):
            self._loaded.engine.require_open()
            prompts = at_once.tokens_of_all(prompt, self._loaded.prompts.tokens)
            parallel = self.options.sessions if self.options.sessions > 1 else at_once.TEXTS_AT_ONCE
            return at_once.results_of_all(
                prompts, lambda tokens: self.submit(GenerationRequest(tokens, made)), parallel
            )
        return self.submit(GenerationRequest(cast("Prompt", prompt), made)).finish()

    @shown(GenerationOptions)
    async def agenerate(self, prompt: Prompt, **options: Unpack[GenerationKeywords]) -> Result:
        """Generates a text as `generate`, while the event loop goes on; see `achat`.

        For several prompts, `asyncio.gather` calls of this.
        """
        from edgespec.llm.asynchronous import read_to_end

        return await read_to_end(partial(self.stream, prompt, **options))

    @shown(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationKeywords]) -> Stream:
        """Generates a text as `generate`, piece by piece.

        Iterate over the stream, then read its `result`.
        """
        return self.submit(GenerationRequest(prompt, GenerationOptions.of(options)))

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

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_n: int | None = None,
        instruction: str | None = None,
    ) -> list[RankedDocument]:
        """Ranks documents by how well they answer a query.

        A model that ranks reads each document with the query. One that writes text is asked whether
        the document meets the query, as Qwen3-Reranker is, and the shares of yes and no count.

        Args:
            query: the query.
            documents: the documents; of one that does not fit the context, the end is left out.
            top_n: number of documents to return; None: all.
            instruction: what a model that writes text, or one that reads an instruction such as
                Qwen3-Reranker, is to judge by; None: whether the document answers a web search, or
                what the model's files say.

        Returns:
            The best documents first: their numbers and scores from 0 to 1.

        Raises:
            InputError: if the model makes embeddings, or a text is empty or none.
            ContextLengthError: if the query does not fit the context.
        """
        return self.reranker(instruction).ranked(query, documents, top_n)

    def reranker(self, instruction: str | None = None) -> Reranker:
        """Returns what ranks documents; see `rerank`.

        Raises:
            InputError: if the model makes embeddings, or was closed.
        """
        self._loaded.engine.require_open()
        return Reranker(self._loaded, instruction)

    @property
    def embedder(self) -> Embedder:
        """What makes embeddings.

        Raises:
            InputError: if the model generates text, or was closed.
        """
        self._loaded.engine.require_open()
        return Embedder(self._loaded)


def inside(llm: LLM) -> ModelInstance:
    """Returns what lies behind a model, for what measures it; no part of the API."""
    return llm._loaded


def around(loaded: ModelInstance) -> LLM:
    """Returns the API of what is loaded already; no part of the API itself."""
    llm = LLM.__new__(LLM)
    llm._open(loaded)
    return llm
