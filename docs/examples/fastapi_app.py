"""A route of FastAPI that streams answers: pip install fastapi uvicorn.

MODEL=model.gguf uvicorn fastapi_app:app
curl -N http://127.0.0.1:8000/chat -H 'content-type: application/json' \
    -d '{"messages": [{"role": "user", "content": "hello"}]}'

A client that leaves takes its text along. Texts of several clients share the model's passes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from edgespec import LLM, Stream
from edgespec.errors import InputError


class Message(BaseModel):
    """A message as OpenAI's API has it."""

    role: Literal["system", "user", "assistant"]
    content: str


class Question(BaseModel):
    """What a client asks."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int = Field(256, ge=1, le=4096)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the model once, before the first request."""
    with LLM(os.environ["MODEL"], sessions=4) as llm:
        app.state.llm = llm
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(question: Question, request: Request) -> StreamingResponse:
    """Answers a conversation with plain text, piece by piece."""
    llm: LLM = request.app.state.llm
    messages = [message.model_dump() for message in question.messages]
    begin = partial(llm.chat_stream, messages, max_tokens=question.max_tokens, **llm.sampling)
    try:
        stream = await run_in_threadpool(begin)  # the event loop goes on meanwhile
    except InputError as error:  # such as a conversation that is too long for the model
        raise HTTPException(422, str(error)) from error
    return StreamingResponse(pieces(stream), media_type="text/plain; charset=utf-8")


async def pieces(stream: Stream) -> AsyncIterator[str]:
    """Yields a text as it comes; when the client has left, this task is cancelled, and so is it."""
    async for piece in stream:
        yield piece
