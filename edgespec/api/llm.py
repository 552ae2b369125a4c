"""The public API: load a bundle, give it prompts, get text."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgespec import bundle as bundles
from edgespec.api import snapshots
from edgespec.api.drafting import Drafting
from edgespec.api.keywords import GenerationKeywords, LoadKeywords
from edgespec.api.options import GenerationOptions, checked, shown
from edgespec.api.pipelining import pipelines
from edgespec.api.result import GenerationResult
from edgespec.api.session import Session
from edgespec.api.stream import Job, TextStream, TextUnderWay
from edgespec.errors import ContextLengthError, InputError, reason
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import Limits
from edgespec.runtime.deployment.deployment import Deployment, deploy, load, with_costs
from edgespec.runtime.deployment.options import (
    PLANNED_DRAFTS,
    RECYCLING_DRAFTS,
    LoadOptions,
    default_tree,
)
from edgespec.runtime.drafters import DrafterState, TreeBudget, drafter_state
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgespec.runtime.sampling.grammar import GrammarCompiler

_log = logging.getLogger(__name__)

# Accepted tokens that a level of the draft model must promise where nothing is planned: below
# this, its call costs more than it saves on every pair measured.
_FIXED_LEAST_GAIN = 0.3


class LLM:
    """A loaded bundle, for any number of threads: their texts take turns, round by round.

    A context manager, which closes it.

    Args:
        bundle: a bundle's folder; None: the embedded pair, a small model of Python code.
        options: fields of `edgespec.api.options.LoadOptions`, by their names: `device`, `draft`,
            `draft_device`, `context`, `memory`, `threads` and more.

    Attributes:
        bundle: what was loaded.
        tokenizer: its tokenizer.
        deployment: which engines run it, for which texts, and what memory it takes.
        lock: is held for each round of a text; who does anything else with `target` or a
            session's caches holds it meanwhile.
        draft: the draft source in use, one of `DRAFTS`.
        context_length: tokens of prompt and output together.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if a device does not exist or cannot run it.
        InputError: if an option is out of range.
        MemoryLimitError: if it does not fit memory.
        TypeError: on an unknown option.
    """

    @shown(LoadOptions)
    def __init__(self, bundle: str | Path | None = None, **options: Unpack[LoadKeywords]) -> None:
        self.options = checked(LoadOptions, options)
        self.bundle = bundles.load(BUNDLE if bundle is None else Path(bundle))
        self.tokenizer = Tokenizer.from_folder(self.bundle.path)
        self.draft = self.options.draft
        self.deployment = deploy(self.bundle, self.options)
        for line in self.deployment.warnings:
            _log.warning("%s", line)
        self.deployment.require_fit()
        self._drafter_state = DrafterState(self._successors(), drafter_state.recall(self.bundle))
        self.deployment = with_costs(self.deployment, always=self.draft in PLANNED_DRAFTS)
        self._loaded = load(self.deployment)
        self.context_length = self.deployment.context
        self._drafting = Drafting(self.draft, self.bundle, self._loaded)
        # Also where nobody closes it. What is learned after `forget` is not kept.
        self._keep = weakref.finalize(self, self._drafting.keep, self._drafter_state)
        threads = self.deployment.roles[bundles.TARGET].asked.threads
        self._pipelines = pipelines(self.options.pipeline, self.bundle, self._loaded, threads)
        models = {role: loaded.model for role, loaded in self._loaded.items()}
        self._slots = Slots(
            models, sum(demand.kv for demand in self.deployment.devices), self.options.prefix_reuse
        )
        self._texts = weakref.WeakSet[TextUnderWay]()
        self._beginning = threading.Lock()  # a text, or the end: after that none is added
        self._closed = False
        self.lock = FairLock()

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
        """The compiled target, which others may use between the rounds of texts (`lock`)."""
        self.require_open()
        return self._loaded[bundles.TARGET].model

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """What a text's `draft_source` may be."""
        return self._drafting.sources

    def close(self) -> None:
        """End all texts after their present round, and give models and caches back."""
        with self._beginning:
            self._closed = True
            texts = list(self._texts)
        for text in texts:
            text.cancel()
        with self.lock:
            self._keep()
            self._slots.clear()
            self._loaded.clear()

    def require_open(self) -> None:
        """Nothing, while it is.

        Raises:
            InputError: if it was closed.
        """
        if self._closed:
            raise InputError("the model was closed: load it again")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def session(self) -> Session:
        """Texts whose caches are kept from one to the next."""
        self.require_open()
        with self.lock:
            return Session(self, self._slots.add())

    def load_session(self, path: str | Path) -> Session:
        """What `Session.save` has written.

        Raises:
            InputError: if the file cannot be read, is damaged, or of another bundle or version.
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
        """Give the caches of a session back."""
        with self.lock:
            self._slots.remove(slot)

    @shown(GenerationOptions)
    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[GenerationKeywords]
    ) -> GenerationResult:
        """Answer a conversation.

        Args:
            messages: dicts with `role` and `content`, as the model's chat template expects them.
            options: see `generate`.

        Raises:
            InputError: if the model has no chat template, or it refuses the messages; else as
                `generate`.
        """
        return self.generate(self.chat_tokens(messages), **options)

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation as a prompt, by the model's chat template.

        Raises:
            InputError: if the model has none, or it refuses the messages.
        """
        return self.tokenizer.encode(self.tokenizer.chat(messages), add_special=False)

    @shown(GenerationOptions)
    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> GenerationResult:
        """Make a text.

        Args:
            prompt: text, or token ids that are taken as they are.
            options: fields of `edgespec.api.options.GenerationOptions`, by their names:
                `max_new_tokens`, `temperature`, `seed`, `stop`, `json_schema` and more.

        Raises:
            InputError: if the prompt is empty or no prompt, or an option out of range.
            ContextLengthError: if the prompt does not fit the context.
            TypeError: on an unknown option.
        """
        return self.stream(prompt, **options).finish()

    @shown(GenerationOptions)
    def stream(
        self,
        prompt: str | Sequence[int],
        slot: Slot | None = None,
        /,
        **options: Unpack[GenerationKeywords],
    ) -> TextStream:
        """As `generate`, piece by piece: iterate over it, then read its `result`.

        Args:
            prompt: see `generate`.
            slot: of a session; use `Session.stream`.
            options: see `generate`.
        """
        self.require_open()
        made = checked(GenerationOptions, options)
        tokens = self._prompt_tokens(prompt)
        source = self._source(made)
        nodes = self._largest_tree(made, source)
        grammar = None if made.structure is None else self._grammars.compile(*made.structure)
        drafter = partial(
            self._drafting.drafter,
            learned=self._drafter_state,
            sampled=made.temperature > 0,
            source=source,
            grammar=grammar,
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
                    frozenset(self.bundle.target.eos_ids),
                ),
                budget=TreeBudget(nodes, nodes, made.tree_width, _FIXED_LEAST_GAIN),
                stop=made.stop,
                logprobs=made.logprobs,
                grammar=grammar,
                draft_memory=self._draft_memory(source),
                slots=self._slots,
                slot=slot,
                lock=self.lock,
                simulated=self.options.machine,
            )
        )
        with self._beginning:
            self.require_open()
            self._texts.add(stream.under_way)
        return stream

    def save_draft_memory(self, path: str | Path) -> None:
        """Keep what recycling learned of this bundle's target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; one that was there stays as it was.
        """
        with self.lock:  # texts of other threads learn in theirs
            self._drafter_state.successors.save(Path(path), self.bundle.digest)

    def forget(self) -> None:
        """Draft the next text as if it were the first: without what earlier ones taught."""
        self._drafter_state = DrafterState(self._successors())

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        from edgespec.runtime.sampling.grammar import GrammarCompiler

        target = self.bundle.target
        return GrammarCompiler(self.bundle.path, self.tokenizer.vocab_size, target.eos_ids)

    def _successors(self) -> Successors:
        vocab_size, file = self.bundle.target.vocab_size, self.options.draft_memory
        if file is None or not Path(file).exists():
            return Successors(vocab_size)
        return Successors.load(Path(file), self.bundle.digest, vocab_size)

    def _source(self, options: GenerationOptions) -> str:
        source = self.draft if options.draft_source is None else options.draft_source
        if source not in self.draft_sources:
            raise InputError(
                f"draft_source is {source!r}: what was loaded with draft {self.draft!r} offers "
                f"{', '.join(self.draft_sources)}"
            )
        return source

    def _largest_tree(self, options: GenerationOptions, source: str) -> int:
        if source == "none":
            return 0
        nodes = options.num_assistant_tokens
        if nodes is None:
            nodes = default_tree(source)
        if nodes > self.deployment.max_tree:
            nodes = self.deployment.max_tree
            _log.warning("draft trees of %d nodes at most, to fit memory", nodes)
        return nodes

    def _draft_memory(self, source: str) -> str | None:
        if source not in RECYCLING_DRAFTS:
            return None
        return "hot" if len(self._drafter_state.successors) else "cold"

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt as ids that the model knows and that leave room for a new one."""
        if isinstance(prompt, str):
            # A begin-of-text token alone is not a prompt.
            tokens = self.tokenizer.encode(prompt) if prompt else []
        elif isinstance(prompt, bytes | bytearray | memoryview):  # whose items would pass for ids
            raise InputError(f"the prompt is {bytes(prompt)!r:.40}, which is no text: decode it")
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
        if len(tokens) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens and with a new one is longer than the "
                f"model's context length of {self.context_length}: shorten the prompt or raise "
                "--context"
            )
        return tokens
