"""Measures how long a user waits: from a file to the first token, again, and in a conversation.

    python benchmarks/clock.py qwen-1.5b.gguf --checkpoint qwen-1.5b --cache peers --peers xllamacpp

* `edgespec run`, from the start of the process to the first character, with an empty cache folder
  and with the one that is left: for the GGUF file and for the checkpoint. What is made once is made
  anew in each repeat, and checkpoints in one repeat.
* a peer, from the start of its process to the first token for the same prompt, in turns with these.
* the first token of a second turn behind --prompt-tokens, in a session and by a model that has
  forgotten the first, and that of the same prompt in a new process with a prompt cache.

Files lie in the system's page cache. The least of the repeats counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from pathlib import Path

from common import add_threads, count, exit_code, names, print_result, print_table
from peers import FILES, PLAIN, Loading, Peer, PeerError
from peers.turns import tokenizer_of

from edgespec import LLM
from edgespec.errors import DeviceError
from edgespec.measuring.prompts import PYTHON

Times = defaultdict[str, list[float]]
"""Seconds by what was measured."""


def main() -> None:
    given = _parse_arguments()
    times: Times = defaultdict(list)
    failures = dict[str, str]()
    with tempfile.TemporaryDirectory(dir=given.cache) as scratch:
        for repeat in range(given.repeat):
            cache = Path(scratch) / str(repeat)
            times["edgespec run FILE.gguf, first start"].append(_start(given.model, cache, given))
            times["edgespec run FILE.gguf, second start"].append(_start(given.model, cache, given))
            if given.checkpoint is not None and not repeat:
                for which in ("first", "second"):
                    seconds = _start(given.checkpoint, cache, given)
                    times[f"edgespec run CHECKPOINT, {which} start"].append(seconds)
            for name in given.peers:
                try:
                    times[f"{name}, each start"].append(_peer(name, given))
                except PeerError as error:
                    failures[name] = str(error)
        os.environ["EDGESPEC_CACHE"] = str(Path(scratch) / "0")
        if given.prompt_tokens:
            _conversation(times, given)
    table = [[what, round(min(each), 2), len(each)] for what, each in times.items()]
    print_table(["from the command to the first token", "seconds", "repeats"], table)
    for name, reason in failures.items():
        print(f"not run: {name}: {reason}")
    print_result(
        "clock",
        {
            "model": given.model.name,
            "threads": given.threads,
            "seconds": times,
            "prompt_tokens": given.prompt_tokens,
            "failures": failures,
        },
    )


def _start(model: Path, cache: Path, given: argparse.Namespace) -> float:
    """Returns the seconds until `edgespec run` prints its first character."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "edgespec",
        "run",
        str(model),
        "--raw",
        PYTHON[0],
        "-n",
        "4",
        f"--threads={given.threads}",
    ]
    environment = {**os.environ, "EDGESPEC_CACHE": str(cache)}
    begin = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode:
        raise DeviceError(f"edgespec run ended with status {process.returncode}: run it by hand")
    return seconds


def _peer(name: str, given: argparse.Namespace) -> float:
    prompt = tokenizer_of(given.model).encode(PYTHON[0])
    loading = Loading(
        target=str(given.model),
        draft=None,
        setting=PLAIN,
        threads=given.threads,
        context=2048,
        sequences=1,
        folder=str(given.cache / "models" / name),
        checkpoint=given.checkpoint and str(given.checkpoint),
    )
    with Peer(name, loading, given.cache) as peer:
        asked = time.monotonic()
        return asked - peer.started + peer.texts([prompt], 1).first


def _conversation(times: Times, given: argparse.Namespace) -> None:
    """Adds times of second turns, and of a prompt that another process has read."""
    with LLM(given.model, threads=given.threads) as llm:
        llm.warm_up()
        for number in range(given.repeat):
            history = _prompt(llm, given.prompt_tokens, number)
            with llm.session() as session:
                first = session.generate(history, max_new_tokens=8)
                later = llm.tokenizer.encode("\n\ndef next_one(n):\n", add_special=False)
                prompt = [*history, *first.tokens, *later]
                warm = session.generate(prompt, max_new_tokens=8)
            llm.forget()
            cold = llm.generate(prompt, max_new_tokens=8)
            if cold.tokens != warm.tokens:
                raise DeviceError("a session's text is not that of a model that has forgotten")
            for what, result in (
                ("a prompt", first),
                ("a second turn, forgotten", cold),
                ("a second turn, in a session", warm),
            ):
                times[f"{given.prompt_tokens} tokens: {what}"].append(result.ttft_ms / 1e3)
    with tempfile.TemporaryDirectory() as folder:
        for what in ("", "read before by another process, --prompt-cache"):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                seconds = process.submit(_stored, given, folder).result()
            if what:
                times[f"{given.prompt_tokens} tokens: {what}"].append(seconds)


def _stored(given: argparse.Namespace, folder: str) -> float:
    with LLM(given.model, threads=given.threads, prompt_cache=folder) as llm:
        llm.warm_up()
        prompt = _prompt(llm, given.prompt_tokens, 0)
        return llm.generate(prompt, max_new_tokens=8).ttft_ms / 1e3


def _prompt(llm: LLM, length: int, number: int) -> list[int]:
    """Returns tokens of code whose beginning is this number's own."""
    return list(islice(cycle(llm.tokenizer.encode(f"# {number}\n" + "\n\n".join(PYTHON))), length))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--checkpoint", type=Path, help="folder of the model's checkpoint")
    parser.add_argument("--cache", type=Path, required=True, help="folder for environments, kept")
    parser.add_argument(
        "--peers",
        type=lambda text: names(text, tuple(FILES)) if text else [],
        default=["xllamacpp"],
        help="beside which it is measured (default xllamacpp); '': none",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=1000, help="of conversations; 0: none (default 1000)"
    )
    parser.add_argument("--repeat", type=count, default=2, help="repeats (default 2)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
