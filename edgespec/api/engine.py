"""Loads a bundle's native graphs, and generates texts with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Unpack

from edgespec.api.generation import GenerationStream
from edgespec.api.keywords import GenerationKeywords
from edgespec.api.options import GenerationOptions, checked
from edgespec.api.prompts import Prompts
from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import InputError, MemoryLimitError
from edgespec.runtime.deployment.options import PLANNED_DRAFT_TOKENS, LoadOptions
from edgespec.runtime.engines import available_bytes
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.rope import Rope
from edgespec.runtime.speculation.base import Drafter
from edgespec.runtime.speculation.cost import PassCost
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import AUTO, Limits, Request
from edgespec.runtime.speculation.lookup import LookupDrafter
from edgespec.runtime.speculation.model import ModelDrafter
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.processors import default_threads

_log = logging.getLogger(__name__)

_DRAFTS = (AUTO, "none", "model", "lookup")
_TARGET_SECONDS, _DRAFT_SECONDS = 0.6, 0.3  # to measure what passes cost
_ELSEWHERE = (  # load options of which only their defaults are known here
    "device", "draft_device", "place", "gpu_layers", "draft_memory",
    "sessions", "prefix_reuse", "prompt_cache",
)  # fmt: skip


def is_native(bundle: Bundle, options: LoadOptions, text: GenerationOptions | None = None) -> bool:
    """Whether a bundle's native graphs can do what is asked for; logs a line if not."""
    reason = _missing(bundle, options, text)
    if reason is None and (reason := missing_kernels()) is not None:
        _log.warning("%s", reason)
    elif reason is not None:
        _log.info("the native graph is not used: %s", reason)
    return reason is None


def _missing(bundle: Bundle, options: LoadOptions, text: GenerationOptions | None) -> str | None:
    """Returns what the engine lacks for a bundle or for options; None if nothing."""
    usual = {field.name: field.default for field in fields(LoadOptions)}
    others = [name for name in _ELSEWHERE if getattr(options, name) != usual[name]]
    sources = {options.draft} if text is None else {options.draft, text.draft_source or AUTO}
    unknown = sorted(sources - set(_DRAFTS))
    target, draft = bundle.target, bundle.draft
    drafts = draft is not None and options.draft in (AUTO, "model")
    reasons = {
        f"it has no option {', '.join(others)}": others,
        "it has one device": options.pipeline == "overlap" or isinstance(options.memory, dict),
        f"it has no draft source {', '.join(unknown)}": unknown,
        "it drafts from no prediction": text is not None and text.prediction,
        "the bundle has none of its target": target.native is None or target.embedding is not None,
        "it holds no states of recurrent layers": target.native and target.native.recurrent,
        "the bundle has none of its draft": draft is not None and drafts and not _is_plain(draft),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_plain(draft: Role) -> bool:
    """Whether a draft is a model with a native graph and the target's tokens."""
    return draft.native is not None and not draft.is_head and not draft.tokenizer


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
        names = [TARGET]
        if options.draft in (AUTO, "model") and bundle.draft is not None:
            names.append(DRAFT)
        if options.draft == "model" and DRAFT not in names:
            raise InputError(f"{bundle.path} has no draft model: use another --draft")
        self.context_length = _context(bundle, options, names)
        self._models = {name: _model(bundle, options, name) for name in names}
        self._prompts = Prompts(bundle, self.tokenizer, self.context_length)
        cost, drafters = None, list[Drafter]()
        if options.draft != "none":
            cost = PassCost.measure(self._models[TARGET], _TARGET_SECONDS)
        if options.draft in (AUTO, "lookup"):
            drafters.append(LookupDrafter())
        if bundle.draft is not None and DRAFT in names:
            model = self._models[DRAFT]
            calls = PassCost.measure(model, _DRAFT_SECONDS)
            drafters.append(ModelDrafter(model, calls, bundle.draft.context_length))
        self.engine = Engine(self._models[TARGET], cost, drafters)
        names = [drafter.name for drafter in drafters]
        self.draft_sources = ("none", *names, *([AUTO] if options.draft == AUTO else []))

    def chat_tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Converts a conversation to a prompt of token ids with the model's chat template.

        Raises:
            InputError: if the model has no chat template, or the template refuses the messages.
        """
        return self.tokenizer.encode(self.tokenizer.chat(messages), add_special=False)

    def forget(self) -> None:
        """Forgets what earlier texts taught the drafters."""
        self.engine.forget()

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
        nodes = made.num_assistant_tokens
        limits = Limits(
            made.max_new_tokens,
            self.context_length,
            frozenset((*self.bundle.target.eos_ids, *made.stop_token_ids)),
            PLANNED_DRAFT_TOKENS if nodes is None else nodes,
            made.tree_width,
        )
        sampler = Sampler(made, self.tokenizer.vocab_size)
        request = Request(asked.prompt, sampler, limits, source, asked.grammar, made.logprobs)
        end = TextEnd(made.stop, made.min_indent, made.max_time)
        models = list(self._models.values())
        return GenerationStream(self.engine, request, self.tokenizer, end, models)


def _model(bundle: Bundle, options: LoadOptions, name: str) -> Model:
    from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

    role, operators = bundle.manifest.roles[name], library()
    assert role.native is not None, "`is_native` has checked it"
    assert operators is not None, "`is_native` has checked it"
    threads = default_threads() if options.threads is None else options.threads
    graph = NativeGraph(bundle.path / role.native.graph, operators, threads)
    ropes = [Rope(table) for table in role.rope_tables if table.name in role.native.ropes]
    return Model(graph, KVPool(role.native.pools, role.precision.kv), ropes)


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
