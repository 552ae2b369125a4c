"""Work on what strangers have made, in another process, where it has limits.

A picture, a grammar or a template of a few bytes may ask for any time and memory, and no thread can
be ended. So a child imports once what such jobs need, and does each in a fork of itself with limits
of its own, which costs some milliseconds. Where processes cannot fork, the child does them itself,
and another one takes its place if it has to be ended.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from edgespec.errors import EdgespecError, InputError, reason
from edgespec.system.children import child_command
from edgespec.system.processes import listen_for_forks
from edgespec.system.waiting import NOBODY_WAITS

Why = Literal["time", "memory", "crash"]
"""Why a job was ended; a crash is most often a stack that is too deep."""

_DONE, _REFUSED = b"d", b"r"
_WHY: dict[bytes, Why] = {b"t": "time", b"m": "memory", b"c": "crash"}
_HEAD = 9  # bytes before what is said: its kind, and its length
_STARTED, _IDLE = 120, 60  # seconds: for a child to begin, and of a child without work
_LOOKS = 0.05  # seconds between looks at whether anybody still waits
_WITH_LIMITS = Path("/proc/self/statm").exists()  # of memory; looked after from here elsewhere


class JobError(Exception):
    """A job that was ended.

    Attributes:
        why: why.
    """

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True)
class JobLimits:
    """What a job may take.

    Attributes:
        seconds: processor time.
        megabytes: memory beyond what the child has before.
        patience: seconds by the clock, where other processes take the processor.
    """

    seconds: float
    megabytes: int
    patience: float = 10


def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a module of ours as a process to which we write and from which we read.

    Raises:
        InputError: if the system starts none, or this program cannot have any.
    """
    try:
        return subprocess.Popen(
            child_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise InputError(
            f"no process can be started to look at this safely ({reason(error)}): end others"
        ) from error


def require_waiter() -> None:
    """Checks that somebody waits for what this thread does.

    Raises:
        InputError: if not, who will not see that.
    """
    if NOBODY_WAITS.get()():
        raise InputError("nobody waits for this any more: ask again")


class PatientLock:
    """A lock that is free in a process that was just forked, where its holder's thread is not."""

    def __init__(self) -> None:
        self.after_fork()
        listen_for_forks(self)

    def after_fork(self) -> None:
        """See `ForkListener`."""
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock, for which it waits as long as somebody waits for this thread.

        Raises:
            InputError: as `require_waiter`.
        """
        lock = self._lock
        try:
            while not lock.acquire(timeout=_LOOKS):
                require_waiter()
            yield
        finally:
            with suppress(RuntimeError):  # it was not acquired; an interrupt may hide that it was
                lock.release()


class Worker:
    """Has a child do jobs, one at a time. It begins with the first, and ends when it has no work.

    Args:
        module: full name of a module whose `main` calls `serve`.
        limits: what it gives to `serve`.
        arguments: what `main` is called with.
    """

    def __init__(self, module: str, limits: JobLimits, *arguments: str) -> None:
        self._command = (module, *arguments)
        self._limits = limits
        self._lock = PatientLock()
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, job: bytes) -> bytes:
        """Returns what the child makes of a job.

        Raises:
            JobError: if it was ended.
            InputError: if the job raised one, or nobody waits for it any more.
        """
        with self._lock.held():
            if self._owner != os.getpid():  # the child is that of the process that was forked
                self._forget()
            kind, said = self._told(job)
            require_waiter()
        if kind == _REFUSED:
            raise InputError(said.decode())
        if kind != _DONE:
            raise JobError(_WHY[kind])
        return said

    def _told(self, job: bytes) -> tuple[bytes, bytes]:
        """Returns what kind of answer the child gives, and the answer."""
        child = self._child
        fresh = False
        while not fresh:  # a child that was there may just have ended, since it had no work
            if child is None or child.poll() is not None:
                child = self._started()
                fresh = True
            try:
                with _watched(child, self._limits.patience, self._limits.megabytes):
                    _write(child.stdin, _DONE, job)
                    if told := _read(child.stdout):
                        return told
            except OSError:
                pass
            except BaseException:  # an interruption, behind which its answer would be the next's
                child.kill()
                raise
            child.kill()
            child.wait()
        return b"t", b""

    def _started(self) -> subprocess.Popen[bytes]:
        child = start(*self._command)
        weakref.finalize(self, _end, child, os.getpid())
        with _watched(child, _STARTED, math.inf):
            if _read(child.stdout) is None:
                require_waiter()
                raise InputError(f"{self._command[0]} cannot be run as a process: install it again")
        self._child = child
        return child


@contextmanager
def _watched(child: subprocess.Popen[bytes], seconds: float, megabytes: float) -> Iterator[None]:
    """Ends a child that takes too long, or its job if nobody waits for that any more."""
    come = threading.Event()
    nobody_waits = NOBODY_WAITS.get()

    def watch() -> None:
        late = time.monotonic() + seconds
        while not come.wait(_LOOKS):
            too_large = not _WITH_LIMITS and _megabytes(child) > megabytes
            if time.monotonic() > late or too_large:
                child.kill()
            elif nobody_waits():
                child.kill() if sys.platform == "win32" else child.send_signal(signal.SIGUSR1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        come.set()


def _megabytes(child: subprocess.Popen[bytes]) -> float:
    """Returns the memory of a child and of its fork."""
    import psutil  # needed on few systems

    with suppress(psutil.Error):
        process = psutil.Process(child.pid)
        sizes = [each.memory_info().rss for each in (process, *process.children())]
        return float(sum(sizes)) / 2**20
    return 0


def _end(child: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):  # of a job that was being written
                pipe.close()


def _write(pipe: IO[bytes] | None, kind: bytes, said: bytes) -> None:
    assert pipe is not None
    pipe.write(kind + len(said).to_bytes(_HEAD - 1))
    pipe.write(said)
    pipe.flush()


def _read(pipe: IO[bytes] | None) -> tuple[bytes, bytes] | None:
    """Returns the kind of what is said, and that; None if the other side has ended."""
    assert pipe is not None
    head = pipe.read(_HEAD)
    if len(head) < _HEAD:
        return None
    length = int.from_bytes(head[1:])
    said = pipe.read(length)
    return (head[:1], said) if len(said) == length else None


# What follows runs in the child.


def serve(do: Callable[[bytes], bytes], limits: JobLimits) -> None:
    """Does the jobs of a `Worker`, until that or its process ends.

    Args:
        do: returns what is made of a job; an `EdgespecError` that it raises is passed on.
        limits: see `Worker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the parent
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as long as there is no job
    _write(sys.stdout.buffer, _DONE, b"")
    while True:
        if sys.platform != "win32":
            signal.alarm(_IDLE)
        job = _read(sys.stdin.buffer)
        if sys.platform != "win32":
            signal.alarm(0)
        if job is None:
            return
        kind, said = _done(do, job[1]) if sys.platform == "win32" else _forked(do, job[1], limits)
        _write(sys.stdout.buffer, kind, said)


def _done(do: Callable[[bytes], bytes], job: bytes) -> tuple[bytes, bytes]:
    try:
        return _DONE, do(job)
    except EdgespecError as error:
        return _REFUSED, str(error).encode(errors="replace")
    except MemoryError:
        return b"m", b""
    except Exception:  # what could be told has been told as an error of ours
        return b"c", b""


if sys.platform != "win32":
    import resource

    _ENDED = {
        signal.SIGPROF: b"t",
        signal.SIGXCPU: b"t",
        signal.SIGALRM: b"t",
        signal.SIGKILL: b"t",
        signal.SIGABRT: b"m",
    }

    def _forked(do: Callable[[bytes], bytes], job: bytes, limits: JobLimits) -> tuple[bytes, bytes]:
        """Does a job in a process of its own, to which alone its limits apply."""
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            try:
                os.close(reading)
                _limit(limits)
                kind, said = _done(do, job)
                with os.fdopen(writing, "wb") as told:
                    told.write(kind + said)
                os._exit(0)
            finally:
                os._exit(1)

        def end(*_: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

        os.close(writing)
        signal.signal(signal.SIGUSR1, end)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if status < 0:
            return _ENDED.get(signal.Signals(-status), b"c"), b""
        if status:
            return b"m", b""
        return answer[:1] or b"c", answer[1:]

    def _limit(limits: JobLimits) -> None:
        """Ends this process where it takes more than a job may."""
        signal.alarm(max(math.ceil(limits.patience) - 2, 1))
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        seconds = math.ceil(limits.seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if _WITH_LIMITS:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + (limits.megabytes << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
