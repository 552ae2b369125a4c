"""The request for a text, which all who ask for one make."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.llm.at_once import Prompt
from edgespec.llm.chat import ChatOptions
from edgespec.llm.messages import Messages
from edgespec.llm.options import GenerationOptions


@dataclass(frozen=True)
class GenerationRequest:
    """A text that is asked for, for `LLM.submit` and `Session.submit`.

    Its options are checked once, as they are made; the prompt is when it is submitted.

    Attributes:
        prompt: what the text continues, see `LLM.generate`; with `ChatOptions`, the conversation
            that it answers, see `LLM.chat`.
        options: options of the text.
        cache_key: the text shares what was computed with texts of the same key alone; without one,
            with all others without.
    """

    prompt: Prompt | Messages
    options: GenerationOptions | ChatOptions
    cache_key: str = ""
