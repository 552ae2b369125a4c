"""Sessions, whose slots outlive their texts: a prompt's known beginning is not computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from edgespec.errors import InputError
from edgespec.llm import session_files
from edgespec.llm.chat import ChatOptions
from edgespec.llm.instance import ModelInstance
from edgespec.llm.keywords import ChatKeywords, GenerationKeywords
from edgespec.llm.messages import Messages
from edgespec.llm.options import GenerationOptions
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import Result
from edgespec.llm.stream import Stream
from edgespec.llm.submission import submit
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.system.options import shown
from edgespec.system.processes import Unpicklable


class Session(Unpicklable):
    """Consecutive texts, such as the turns of a conversation, of which the last one stays known.

    Created by `LLM.session` and `LLM.load_session`. What a session keeps is evicted behind what
    other texts have left, and before a text would have to wait for memory: the next text then
    takes longer to start. It is also a context manager that closes the session, which also ends
    when nobody has it any more.
    """

    _kept: TokenSequence | None = None  # of a session whose `__init__` was interrupted

    def __init__(self, loaded: ModelInstance, kept: TokenSequence) -> None:
        self._loaded = loaded
        self._kept = kept

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens that are kept: prompt and output of the last text, as far as they were run."""
        kept = self._open()
        with self._loaded.engine.exclusive():
            return tuple(kept.tokens[: kept.length])

    def submit(self, request: GenerationRequest) -> Stream:
        """See `LLM.submit`. Of several texts at once the one that ends last is kept."""
        self._open()
        return submit(self._loaded, request, lambda: self._kept)

    @shown(GenerationOptions)
    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> Result:
        """See `LLM.generate`."""
        return self.stream(prompt, **options).finish()

    @shown(GenerationOptions)
    def stream(self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]) -> Stream:
        """See `LLM.stream` and `submit`."""
        return self.submit(GenerationRequest(prompt, GenerationOptions.of(options)))

    @shown(ChatOptions)
    def chat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Result:
        """See `LLM.chat`: give the whole conversation; only the new part is computed."""
        return self.chat_stream(messages, **options).finish()

    @shown(ChatOptions)
    def chat_stream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Stream:
        """See `LLM.chat_stream` and `chat`."""
        return self.submit(GenerationRequest(messages, ChatOptions.of(options)))

    def save(self, path: str | Path) -> None:
        """Writes what is kept to a file, for `LLM.load_session` with the same bundle.

        Raises:
            InputError: if it was evicted, or the file cannot be written; an existing file stays as
                it was.
        """
        kept = self._open()
        with self._loaded.engine.exclusive():
            if kept.tokens and not kept.length:
                raise InputError(
                    "the session's caches were dropped for other texts: generate a text in it "
                    "before you save it"
                )
            tensors = session_files.tensors_of(
                self._loaded.working_models, kept.tokens[: kept.length], kept.salt
            )
        session_files.save(Path(path), self._loaded.bundle.digest, tensors)

    def close(self) -> None:
        """Gives up what is kept; nothing is kept of texts that go on."""
        kept = self._kept
        self._kept = None
        if kept is None:
            return
        try:
            self._loaded.drop(kept)
        except BaseException:  # such as Ctrl-C: it can be closed again
            self._kept = kept
            raise

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> TokenSequence:
        if self._kept is None:
            raise InputError("the session is closed: open another with LLM.session()")
        return self._kept
