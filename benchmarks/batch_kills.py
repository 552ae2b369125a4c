"""Kills `edgespec batch` at random moments, and compares its output with an undisturbed run's.

    python benchmarks/batch_kills.py [BUNDLE] [--prompts HumanEval.jsonl] [--texts 200] [--kills 5]

Half of the requests are greedy, half are sampled without a seed. A process is killed when a random
number of texts is finished, or up to a fifth of a second later; `answers` is what it left in the
journal. In the end the outputs must be equal byte for byte, and no other file may be left.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import add_threads, count, exit_code, print_result, print_table

from edgespec.errors import EdgespecError
from edgespec.measuring.prompts import read_prompts
from edgespec.models.embedded import BUNDLE


def main() -> None:
    arguments = _parse_arguments()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        requests, whole, killed = folder / "in.jsonl", folder / "whole.jsonl", folder / "out.jsonl"
        _write(requests, arguments)
        begin = time.perf_counter()
        summary = _finish(_start(requests, whole, arguments))
        seconds = time.perf_counter() - begin
        rows = []
        for number, wanted in enumerate(_moments(arguments, rng), 1):
            left = _kill_later(requests, killed, arguments, wanted, rng.random() / 5)
            rows.append([number, *left])
        _finish(_start(requests, killed, arguments))
        identical = whole.read_bytes() == killed.read_bytes()
        left_over = set(folder.iterdir()) - {requests, whole, killed}
    print_table(["kill", "seconds", "answers"], rows)
    values = {
        "texts": arguments.texts,
        "tokens": arguments.tokens,
        "parallel": arguments.parallel,
        "threads": arguments.threads,
        "undisturbed": summary,
        "undisturbed_s": round(seconds, 1),
        "answers_at_kills": [answers for *_, answers in rows],
        "identical": identical,
        "left_over": sorted(left_over),
    }
    print_result("batch_kills", values)
    if not identical or left_over:
        sys.exit(1)


def _write(path: Path, arguments: argparse.Namespace) -> None:
    """Writes the requests; prompts that come again are told apart by a comment."""
    prompts = read_prompts(arguments.prompts)
    lines = []
    for number in range(arguments.texts):
        again, place = divmod(number, len(prompts))
        body = {
            "prompt": f"# {again}\n{prompts[place]}" if again else prompts[place],
            "max_tokens": arguments.tokens,
            "temperature": number % 2,
        }
        request = {"custom_id": f"text-{number}", "method": "POST", "url": "/v1/completions"}
        lines.append(json.dumps({**request, "body": body}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def _start(requests: Path, output: Path, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "edgespec", "batch", str(arguments.bundle), str(requests),
        "-o", str(output), f"--parallel={arguments.parallel}", f"--device={arguments.device}",
        f"--draft-device={arguments.device}", f"--threads={arguments.threads}",
        f"--context={arguments.context}",
    ]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> str:
    """Waits for the end of a command, and returns its last line."""
    said = process.communicate()[1].decode()
    if process.returncode:
        raise EdgespecError(f"the batch ended with {process.returncode}: {said}")
    return said.splitlines()[-1].rpartition(": ")[2]


def _moments(arguments: argparse.Namespace, rng: random.Random) -> list[int]:
    """Returns how many texts are finished at each kill, in rising order."""
    most = max(arguments.texts - 2 * arguments.parallel, 1)
    return sorted(rng.randrange(most) for _ in range(arguments.kills))


def _kill_later(
    requests: Path, output: Path, arguments: argparse.Namespace, wanted: int, more: float
) -> tuple[float, int]:
    """Starts the batch and kills it; returns how long it lived, and the answers it left."""
    journal = Path(f"{output}.partial")
    begin = time.perf_counter()
    process = _start(requests, output, arguments)
    while process.poll() is None and not (journal.exists() and _answers(journal) >= wanted):
        time.sleep(0.01)
    time.sleep(more)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise EdgespecError("the batch ended before it was killed: give more --texts")
    return round(time.perf_counter() - begin, 1), _answers(journal)


def _answers(journal: Path) -> int:
    return max(journal.read_bytes().count(b"\n") - 1, 0) if journal.exists() else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE)
    parser.add_argument("--prompts", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--texts", type=count, default=200, help="number of requests")
    parser.add_argument("--tokens", type=count, default=64, help="maximum length of a text")
    parser.add_argument("--kills", type=count, default=5)
    parser.add_argument("--parallel", type=count, default=8)
    parser.add_argument("--context", type=count, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
