"""A plugin of Simon Willison's `llm`, for models that edgespec runs.

llm install ./llm_plugin
llm -m edgespec -o model model.gguf "Name three rivers."
llm chat -m edgespec -o model model.gguf
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import llm
from pydantic import Field

from edgespec import LLM
from edgespec.errors import EdgespecError

load = lru_cache(maxsize=1)(LLM)  # `llm chat` asks for the same model again and again


class Edgespec(llm.Model):
    """All models of edgespec: the option `model` names one."""

    model_id = "edgespec"
    can_stream = True
    supports_schema = True

    class Options(llm.Options):  # type: ignore[misc, unused-ignore]
        """What `-o` takes."""

        model: str = Field(description="a GGUF file, a checkpoint's folder or a name on the Hub")
        draft: str = Field("auto", description="where drafts come from; the text is the same")
        max_tokens: int | None = Field(None, description="of the answer; none: what there is room")
        temperature: float | None = Field(None, description="none: as the model's authors ask")
        seed: int | None = Field(None, description="the same seed gives the same text again")

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str]:
        """Yields the pieces of an answer; `llm` joins them if nobody wants a stream."""
        try:
            yield from self._pieces(prompt, response)
        except EdgespecError as error:
            raise llm.ModelError(str(error)) from error

    def _pieces(self, prompt: llm.Prompt, response: llm.Response) -> Iterator[str]:
        given: Any = prompt.options
        model = load(given.model, draft=given.draft)
        options: dict[str, Any] = {**model.sampling, "max_new_tokens": given.max_tokens}
        if given.temperature is not None:
            options["temperature"] = given.temperature
        messages = [{"role": each.role, "content": text_of(each)} for each in prompt.messages]
        stream = model.chat_stream(
            messages, seed=given.seed, json_schema=prompt.schema, stop_loops=True, **options
        )
        yield from stream
        result = stream.result
        response.set_usage(input=result.prompt_tokens, output=result.new_tokens)


def text_of(message: Any) -> str:
    """Returns what a message says."""
    return "".join(part.text for part in message.parts if hasattr(part, "text"))


@llm.hookimpl
def register_models(register: Callable[[llm.Model], None]) -> None:
    """Tells `llm` of the model."""
    register(Edgespec())
