"""Types of the keyword arguments of `LLM` and its texts, for type checkers and editors.

These are the fields of the option classes, with wider types where a class converts a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from edgespec.api.tools import Tool


class LoadKeywords(TypedDict, total=False):
    """See `edgespec.api.loading.LoadOptions`."""

    device: str
    draft_device: str
    draft: str
    pipeline: str
    draft_memory: str | Path | None
    threads: int | None
    context: int | None
    memory: int | str | dict[str, int] | None
    gpu_layers: int | None
    sessions: int
    prefix_reuse: bool
    prompt_cache: str | Path | None
    prompt_cache_size: int | str


class GenerationKeywords(TypedDict, total=False):
    """See `edgespec.api.options.GenerationOptions`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    max_new_tokens: int
    stop: str | Iterable[str]
    stop_token_ids: tuple[int, ...]
    min_indent: int
    max_time: float | None
    num_assistant_tokens: int | None
    tree_width: int
    draft_source: str | None
    prediction: str | Sequence[int] | None
    logprobs: int | None
    json_schema: dict[str, Any] | str | None
    regex: str | None
    grammar: str | None


class ChatKeywords(GenerationKeywords, total=False):
    """See `edgespec.api.chat.ChatOptions`."""

    tools: Sequence[Tool] | None
    tool_choice: str
    parallel_tool_calls: bool
    template_options: Mapping[str, Any] | None
    thinking_budget: int | None
