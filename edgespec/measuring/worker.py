"""Texts made in a process of its own, so that several settings can take turns.

Each setting has an interpreter, engines and a peak of memory of its own; the others sleep while
one works. What is asked and answered goes over a pipe.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgespec.errors import DeviceError, EdgespecError
from edgespec.runtime.deployment.options import LoadOptions

if TYPE_CHECKING:
    from edgespec.api.llm import LLM
    from edgespec.api.result import GenerationResult
    from edgespec.measuring.bits import Bits
    from edgespec.measuring.equality import Judge

_GRACE = 5.0  # seconds to end in, once nobody asks any more

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """One text: the prompt's token ids, and how every setting makes it."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Made:
    """A text, and its rounds behind the prompt's pass.

    Attributes:
        result: of the text.
        accepted: draft tokens that each round accepted.
        draft_seconds: that drafts took.
        verify_seconds: that verifications took.
    """

    result: GenerationResult
    accepted: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float


class Worker:
    """A bundle loaded in a process of its own; a context manager that ends it.

    Args:
        name: of the setting, in messages.
        bundle: a bundle's folder.
        options: how to load it.

    Attributes:
        context_length: tokens of prompt and output together.

    Raises:
        EdgespecError: as `LLM` does.
        DeviceError: if the process ended, here and in all methods.
    """

    def __init__(self, name: str, bundle: Path, options: LoadOptions) -> None:
        self._name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._said = Path(self._folder.name) / "said"
        level = logging.getLogger("edgespec").getEffectiveLevel()
        self._process = spawn.Process(
            target=_serve,
            args=(theirs, self._said, level, bundle, asdict(options)),
            daemon=True,
        )
        self._process.start()
        theirs.close()  # or the end of the process would not end the pipe
        try:
            self.context_length: int = self._answer()
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def make(self, request: Request) -> Made:
        """A text, as if it were the first."""
        made: Made = self._ask("make", request)
        return made

    def plain(self, request: Request) -> list[int]:
        """The same text's tokens by plain decoding on this setting's engine."""
        tokens: list[int] = self._ask("plain", request)
        return tokens

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Judge.verdict`."""
        verdict: str = self._ask("verdict", request, expected, found)
        return verdict

    def bits(self, text: Sequence[int], positions: int) -> Bits:
        """See `compare_bits`, of the last so many positions of a text of more tokens."""
        bits: Bits = self._ask("bits", text, positions)
        return bits

    def close(self) -> None:
        """End the process, at once if it is at work."""
        self._pipe.close()
        self._process.join(_GRACE)
        self._process.kill()
        self._process.join()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()

    def _ask(self, *words: Any) -> Any:
        try:
            self._pipe.send(words)
        except OSError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> Any:
        while True:
            try:
                answer = self._pipe.recv()
            except (EOFError, OSError):
                raise self._ended() from None
            if isinstance(answer, EdgespecError):
                raise answer
            if not isinstance(answer, _Remark):
                return answer
            _log.log(answer.level, "%s: %s", self._name, answer.text)

    def _ended(self) -> DeviceError:
        self._process.join(_GRACE)
        said = self._said.read_text("utf-8", "replace").strip() if self._said.exists() else ""
        last = f" ({said.splitlines()[-1]})" if said else ""
        return DeviceError(
            f"{self._name}: its process ended with status {self._process.exitcode}{last}: "
            "leave it out, or use another --device"
        )


@dataclass(frozen=True)
class _Remark:
    """What the process logged."""

    level: int
    text: str


def _serve(pipe: Connection, said: Path, level: int, bundle: Path, options: dict[str, Any]) -> None:
    """The process's part: answer until nobody asks any more."""
    # The terminal's Ctrl-C is the asker's business, who ends this process; what it starts itself
    # has the usual handler again.
    signal.signal(signal.SIGINT, lambda *_: None)
    descriptor = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):  # libraries print, and stdout is for results
        os.dup2(descriptor, stream)
    # What Python has made of a console on Windows writes to no file.
    sys.stdout = sys.stderr = said.open("a", 1, "utf-8", "backslashreplace")
    log = logging.getLogger("edgespec")
    log.addHandler(_ToPipe(pipe))
    log.setLevel(level)
    try:
        texts = _Texts(bundle, options)
        pipe.send(texts.context_length)
        while True:
            method, *arguments = pipe.recv()
            pipe.send(getattr(texts, method)(*arguments))
    except EdgespecError as error:
        pipe.send(error)
    except (EOFError, BrokenPipeError):
        return


class _Texts:
    """What a process answers with; see `Worker`."""

    def __init__(self, bundle: Path, options: dict[str, Any]) -> None:
        from edgespec.api.llm import LLM

        self._llm: LLM = LLM(bundle, **options)
        self._judge: Judge | None = None
        self.context_length = self._llm.context_length

    def make(self, request: Request) -> Made:
        return self._stream(request)

    def plain(self, request: Request) -> list[int]:
        return self._stream(request, num_assistant_tokens=0).result.tokens

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        if self._judge is None:
            from edgespec.measuring.equality import Judge

            self._judge = Judge(self._llm.target, self._llm.tokenizer)
        return self._judge.verdict(
            request.prompt, expected, found, request.temperature, request.seed
        )

    def bits(self, text: Sequence[int], positions: int) -> Bits:
        from edgespec.measuring.bits import compare_bits

        return compare_bits(self._llm.target, text, len(text) - positions)

    def _stream(self, request: Request, **options: Any) -> Made:
        self._llm.forget()
        how = {name: value for name, value in asdict(request).items() if name != "prompt"}
        stream = self._llm.stream(request.prompt, **how, **options)
        for _ in stream:
            pass
        rounds = stream.rounds
        return Made(
            result=stream.result,
            accepted=tuple(step.accepted for step in rounds),
            draft_seconds=sum(step.draft_seconds for step in rounds),
            verify_seconds=sum(step.verify_seconds for step in rounds),
        )


class _ToPipe(logging.Handler):
    """Has the asker log what this process does."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send(_Remark(record.levelno, record.getMessage()))
