"""Ctrl-C, readers that leave, disks that are full."""

from __future__ import annotations

import errno
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn
from commandline import FAST, PROMPT

from edgespec.cli import main
from edgespec.cli.interrupts import ignoring_termination
from edgespec.llm.stream import Stream
from edgespec.models.embedded import BUNDLE

FULL = Path("/dev/full")
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


@posix
def test_ctrl_c_ends_with_the_text_so_far(start):
    process = start("run", PROMPT, "-n", 2000, "--temperature=1", "--draft=none", *FAST)
    begun = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (begun + out).endswith(b"\n")
    assert b"tokens (cancelled), " in err
    assert len(err.splitlines()) == 2  # and what the demonstration is


_SEVERAL_ENGINES = """
import gc, signal
from edgespec import LLM
models = [LLM(device="openvino:cpu", draft="none", threads=1) for _ in range(3)]
models[0].generate("def", max_new_tokens=2)
del models[0]
gc.collect()
signal.signal(signal.SIGUSR1, lambda *_: print("heard"))
signal.raise_signal(signal.SIGUSR1)
models.clear()
gc.collect()
signal.raise_signal(signal.SIGUSR1)
"""


@pytest.mark.slow
@posix
def test_signals_are_heard_when_openvinos_models_have_come_and_gone():
    """Several cores of OpenVINO, freed out of order, would leave a signal stack that is gone."""
    found = subprocess.run(
        [sys.executable, "-c", _SEVERAL_ENGINES], capture_output=True, timeout=300, check=False
    )
    assert (found.returncode, found.stdout) == (0, b"heard\nheard\n"), found.stderr


@pytest.fixture
def interrupt_after(monkeypatch, interruptible):
    """Raise SIGINT a number of times once the first piece of text is out."""

    def arrange(times):
        pieces = Stream.__iter__

        def interrupted(self):
            for piece in pieces(self):
                yield piece
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Stream, "__iter__", interrupted)

    return arrange


def test_ctrl_c_still_gives_json(cli, interrupt_after):
    interrupt_after(1)
    result = cli("run", PROMPT, "-n", 500, "--json", *FAST)
    found = json.loads(result.out)
    assert result.code == 130
    assert found["finish_reason"] == "cancelled"
    assert 1 <= found["new_tokens"] < 20


def test_a_second_ctrl_c_does_not_wait(cli, interrupt_after):
    interrupt_after(2)
    result = cli("run", PROMPT, "-n", 500, "--json", *FAST)
    assert (result.code, result.out, result.err) == (130, "", "")


@posix
def test_a_reader_that_leaves_ends_it_quietly(start):
    process = start("run", BUNDLE, PROMPT, "-n", 2000, "--temperature=1", "--draft=none", *FAST)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


@posix
def test_a_reader_that_leaves_a_table_is_told_apart_from_a_fault_of_ours(start):
    process = start("inspect")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


def test_a_reader_that_leaves_on_windows(monkeypatch):
    class Left(io.TextIOWrapper):
        def write(self, text):
            raise OSError(errno.EINVAL, "Invalid argument")

        def fileno(self):
            raise io.UnsupportedOperation

    for system, code in (("win32", 141), ("linux", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            patch.setattr(sys, "stdout", Left(io.BytesIO(), "utf-8"))
            assert main(["inspect", "--json"]) == code


@posix
def test_what_ends_a_server_is_not_heard_again(monkeypatch):
    """As Ctrl-Break on Windows, by which programs end others there."""
    heard = []
    monkeypatch.setattr(uvicorn.server, "HANDLED_SIGNALS", (signal.SIGINT, signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    try:
        with ignoring_termination():
            signal.raise_signal(signal.SIGUSR1)
        assert heard == []
        signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_closed_stderr_leaves_stdout_to_the_results(cli, monkeypatch):
    for words, code in (([PROMPT, "-n", 1, *FAST], 0), ([PROMPT, "--seed=x"], 2)):
        monkeypatch.setattr(sys, "stderr", None)
        result = cli("run", *words)
        assert result.code == code
        assert "tokens" not in result.out
        assert "edgespec" not in result.out


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_output_that_does_not_fit_the_disk_is_an_error(tmp_path):
    run = [sys.executable, "-m", "edgespec", "inspect"]
    with FULL.open("w") as full:
        found = subprocess.run(
            run, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert found.returncode == 2
    assert found.stderr == "edgespec: No space left on device\n"
