"""The public API: load a bundle, give it prompts, get text."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edgespec import bundle as bundles
from edgespec.drafting import Drafting
from edgespec.errors import ContextLengthError, InputError
from edgespec.fitting import described, fit, placements, within_shapes
from edgespec.models.embedded import BUNDLE
from edgespec.options import (
    PLANNED_DRAFTS,
    RECYCLING_DRAFTS,
    GenerationOptions,
    LoadOptions,
    checked,
    default_tree,
)
from edgespec.pipelining import pipelines
from edgespec.runtime.drafters import Experience, TreeBudget
from edgespec.runtime.generate import Limits
from edgespec.runtime.memory import cache_rows
from edgespec.runtime.model import Model, TextSizes
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.selection import load_models
from edgespec.runtime.successors import Successors
from edgespec.runtime.text import Tokenizer
from edgespec.stream import GenerationResult, Job, TextStream

_log = logging.getLogger(__name__)

# Accepted tokens that a level of the draft model must promise where nothing is planned: below
# this, its call costs more than it saves on every pair measured.
_FIXED_LEAST_GAIN = 0.3


class LLM:
    """A loaded bundle.

    Args:
        bundle: a bundle's folder; None: the embedded pair, a small model of Python code.
        options: fields of `LoadOptions`.

    Attributes:
        bundle: what was loaded.
        tokenizer: its tokenizer.
        plan: what memory it takes, made before anything was loaded.
        draft: the draft source in use, one of `DRAFTS`.
        context_length: tokens of prompt and output together.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if a device does not exist or cannot run it.
        InputError: if an option is out of range.
        MemoryLimitError: if it does not fit memory.
        TypeError: on an unknown option.
    """

    def __init__(self, bundle: str | Path | None = None, **options: Any) -> None:
        self.options = checked(LoadOptions, options)
        self.bundle = bundles.load(BUNDLE if bundle is None else Path(bundle))
        self.tokenizer = Tokenizer.from_folder(self.bundle.path)
        self.plan = fit(self.bundle, self.options)
        self.plan.require_fit(described(self.bundle, self.options))
        self.draft = self.options.draft
        self.forget()
        places = placements(self.bundle, self.options, self.plan)
        self._loaded = load_models(self.bundle, places, costs=self.draft in PLANNED_DRAFTS)
        shapes = {role: loaded.model.shapes for role, loaded in self._loaded.items()}
        self.plan = within_shapes(self.plan, self.options, shapes)
        self.context_length = self.plan.context
        for role, loaded in self._loaded.items():
            rows = min([cache_rows(role, self.context_length), *shapes[role].capacities[-1:]])
            loaded.model.sizes = TextSizes(self.plan.prefill_chunk, rows)
        self._target = self._loaded[bundles.TARGET].model
        self._drafting = Drafting(self.draft, self.bundle, self._loaded)
        self._pipelines = pipelines(
            self.options.pipeline, self.bundle, self._loaded, places[bundles.TARGET].threads
        )

    @property
    def target(self) -> Model:
        """The compiled target, which other texts may use between those of `stream`."""
        return self._target

    def generate(self, prompt: str | Sequence[int], **options: Any) -> GenerationResult:
        """Make a text.

        Args:
            prompt: text, or token ids that are taken as they are.
            options: fields of `GenerationOptions`.

        Raises:
            InputError: if the prompt is empty or an option out of range.
            ContextLengthError: if the prompt does not fit the context.
            TypeError: on an unknown option.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: str | Sequence[int], **options: Any) -> TextStream:
        """As `generate`, piece by piece: iterate over it, then read its `result`."""
        made = checked(GenerationOptions, options)
        tokens = self._prompt_tokens(prompt)
        nodes = made.num_assistant_tokens
        if nodes is None:
            nodes = default_tree(self.draft)
        if nodes > self.plan.max_tree and self.draft != "none":
            nodes = self.plan.max_tree
            _log.warning("draft trees of %d nodes at most, to fit memory", nodes)
        learned, sampled = self._experience, made.temperature > 0
        return TextStream(
            Job(
                tokenizer=self.tokenizer,
                prompt=tokens,
                target=self._target,
                drafter=partial(self._drafting.drafter, learned=learned, sampled=sampled),
                pipeline=self._pipelines,
                sampler=Sampler(made, self.tokenizer.vocab_size),
                limits=Limits(
                    made.max_new_tokens,
                    self.context_length,
                    frozenset(self._target.role.eos_ids),
                ),
                budget=TreeBudget(nodes, nodes, made.tree_width, _FIXED_LEAST_GAIN),
                stop=made.stop,
                draft_memory=self._draft_memory(),
                models=tuple(loaded.model for loaded in self._loaded.values()),
                simulated=self.options.machine,
            )
        )

    def save_draft_memory(self, path: str | Path) -> None:
        """Keep what recycling learned of this bundle's target, for `LoadOptions.draft_memory`.

        Raises:
            OSError: if the file cannot be written; one that was there stays as it was.
        """
        self._experience.successors.save(Path(path), self.bundle.digest)

    def forget(self) -> None:
        """Draft the next text as if it were the first: without what earlier ones taught."""
        self._experience = Experience(self._successors())

    def _successors(self) -> Successors:
        vocab_size, file = self.bundle.target.vocab_size, self.options.draft_memory
        if file is None or not Path(file).exists():
            return Successors(vocab_size)
        return Successors.load(Path(file), self.bundle.digest, vocab_size)

    def _draft_memory(self) -> str | None:
        if self.draft not in RECYCLING_DRAFTS:
            return None
        return "hot" if len(self._experience.successors) else "cold"

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt as ids that the model knows and that leave room for a new one."""
        if isinstance(prompt, str):
            # A begin-of-text token alone is not a prompt.
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = [operator.index(token) for token in prompt]
        if not tokens:
            raise InputError("the prompt is empty: give at least one character")
        vocabulary = self._target.role.vocab_size
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise InputError(f"token id {wrong[0]} is not in the vocabulary of {vocabulary}")
        if len(tokens) >= self.context_length:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens and the context holds "
                f"{self.context_length}, a new one included: shorten the prompt or raise --context"
            )
        return tokens
