"""Types of the keyword arguments that are options, for type checkers and editors.

Written by `python benchmarks/keywords.py` from the classes of options, which say what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from edgespec.runtime.text.tools.descriptions import Tool


class LoadKeywords(TypedDict, total=False):
    """See `edgespec.llm.load.options.LoadOptions`."""

    device: str
    draft_device: str
    draft: str | Path
    pipeline: str
    draft_memory: str | Path | None
    threads: int | None
    context: int | None
    memory: int | str | dict[str, int] | None
    gpu_layers: int | None
    lora: str | Path | Iterable[str | Path]
    sessions: int
    context_shift: bool
    prompt_cache: str | Path | None
    prompt_cache_size: int | str


class SamplingKeywords(TypedDict, total=False):
    """See `edgespec.runtime.sampling.options.SamplingOptions`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Iterable[str]
    logit_bias: Mapping[int, float] | Mapping[str, float] | Iterable[tuple[int, float]]
    seed: int | None


class GenerationKeywords(SamplingKeywords, total=False):
    """See `edgespec.llm.options.GenerationOptions`."""

    max_new_tokens: int | None
    max_tokens: int | None
    stop: str | Iterable[str]
    stop_token_ids: Iterable[int]
    min_indent: int
    max_time: float | None
    stop_loops: bool
    num_assistant_tokens: int | None
    tree_width: int
    draft_source: str | None
    adapters: Mapping[str, float] | str | Sequence[str] | None
    prediction: str | Sequence[int] | None
    logprobs: int | None
    json_schema: dict[str, Any] | str | type | None
    regex: str | None
    grammar: str | None


class ChatKeywords(GenerationKeywords, total=False):
    """See `edgespec.llm.chat.ChatOptions`."""

    tools: Sequence[Tool] | None
    tool_choice: str
    parallel_tool_calls: bool
    template_options: Mapping[str, Any] | None
    thinking_budget: int | None
    continue_final_message: bool
    context_shift: bool | None
