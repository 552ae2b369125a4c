"""Loads a bundle's native graphs, and generates texts with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Unpack

from edgespec.api.generation import GenerationStream
from edgespec.api.keywords import GenerationKeywords
from edgespec.api.options import GenerationOptions, checked
from edgespec.api.predictions import predicted_tokens
from edgespec.api.prompts import Prompts
from edgespec.api.sources import Sources, loaded_roles
from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import InputError, MemoryLimitError
from edgespec.runtime.deployment.options import (
    MAX_DRAFT_TOKENS,
    PLANNED_DRAFT_TOKENS,
    RECYCLING_DRAFTS,
    LoadOptions,
)
from edgespec.runtime.engines import available_bytes
from edgespec.runtime.kernels import missing_kernels
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import Limits, Request
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_ELSEWHERE = (  # load options of which only their defaults are known here
    "device", "draft_device", "place", "gpu_layers", "learn", "simulate",
    "sessions", "prefix_reuse", "prompt_cache",
)  # fmt: skip


def is_native(bundle: Bundle, options: LoadOptions) -> bool:
    """Whether a bundle's native graphs can do what is asked for; logs a line if not."""
    reason = _missing(bundle, options)
    if reason is None and (reason := missing_kernels()) is not None:
        _log.warning("%s", reason)
    elif reason is not None:
        _log.info("the native graph is not used: %s", reason)
    return reason is None


def _missing(bundle: Bundle, options: LoadOptions) -> str | None:
    """Returns what the engine lacks for a bundle or for options; None if nothing."""
    usual = {field.name: field.default for field in fields(LoadOptions)}
    others = [name for name in _ELSEWHERE if getattr(options, name) != usual[name]]
    target, draft = bundle.target, bundle.draft
    drafts = draft is not None and DRAFT in loaded_roles(bundle, options)
    reasons = {
        f"it has no option {', '.join(others)}": others,
        "it has one device": options.pipeline == "overlap" or isinstance(options.memory, dict),
        "the bundle has none of its target": target.native is None or target.embedding is not None,
        "it holds no states of recurrent layers": target.native and target.native.recurrent,
        "the bundle has none of its draft": draft is not None and drafts and draft.native is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class NativeLLM:
    """A loaded bundle that generates texts with its native graphs.

    Args:
        bundle: the bundle, of which `is_native` holds.
        options: options for loading it.

    Attributes:
        bundle: see above.
        options: see above.
        tokenizer: tokenizer of the target.
        context_length: maximum number of tokens of prompt and output together.
        draft_sources: allowed values of a text's `draft_source`.
        engine: continues sequences.

    Raises:
        DeviceError: if ONNX Runtime refuses a graph.
        InputError: if the bundle has no draft model for the draft source.
        MemoryLimitError: if memory has no room for the context.
    """

    def __init__(self, bundle: Bundle, options: LoadOptions) -> None:
        self.bundle, self.options = bundle, options
        self.tokenizer = Tokenizer.from_folder(bundle.path)
        self.context_length = _context(bundle, options, loaded_roles(bundle, options))
        self._sources = Sources(bundle, options, self.tokenizer)
        self._prompts = Prompts(bundle, self.tokenizer, self.context_length)
        target = self._sources.models[TARGET]
        self.engine = Engine(target, self._sources.cost, self._sources.drafters)
        self.draft_sources = self._sources.names

    def chat_tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Converts a conversation to a prompt of token ids with the model's chat template.

        Raises:
            InputError: if the model has no chat template, or the template refuses the messages.
        """
        return self.tokenizer.encode(self.tokenizer.chat(messages), add_special=False)

    def forget(self) -> None:
        """Forgets what earlier texts taught the drafters."""
        self.engine.forget()

    def save_draft_memory(self, path: str | Path) -> None:
        """Saves what recycling learned about the target, for `LoadOptions.draft_memory`.

        Raises:
            InputError: if the file cannot be written; an existing file stays as it was.
        """
        self._sources.recycling.successors.save(Path(path), self.bundle.digest)

    def stream(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> GenerationStream:
        """Generates a text piece by piece: iterate over the stream, then read its `result`.

        Args:
            prompt: text, or token ids, which are used unchanged.
            options: fields of `GenerationOptions`.

        Raises:
            EdgespecError: as `LLM.generate`.
        """
        made = checked(GenerationOptions, options)
        asked = self._prompts.of_text(prompt, made)
        source = self.options.draft if made.draft_source is None else made.draft_source
        if source not in self.draft_sources:
            raise InputError(
                f"draft_source is {source!r}: a model loaded with draft {self.options.draft!r} "
                f"offers {', '.join(self.draft_sources)}"
            )
        predicted = predicted_tokens(made.prediction, self.tokenizer, self.tokenizer.vocab_size)
        nodes = MAX_DRAFT_TOKENS if predicted else PLANNED_DRAFT_TOKENS
        limits = Limits(
            made.max_new_tokens,
            self.context_length,
            frozenset((*self.bundle.target.eos_ids, *made.stop_token_ids)),
            nodes if made.num_assistant_tokens is None else made.num_assistant_tokens,
            made.tree_width,
        )
        sampler = Sampler(made, self.tokenizer.vocab_size)
        request = Request(
            asked.prompt, sampler, limits, source, asked.grammar, made.logprobs,
            predicted[: self.context_length],
        )  # fmt: skip
        end = TextEnd(made.stop, made.min_indent, made.max_time)
        models, memory = list(self._sources.models.values()), None
        if source in RECYCLING_DRAFTS:
            memory = "hot" if len(self._sources.recycling.successors) else "cold"
        return GenerationStream(self.engine, request, self.tokenizer, end, models, memory)


def _context(bundle: Bundle, options: LoadOptions, names: Sequence[str]) -> int:
    """Returns the longest text that the memory has room for, at most the one asked for.

    Raises:
        MemoryLimitError: if the context that was asked for does not fit.
    """
    asked, memory = options.context or bundle.target.context_length, options.memory
    roles = [bundle.manifest.roles[name] for name in names]
    if isinstance(memory, int):
        free = memory
    else:  # weights are mapped, and should stay in memory
        data = [role.native.data for role in roles if role.native is not None]
        free = available_bytes() - sum(bundle.manifest.files[name].size for name in data)
    row = sum(KVPool.slot_bytes(r.native.pools, r.precision.kv) for r in roles if r.native)
    most = max(free, 0) // row
    if most < (2 if options.context is None else asked):
        raise MemoryLimitError(
            f"the KV cache of {asked} tokens takes {asked * row:,} bytes, and {free:,} are free: "
            "lower --context, raise --memory or close other programs"
        )
    return min(asked, most)
