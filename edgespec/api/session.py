"""Texts whose caches are kept: what a prompt shares with the one before is not run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.api import snapshots
from edgespec.api.keywords import GenerationKeywords
from edgespec.api.options import GenerationOptions, shown
from edgespec.api.result import GenerationResult
from edgespec.api.stream import TextStream
from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.api.llm import LLM
    from edgespec.runtime.execution.slots import Slot


class Session:
    """Texts one after the other, each a continuation of the last or of some beginning of it.

    Made by `LLM.session` and `LLM.load_session`. Sessions share what memory the plan has for
    caches: of one that has not been used for long they may be dropped, and its next text then takes
    longer to begin. A context manager, which closes it.
    """

    def __init__(self, llm: LLM, slot: Slot) -> None:
        self._llm = llm
        self._slot: Slot | None = slot

    @property
    def tokens(self) -> Sequence[int]:
        """What its caches hold: prompt and output of the last text, as far as they were run."""
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
        """See `LLM.stream`. One text of a session at a time.

        Raises:
            InputError: at the first piece, if another text is under way.
        """
        return self._llm.stream(prompt, self._open(), **options)

    @shown(GenerationOptions)
    def chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[GenerationKeywords]
    ) -> GenerationResult:
        """See `LLM.chat`: give the whole conversation, of which only what is new is run."""
        return self.generate(self._llm.chat_tokens(messages), **options)

    def save(self, path: str | Path) -> None:
        """Write its caches to a file, for `LLM.load_session` with the same bundle.

        Raises:
            InputError: if its caches are gone, or the file cannot be written; one that was there
                stays as it was.
        """
        slot = self._open()
        self._llm.require_open()
        with self._llm.lock:
            if slot.began and not slot.runners:
                raise InputError(
                    "the session's caches gave way to those of others, or its text failed: let it "
                    "make a text before it is saved"
                )
            snapshots.save(Path(path), self._llm.bundle.digest, slot)

    def close(self) -> None:
        """Give its memory back; what `tokens` held is gone."""
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
