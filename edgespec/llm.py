"""The public API: load a bundle, give it prompts, get text."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from edgespec import bundle as bundles
from edgespec.bundle import Bundle
from edgespec.errors import ContextLengthError, InputError
from edgespec.fitting import device_for, explain, fit
from edgespec.models.embedded import BUNDLE
from edgespec.options import GenerationOptions, LoadOptions, checked
from edgespec.runtime.drafters import Drafter, LookupDrafter, ModelDrafter, NoDrafter, TreeBudget
from edgespec.runtime.generate import Limits
from edgespec.runtime.memory import Plan, cache_rows
from edgespec.runtime.model import Model, TextSizes
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.selection import Placement, load_model
from edgespec.runtime.text import Tokenizer
from edgespec.stream import GenerationResult, Job, TextStream

_log = logging.getLogger(__name__)


class LLM:
    """A loaded bundle.

    Args:
        bundle: a bundle's folder; None: the embedded pair, a small model of Python code.
        options: fields of `LoadOptions`.

    Attributes:
        bundle: what was loaded.
        tokenizer: its tokenizer.
        plan: what memory it takes, made before anything was loaded.
        draft: the draft source in use: none, model or lookup.
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
        self.plan = plan_memory(self.bundle, self.options)
        self.plan.require_fit(str(self.bundle.path))
        self.draft = self.plan.draft
        self.context_length = self.plan.context
        self._target = self._load(bundles.TARGET, self.options.device)
        self._draft_model = (
            self._load(bundles.DRAFT, self.options.draft_device) if self.draft == "model" else None
        )

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
        nodes = min(made.num_assistant_tokens, self.plan.max_tree)
        if nodes < made.num_assistant_tokens and self.draft != "none":
            _log.warning("draft trees of %d nodes at most, to fit memory", nodes)
        models = (self._target, self._draft_model)
        return TextStream(
            Job(
                tokenizer=self.tokenizer,
                prompt=tokens,
                target=self._target,
                drafter=self._drafter(),
                sampler=Sampler(made, self.tokenizer.vocab_size),
                limits=Limits(
                    made.max_new_tokens,
                    self.context_length,
                    frozenset(self._target.role.eos_ids),
                ),
                budget=TreeBudget(nodes, nodes, made.tree_width),
                stop=made.stop,
                models=tuple(model for model in models if model is not None),
            )
        )

    def _load(self, role: str, device: str) -> Model:
        """Compile a role; an engine is chosen by the calls of a round with default options."""
        defaults = GenerationOptions()
        if role == bundles.DRAFT:
            work: tuple[int, ...] = (1, defaults.tree_width, defaults.tree_width)
        else:
            work = (1 if self.draft == "none" else 1 + defaults.num_assistant_tokens,)
        threads = self.options.threads or _default_threads()
        place = device_for(self.bundle, self.plan, role, device)
        model = load_model(self.bundle, role, Placement(place, threads, work))
        model.sizes = TextSizes(self.plan.prefill_chunk, cache_rows(role, self.context_length))
        return model

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

    def _drafter(self) -> Drafter:
        if self._draft_model is not None:
            return ModelDrafter(self._draft_model)
        return LookupDrafter() if self.draft == "lookup" else NoDrafter()


def plan_memory(bundle: Bundle, options: LoadOptions) -> Plan:
    """What a bundle takes and what of it fits; what gave way is one logged line.

    Raises:
        DeviceError: if a device is not known.
        InputError: if an option does not suit the bundle.
    """
    draft, context = _draft_source(options.draft, bundle), _context_length(options.context, bundle)
    plan = fit(bundle, options, draft, context)
    explain(plan, draft, context)
    return plan


def _draft_source(asked: str, bundle: Bundle) -> str:
    if asked == "auto":
        return "model" if bundle.draft else "lookup"
    if asked == "model" and bundle.draft is None:
        raise InputError(
            f"{bundle.path} has no draft model: export it with --draft, or use --draft lookup"
        )
    return asked


def _context_length(asked: int | None, bundle: Bundle) -> int:
    trained = bundle.target.context_length
    if asked is not None and asked > trained:
        raise InputError(f"context is {asked}: the model was made for {trained} tokens at most")
    return asked or trained


def _default_threads() -> int:
    """Physical cores that this process may use: a second thread per core slows matmuls down."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return min(physical, len(os.sched_getaffinity(0)))
    return physical
