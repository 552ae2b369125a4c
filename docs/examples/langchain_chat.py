"""A chat model of LangChain that runs in the program itself: pip install langchain-core.

python langchain_chat.py model.gguf "Name three rivers."

For programs that use `langchain-openai` already, `edgespec serve` is enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field, PrivateAttr

from edgespec import LLM, Result, Stream


class ChatEdgespec(BaseChatModel):
    """A model in this process; `bind` and `invoke` take the options of `LLM.chat`."""

    model: str
    _llm: LLM = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Loads the model."""
        self._llm = LLM(self.model)

    @property
    def _llm_type(self) -> str:
        return "edgespec"

    def with_structured_output(self, schema: Any, **options: Any) -> Runnable[Any, Any]:
        """Returns a model whose answers are instances of a pydantic class, and nothing else."""
        bound = self.bind(json_schema=schema, **options)
        return bound | (lambda message: schema.model_validate_json(message.content))

    def _begin(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> Stream:
        said = convert_to_openai_messages(messages)
        return self._llm.chat_stream(said, **{**self._llm.sampling, "stop": stop or (), **options})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        result = self._begin(messages, stop, options).finish()
        message = AIMessage(content=result.text, usage_metadata=usage(result))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> Iterator[ChatGenerationChunk]:
        stream = self._begin(messages, stop, options)
        for piece in stream:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        last = AIMessageChunk(content="", usage_metadata=usage(stream.result))
        yield ChatGenerationChunk(message=last)


def usage(result: Result) -> UsageMetadata:
    """Returns a text's numbers of tokens as LangChain counts them."""
    read, made = result.prompt_tokens, result.new_tokens
    return UsageMetadata(input_tokens=read, output_tokens=made, total_tokens=read + made)


class Verdict(BaseModel):
    """What is to be said of an answer."""

    good: bool
    reason: str = Field(max_length=60)


def main() -> None:
    """Asks, shows the answer as it comes, and asks for a verdict in a given form."""
    parser = argparse.ArgumentParser(description=ChatEdgespec.__doc__)
    parser.add_argument("model", help="a GGUF file, a checkpoint's folder or a name on the Hub")
    parser.add_argument("question")
    given = parser.parse_args()
    model = ChatEdgespec(model=given.model)
    template = ChatPromptTemplate([("system", "Answer in one sentence."), ("human", "{question}")])
    chain = template | model.bind(max_tokens=100) | StrOutputParser()
    answer = ""
    for piece in chain.stream({"question": given.question}):
        print(piece, end="", flush=True)
        answer += piece
    judge = model.with_structured_output(Verdict, max_tokens=200)
    print(f"\n{judge.invoke(f'Is this a good answer to {given.question!r}? {answer}')!r}")


if __name__ == "__main__":
    main()
