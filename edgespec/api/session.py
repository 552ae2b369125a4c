"""Sessions, which keep their caches: a prompt's shared beginning is not computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.api import snapshots
from edgespec.api.chat import ChatOptions
from edgespec.api.keywords import ChatKeywords, GenerationKeywords
from edgespec.api.options import GenerationOptions, shown
from edgespec.api.result import GenerationResult
from edgespec.api.stream import TextStream
from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.api.llm import LLM
    from edgespec.runtime.execution.slots import Slot


class Session:
    """Consecutive texts that share caches, such as the turns of a conversation.

    Created by `LLM.session` and `LLM.load_session`. Sessions share the memory that is planned for
    caches: the caches of a session that was not used for long may be dropped, and its next text
    then takes longer to start. It is also a context manager that closes the session.
    """

    def __init__(self, llm: LLM, slot: Slot) -> None:
        self._llm = llm
        self._slot: Slot | None = slot

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens in the caches: prompt and output of the last text, as far as they were run."""
        return tuple(self._open().tokens)

    @shown(GenerationOptions)
    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> GenerationResult:
        """See `LLM.generate`."""
        return self.stream(prompt, **options).finish()

    @shown(GenerationOptions)
    def stream(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationKeywords]
    ) -> TextStream:
        """See `LLM.stream`. A session can make only one text at a time.

        Raises:
            InputError: at the first piece, if another text of the session is being made.
        """
        return self._llm.stream(prompt, self._open(), **options)

    @shown(ChatOptions)
    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatKeywords]
    ) -> GenerationResult:
        """See `LLM.chat`: give the whole conversation; only the new part is computed."""
        return self._llm.chat_stream(messages, self._open(), **options).finish()

    def save(self, path: str | Path) -> None:
        """Writes the caches to a file, for `LLM.load_session` with the same bundle.

        Raises:
            InputError: if the caches were dropped, or the file cannot be written; an existing file
                stays as it was.
        """
        slot = self._open()
        self._llm.require_open()
        with self._llm.lock:
            if slot.began and not slot.runners:
                raise InputError(
                    "the session's caches were dropped for other sessions, or its last text "
                    "failed: generate a text in it before you save it"
                )
            snapshots.save(Path(path), self._llm.bundle.digest, slot)

    def close(self) -> None:
        """Frees the caches."""
        if self._slot is not None:
            self._llm.drop(self._slot)
            self._slot = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Slot:
        if self._slot is None:
            raise InputError("the session is closed: open another with LLM.session()")
        return self._slot
