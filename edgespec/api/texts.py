"""The texts of a loaded bundle: what they share, how each begins, and how all end."""

from __future__ import annotations

import logging
import threading
import weakref
from functools import partial

from edgespec.api.chat import Conversation
from edgespec.api.drafting import Drafting
from edgespec.api.job import Job, Shared
from edgespec.api.loading import LoadedBundle
from edgespec.api.options import GenerationOptions
from edgespec.api.pipelining import pipelines
from edgespec.api.predictions import predicted_tokens
from edgespec.api.prompt_cache import PromptCache
from edgespec.api.stream import TextGeneration, TextStream
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.runtime.decoding.generate import Limits
from edgespec.runtime.decoding.rounds import Rounds
from edgespec.runtime.deployment.options import PLANNED_DRAFTS, default_tree
from edgespec.runtime.drafters import Prediction, TreeBudget
from edgespec.runtime.execution.measurements import circumstances
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.vocabulary_map import VocabularyMap

_log = logging.getLogger(__name__)

# Expected accepted tokens that a tree level must add to be worth a call of the draft model if
# drafts are not planned. Below this, the call cost more than it saved on every measured pair.
_FIXED_LEAST_GAIN = 0.3


class Texts:
    """Begins the texts of a loaded bundle, and ends them when it is closed.

    Args:
        loaded: the bundle; `close` empties its roles.

    Attributes:
        shared: what the texts share.
        drafting: creates their drafters.

    Raises:
        BundleError: as `Drafting`.
        InputError: as `pipelines`.
    """

    def __init__(self, loaded: LoadedBundle) -> None:
        bundle, roles, options = loaded.bundle, loaded.roles, loaded.options
        target = roles[TARGET]
        vocabularies = VocabularyMap.of(bundle, loaded.tokenizer) if DRAFT in roles else None
        self.drafting = Drafting(options.draft, bundle, roles, vocabularies)
        # A finalizer also runs if nobody closes the model.
        self._keep = weakref.finalize(self, loaded.learned.keep, self.drafting)
        self.shared = Shared(
            tokenizer=loaded.tokenizer,
            pipeline=pipelines(options.pipeline, bundle, roles, target.threads),
            rounds=Rounds(target.model, loaded.lock),
            slots=_slots(loaded),
            prompts=_prompt_cache(loaded),
            lock=loaded.lock,
        )
        self._loaded = loaded
        self._texts = weakref.WeakSet[TextGeneration]()
        self._beginning = threading.Lock()  # held to add a text, or to close
        self._closed = False

    def begin(
        self, asked: Conversation, options: GenerationOptions, slot: Slot | None
    ) -> TextStream:
        """Creates the stream of a text.

        Args:
            asked: the text's prompt, and what it may consist of.
            options: options of the text.
            slot: slot of its session; None if it has no session.

        Raises:
            InputError: if the model was closed, or its draft source or prediction is not valid.
        """
        self.require_open()
        source = self._source(options)
        predicted = self._predicted(options)
        nodes = self._largest_tree(options, source, bool(predicted))
        prediction = Prediction(predicted) if predicted and nodes else None
        drafter = partial(
            self.drafting.drafter,
            learned=self._loaded.learned.state,
            sampled=options.temperature > 0,
            source=source,
            grammar=asked.grammar,
            prediction=prediction,
        )
        target, length = self._loaded.bundle.target, self._loaded.deployment.context
        ends = frozenset((*target.eos_ids, *options.stop_token_ids))
        width = options.tree_width if target.trees else 1
        stream = TextStream(
            Job(
                shared=self.shared,
                asked=asked,
                slot=slot,
                drafter=drafter,
                sampler=Sampler(options, self.shared.tokenizer.vocab_size),
                limits=Limits(options.max_new_tokens, length, ends),
                budget=TreeBudget(nodes, nodes, width, _FIXED_LEAST_GAIN),
                end=TextEnd(options.stop, options.min_indent, options.max_time),
                logprobs=options.logprobs,
                prediction=prediction,
                draft_memory=self._loaded.learned.draft_memory(source),
            )
        )
        with self._beginning:
            self.require_open()
            self._texts.add(stream.generation)
        return stream

    def warm_up(self) -> None:
        """Makes a first call of target and draft model, see `LLM.warm_up`."""
        with self.shared.lock:
            self.require_open()
            for name in {TARGET, DRAFT} & self._loaded.roles.keys():
                Runner(self._loaded.roles[name].model).prefill([0])

    def close(self) -> None:
        """Ends all texts after their current round, and frees models and caches."""
        with self._beginning:
            self._closed = True
            texts = list(self._texts)
        for text in texts:
            text.cancel()
        with self.shared.lock:
            self._keep()
            self.shared.slots.clear()
            self._loaded.roles.clear()
        if self.shared.prompts is not None:
            self.shared.prompts.close()

    def require_open(self) -> None:
        """Checks that the model was not closed.

        Raises:
            InputError: if it was closed.
        """
        if self._closed:
            raise InputError("the model was closed: load it again")

    def _source(self, options: GenerationOptions) -> str:
        loaded, allowed = self._loaded.options.draft, self.drafting.sources
        source = loaded if options.draft_source is None else options.draft_source
        if source not in allowed:
            raise InputError(
                f"draft_source is {source!r}: a model loaded with draft {loaded!r} offers "
                f"{', '.join(allowed)}"
            )
        return source

    def _predicted(self, options: GenerationOptions) -> list[int]:
        """Returns the predicted tokens, as far as the context has room for them."""
        vocabulary = self._loaded.bundle.target.vocab_size
        tokens = predicted_tokens(options.prediction, self.shared.tokenizer, vocabulary)
        return tokens[: self._loaded.deployment.context]

    def _largest_tree(self, options: GenerationOptions, source: str, predicted: bool) -> int:
        if source == "none":
            return 0
        nodes, most = options.num_assistant_tokens, self._loaded.deployment.max_tree
        if nodes is None:
            nodes = default_tree(source)
            if predicted and source in PLANNED_DRAFTS:  # nearly all of a draft may be right
                nodes = max(nodes, most)
        if nodes > most:
            nodes = most
            _log.warning("draft trees are limited to %d nodes, to fit the memory", nodes)
        return nodes


def _slots(loaded: LoadedBundle) -> Slots:
    """Returns slots for as many bytes of caches as were planned."""
    models = {role: each.model for role, each in loaded.roles.items()}
    planned = sum(demand.kv for demand in loaded.deployment.devices)
    return Slots(models, planned, loaded.options.prefix_reuse)


def _prompt_cache(loaded: LoadedBundle) -> PromptCache | None:
    if loaded.prompt_files is None:
        return None
    target = loaded.roles[TARGET]
    facts = circumstances(loaded.bundle, "rows", target.engines, target.threads)
    return PromptCache(loaded.prompt_files, facts)
