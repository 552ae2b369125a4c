"""The class `LLM`: load a bundle and generate text."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from edgespec import bundle as bundles
from edgespec.api import at_once, snapshots
from edgespec.api.chat import ChatOptions, Conversation, conversation
from edgespec.api.drafting import Drafting
from edgespec.api.embedding import Embedder, Inputs
from edgespec.api.keywords import ChatKeywords, GenerationKeywords, LoadKeywords
from edgespec.api.learning import Learning
from edgespec.api.options import GenerationOptions, checked, shown
from edgespec.api.pipelining import pipelines
from edgespec.api.predictions import predicted_tokens
from edgespec.api.prompt_cache import PromptCache
from edgespec.api.prompt_files import PromptFiles
from edgespec.api.result import GenerationResult
from edgespec.api.session import Session
from edgespec.api.stream import Job, TextGeneration, TextStream
from edgespec.errors import ContextLengthError, InputError, reason
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.arrays import Floats
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import Limits
from edgespec.runtime.decoding.rounds import Rounds
from edgespec.runtime.deployment.deployment import Deployment, deploy, load, with_costs
from edgespec.runtime.deployment.options import (
    PLANNED_DRAFTS,
    RECYCLING_DRAFTS,
    LoadOptions,
    default_tree,
)
from edgespec.runtime.deployment.resolve import suited_to
from edgespec.runtime.drafters import DrafterState, Prediction, TreeBudget, drafter_state
from edgespec.runtime.drafters.drafter_state import AcceptanceCounts
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.execution.measurements import circumstances
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.infill import InfillFormat, InfillPrompt
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary_map import VocabularyMap

if TYPE_CHECKING:
    from edgespec.runtime.sampling.grammar import GrammarCompiler

_log = logging.getLogger(__name__)

# Expected accepted tokens that a tree level must add to be worth a call of the draft model if
# drafts are not planned. Below this, the call cost more than it saved on every measured pair.
_FIXED_LEAST_GAIN = 0.3


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
        asked = checked(LoadOptions, options)
        self.bundle = bundles.load(BUNDLE if bundle is None else Path(bundle))
        self.options = suited_to(self.bundle, asked)
        self.tokenizer = Tokenizer.from_folder(self.bundle.path)
        self.draft = self.options.draft
        prompts = _prompt_files(self.options)
        self.deployment = deploy(self.bundle, self.options)
        for line in self.deployment.warnings:
            _log.warning("%s", line)
        self.deployment.require_fit()
        self.lock = FairLock()
        learn = self.options.learn
        self._learning = None if learn is None else Learning(self.bundle, Path(learn), self.lock)
        self._drafter_state = self._new_state(drafter_state.recall(self.bundle))
        self.deployment = with_costs(self.deployment, always=self.draft in PLANNED_DRAFTS)
        self._loaded = load(self.deployment)
        self.context_length = self.deployment.context
        drafted = bundles.DRAFT in self._loaded
        vocabularies = VocabularyMap.of(self.bundle, self.tokenizer) if drafted else None
        self._drafting = Drafting(self.draft, self.bundle, self._loaded, vocabularies)
        # A finalizer also runs if nobody closes the model. What is learned after `forget` is lost.
        self._keep = weakref.finalize(
            self, _keep, self._drafting, self._drafter_state, self._learning
        )
        threads = self.deployment.roles[bundles.TARGET].asked.threads
        self._pipelines = pipelines(self.options.pipeline, self.bundle, self._loaded, threads)
        models = {role: loaded.model for role, loaded in self._loaded.items()}
        self._slots = Slots(
            models, sum(demand.kv for demand in self.deployment.devices), self.options.prefix_reuse
        )
        target = self._loaded[bundles.TARGET]
        self._rounds = Rounds(target.model, self.lock)
        facts = circumstances(self.bundle, "rows", target.engines, target.threads)
        self._prompts = None if prompts is None else PromptCache(prompts, facts)
        self._texts = weakref.WeakSet[TextGeneration]()
        self._beginning = threading.Lock()  # held to add a text, or to close
        self._closed = False

    @property
    def turns(self) -> FairLock:
        """An older name of `lock`."""
        return self.lock

    @property
    def plan(self) -> Deployment:
        """An older name of `deployment`."""
        return self.deployment

    @property
    def target(self) -> Model:
        """The compiled target model; hold `lock` while you use it."""
        self.require_open()
        return self._loaded[bundles.TARGET].model

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """Allowed values of a text's `draft_source`."""
        return self._drafting.sources

    def close(self) -> None:
        """Ends all texts after their current round, and frees models and caches."""
        with self._beginning:
            self._closed = True
            texts = list(self._texts)
        for text in texts:
            text.cancel()
        with self.lock:
            self._keep()
            self._slots.clear()
            self._loaded.clear()
        if self._prompts is not None:
            self._prompts.close()

    def require_open(self) -> None:
        """Checks that the model was not closed.

        Raises:
            InputError: if it was closed.
        """
        if self._closed:
            raise InputError("the model was closed: load it again")

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
            return Session(self, self._slots.add())

    def load_session(self, path: str | Path) -> Session:
        """Opens a session that `Session.save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, or belongs to another bundle or
                version.
        """
        self.require_open()
        with self.lock:
            slot = self._slots.add()
            try:
                snapshots.restore(
                    Path(path), self.bundle.digest, self._slots, slot, self.context_length
                )
            except BaseException:
                self._slots.remove(slot)
                raise
        return Session(self, slot)

    def drop(self, slot: Slot) -> None:
        """Frees the caches of a session."""
        with self.lock:
            self._slots.remove(slot)

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
        made = checked(ChatOptions, options)
        self.require_texts()
        asked = conversation(self.tokenizer, lambda: self._grammars, messages, made)
        return self._begin(asked, made, slot)

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
        try:
            pairs = [(name, text) for name, text in files]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"files is {files!r:.80}: give pairs of a name and a text, in a list"
            ) from error
        for text in (prefix, suffix, *(part for pair in pairs for part in pair)):
            if not isinstance(text, str):
                raise InputError(f"{text!r:.80} is no text: give prefix, suffix and files as str")
        length = self.context_length
        room = length - min(max_new_tokens, length // 4)
        return self._infill_format.prompt(prefix, suffix, pairs, room)

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
            prompts = at_once.tokens_of_all(prompt, self._prompt_tokens)
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
        tokens = self._prompt_tokens(prompt)
        grammar = None if made.structure is None else self._grammars.compile(*made.structure)
        return self._begin(Conversation(tokens, grammar), made, slot)

    def _begin(self, asked: Conversation, made: GenerationOptions, slot: Slot | None) -> TextStream:
        """Creates the stream of a text."""
        self.require_open()
        self.require_texts()
        tokens, grammar = self._prompt_tokens(asked.prompt), asked.grammar
        source = self._source(made)
        predicted = predicted_tokens(
            made.prediction, self.tokenizer, self.bundle.target.vocab_size
        )[: self.context_length]
        nodes = self._largest_tree(made, source, bool(predicted))
        prediction = Prediction(predicted) if predicted and nodes else None
        drafter = partial(
            self._drafting.drafter,
            learned=self._drafter_state,
            sampled=made.temperature > 0,
            source=source,
            grammar=grammar,
            prediction=prediction,
        )
        stream = TextStream(
            Job(
                tokenizer=self.tokenizer,
                prompt=tokens,
                drafter=drafter,
                pipeline=self._pipelines,
                sampler=Sampler(made, self.tokenizer.vocab_size),
                limits=Limits(
                    made.max_new_tokens,
                    self.context_length,
                    frozenset((*self.bundle.target.eos_ids, *made.stop_token_ids)),
                ),
                budget=TreeBudget(
                    nodes,
                    nodes,
                    made.tree_width if self.bundle.target.trees else 1,
                    _FIXED_LEAST_GAIN,
                ),
                end=TextEnd(made.stop, made.min_indent, made.max_time),
                logprobs=made.logprobs,
                grammar=grammar,
                prediction=prediction,
                draft_memory=self._draft_memory(source),
                learning=self._learning,
                prompts=self._prompts,
                rounds=self._rounds,
                slots=self._slots,
                slot=slot,
                lock=self.lock,
                simulated=self.options.machine,
                reader=asked.reader,
                shown=asked.shown,
            )
        )
        with self._beginning:
            self.require_open()
            self._texts.add(stream.generation)
        return stream

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
        return Embedder(self, self._slots)

    def save_draft_memory(self, path: str | Path) -> None:
        """Saves what recycling learned about this bundle's target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        with self.lock:  # texts of other threads learn while they hold it
            self._drafter_state.successors.save(Path(path), self.bundle.digest)

    def forget(self) -> None:
        """Discards what earlier texts taught, so that the next one is drafted like a first one."""
        if self._learning is not None:
            self._learning.forget()
        self._drafter_state = self._new_state()

    @cached_property
    def _infill_format(self) -> InfillFormat:
        return InfillFormat(self.tokenizer)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        from edgespec.runtime.sampling.grammar import GrammarCompiler

        target = self.bundle.target
        return GrammarCompiler(self.bundle.path, self.tokenizer.vocab_size, target.eos_ids)

    def _new_state(self, acceptance: AcceptanceCounts | None = None) -> DrafterState:
        learner = None if self._learning is None else self._learning.learner
        return DrafterState(self._successors(), acceptance, learner)

    def _successors(self) -> Successors:
        vocab_size, file = self.bundle.target.vocab_size, self.options.draft_memory
        if file is None or not Path(file).exists():
            return Successors(vocab_size)
        return Successors.load(Path(file), self.bundle.digest, vocab_size)

    def _source(self, options: GenerationOptions) -> str:
        source = self.draft if options.draft_source is None else options.draft_source
        if source not in self.draft_sources:
            raise InputError(
                f"draft_source is {source!r}: a model loaded with draft {self.draft!r} offers "
                f"{', '.join(self.draft_sources)}"
            )
        return source

    def _largest_tree(self, options: GenerationOptions, source: str, predicted: bool) -> int:
        if source == "none":
            return 0
        nodes = options.num_assistant_tokens
        if nodes is None:
            nodes = default_tree(source)
            if predicted and source in PLANNED_DRAFTS:  # nearly all of a draft may be right
                nodes = max(nodes, self.deployment.max_tree)
        if nodes > self.deployment.max_tree:
            nodes = self.deployment.max_tree
            _log.warning("draft trees are limited to %d nodes, to fit the memory", nodes)
        return nodes

    def _draft_memory(self, source: str) -> str | None:
        if source not in RECYCLING_DRAFTS:
            return None
        return "hot" if len(self._drafter_state.successors) else "cold"

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Converts a prompt to token ids, and checks that they are valid and leave room for one."""
        tokens = self.valid_ids(prompt)
        if len(tokens) >= self.context_length:
            raise ContextLengthError(
                f"the prompt is too long: its {len(tokens)} tokens and a new one are longer than "
                f"the model's context length of {self.context_length}: shorten the prompt or raise "
                "--context"
            )
        return tokens

    def valid_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Converts a prompt, or a text to embed, to token ids.

        Raises:
            InputError: if it is empty, or neither a text nor token ids of the vocabulary.
        """
        if isinstance(prompt, str):
            # An empty text would become a begin-of-text token alone, which is not a prompt.
            tokens = self.tokenizer.encode(prompt) if prompt else []
        elif isinstance(prompt, bytes | bytearray | memoryview):  # its items would look like ids
            raise InputError(f"the prompt is {bytes(prompt)!r:.40}, which is not text: decode it")
        else:
            try:
                tokens = [operator.index(token) for token in prompt]
            except TypeError as error:
                raise InputError(
                    f"the prompt is {reason(repr(prompt), 80)}: give a text, or token ids in one "
                    "flat list; messages are for chat()"
                ) from error
        if not tokens:
            raise InputError("the prompt is empty: give at least one character")
        vocabulary = self.bundle.target.vocab_size
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise InputError(f"token id {wrong[0]} is not in the vocabulary of {vocabulary}")
        return tokens


def _prompt_files(options: LoadOptions) -> PromptFiles | None:
    size = options.prompt_cache_size
    assert isinstance(size, int), "parsed by the options"
    return None if options.prompt_cache is None else PromptFiles(Path(options.prompt_cache), size)


def _keep(drafting: Drafting, state: DrafterState, learning: Learning | None) -> None:
    """Stores what texts taught, when no more will be made."""
    drafting.keep(state)
    if learning is not None:
        learning.finish()
