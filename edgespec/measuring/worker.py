"""Generation of texts in a separate process, so that several settings can take turns.

Each setting has its own interpreter, engines and peak memory; the others sleep while one works.
Requests and answers go over a pipe.
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

from edgespec.api.loading import LoadOptions
from edgespec.errors import DeviceError, EdgespecError

if TYPE_CHECKING:
    from edgespec.api.llm import LLM
    from edgespec.api.result import GenerationResult
    from edgespec.measuring.bits import Bits
    from edgespec.measuring.equality import Judge

_GRACE = 5.0  # seconds that the process has to end after the pipe is closed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """One text to make: the prompt's token ids and the options, the same in every setting."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Made:
    """A finished text and statistics of its rounds, without the prompt's pass.

    Attributes:
        result: finished text.
        accepted: number of accepted draft tokens in each round.
        draft_seconds: total time of drafting.
        verify_seconds: total time of verification.
    """

    result: GenerationResult
    accepted: tuple[int, ...]
    draft_seconds: float
    verify_seconds: float


class Worker:
    """A bundle loaded in a separate process; a context manager that ends the process.

    Args:
        name: name of the setting in messages.
        bundle: folder of the bundle.
        options: options to load it with.

    Attributes:
        context_length: maximum number of tokens of prompt and output together.

    Raises:
        EdgespecError: as `LLM` does, also in all methods. The process stays usable after a text
            failed.
        DeviceError: if the process ended, also in all methods.
    """

    def __init__(self, name: str, bundle: Path, options: LoadOptions) -> None:
        self._name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._output = Path(self._folder.name) / "output"
        level = logging.getLogger("edgespec").getEffectiveLevel()
        self._process = spawn.Process(
            target=_serve,
            args=(theirs, self._output, level, bundle, asdict(options)),
            daemon=True,
        )
        self._process.start()
        theirs.close()  # otherwise the pipe would stay open after the process has ended
        try:
            self.context_length: int = self._answer()
        except BaseException:
            self._process.kill()
            self.close()
            raise

    def make(self, request: Request) -> Made:
        """Makes a text, without what earlier texts taught."""
        made: Made = self._ask("make", request)
        return made

    def plain(self, request: Request) -> list[int]:
        """Makes the same text by plain decoding on this setting's engine; returns its tokens."""
        tokens: list[int] = self._ask("plain", request)
        return tokens

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Judge.verdict`."""
        verdict: str = self._ask("verdict", request, expected, found)
        return verdict

    def bits(self, text: Sequence[int], positions: int) -> Bits:
        """Compares the bits of the logits at the last positions of a text, see `compare_bits`.

        Args:
            text: token ids.
            positions: number of positions, less than the text has.
        """
        bits: Bits = self._ask("bits", text, positions)
        return bits

    def close(self) -> None:
        """Ends the process, even if it is working."""
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
            if not isinstance(answer, _LogLine):
                return answer
            _log.log(answer.level, "%s: %s", self._name, answer.text)

    def _ended(self) -> DeviceError:
        self._process.join(_GRACE)
        exists = self._output.exists()
        output = self._output.read_text("utf-8", "replace").strip() if exists else ""
        last = f" ({output.splitlines()[-1]})" if output else ""
        return DeviceError(
            f"{self._name}: its process ended with status {self._process.exitcode}{last}: "
            "leave it out, or use another --device"
        )


@dataclass(frozen=True)
class _LogLine:
    """A line that the process logged."""

    level: int
    text: str


def _serve(
    pipe: Connection, output: Path, level: int, bundle: Path, options: dict[str, Any]
) -> None:
    """Runs in the process: loads the bundle and answers until the pipe is closed.

    Args:
        pipe: end of the pipe for requests and answers.
        output: file that takes what is printed.
        level: level of log lines to pass on.
        bundle: folder of the bundle.
        options: options to load it with.
    """
    # The parent handles Ctrl-C in the terminal and ends this process. A handler, unlike SIG_IGN, is
    # not inherited by processes that this one starts.
    signal.signal(signal.SIGINT, lambda *_: None)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):  # libraries print, and the parent's stdout is for results
        os.dup2(descriptor, stream)
    # On Windows, Python's own streams for a console do not follow the descriptors.
    sys.stdout = sys.stderr = output.open("a", 1, "utf-8", "backslashreplace")
    log = logging.getLogger("edgespec")
    log.addHandler(_ToPipe(pipe))
    log.setLevel(level)
    try:
        try:
            texts = _Texts(bundle, options)
        except EdgespecError as error:
            pipe.send(error)
            return
        pipe.send(texts.context_length)
        while True:
            method, *arguments = pipe.recv()
            try:
                answer = getattr(texts, method)(*arguments)
            except EdgespecError as error:
                answer = error
            pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return


class _Texts:
    """The methods of `Worker`, as the process runs them."""

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
    """Sends log lines to the parent, which logs them."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self._pipe.send(_LogLine(record.levelno, record.getMessage()))
