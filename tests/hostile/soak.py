"""Tests a server with many clients for a while, some of which disconnect early.

    python tests/hostile/soak.py [BUNDLE] [--minutes 10]

First, plain decoding generates greedy texts. Then `edgespec serve` runs in a separate process.
Clients request these texts, half of them as streams, some of them twice in one request and some in
Ollama's API, and close some of their connections at random times. Of a model that knows chats,
tools or infill they also request these, on all routes that have them, and expect what the server
answered when only one client asked. It counts texts that differ from the expected ones (`wrong`),
missing ones (`lost`), ones whose client disconnected (`cut`), of these the ones that ran for more
than one further round (`late`), and ones still running at the end (`left`). The server's anonymous
and shared memory must not grow: the mean of the last quarter of the time is compared with the
second quarter, when the caches are full.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean

import httpx

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

from common import add_threads, count, exit_code, memory, print_result, print_table
from serving import model_name, served
from soak_questions import Known, Question, questions

from edgespec import LLM
from edgespec.measuring.prompts import PYTHON
from edgespec.models.embedded import BUNDLE
from edgespec.system.environment import MIB

_TOKENS = 48
_VARIANTS = 6  # of each prompt
_CANCELLED = 0.3  # of the requests
_GONE_WITHIN = 1.0  # seconds
_MOST_GROWTH = 0.02
_PATIENCE = 300  # seconds that an answer may take
_SETTLE = 10  # seconds that the server has to end what nobody waits for


def main() -> None:
    arguments = _parse_arguments()
    seconds = arguments.seconds or 60 * arguments.minutes
    completed = _completed(arguments)
    options = (
        f"--parallel={arguments.parallel}",
        f"--queue={arguments.clients}",
        f"--threads={arguments.threads}",
        f"--context={arguments.context}",
    )
    with served(arguments.bundle, *options) as (process, url):
        soak = _soak(process.pid, url, completed, arguments.clients, seconds)
        sizes, outcomes = asyncio.run(soak)
        numbers = asyncio.run(_settled(url))
    cancels = numbers["edgespec_rounds_after_cancel_count"]
    late = cancels - numbers['edgespec_rounds_after_cancel_bucket{le="1.0"}']
    quarters = [mean(sizes[len(sizes) * part // 4 :][: len(sizes) // 4]) / MIB for part in range(4)]
    facts = {
        "right": outcomes["right"],
        "wrong": outcomes["wrong"],
        "lost": outcomes["lost"],
        "went": outcomes["went"],
        "cut": int(cancels),
        "late": int(late),
        "left": int(numbers["edgespec_texts_running"] + numbers["edgespec_texts_waiting"]),
        "exit": process.returncode,
        "MiB": round(quarters[1], 1),
        "MiB later": round(quarters[3], 1),
        "growth": round(quarters[3] / quarters[1] - 1, 4),
    }
    print_table(list(facts), [list(facts.values())])
    sound = facts["growth"] <= _MOST_GROWTH and not any(
        facts[name] for name in ("wrong", "lost", "late", "left", "exit")
    )
    values = {
        "seconds": seconds,
        "clients": arguments.clients,
        "parallel": arguments.parallel,
        "context": arguments.context,
        "threads": arguments.threads,
        "completed": len(completed),
        **facts,
        "right by route": {name: times for name, times in outcomes.items() if "/" in name},
        "MiB by quarter": [round(each, 1) for each in quarters],
        "ttft_s": _mean(numbers, "time_to_first_token_seconds"),
        "tpot_s": _mean(numbers, "time_per_output_token_seconds"),
        "sound": sound,
    }
    print_result("soak", values)
    if not sound:
        sys.exit(1)


def _completed(arguments: argparse.Namespace) -> list[Known]:
    """Returns plain decoding's texts."""
    known = list[Known]()
    with LLM(arguments.bundle, draft="none", threads=arguments.threads) as llm:
        for prompt in (f"# {part}\n{prompt}" for prompt in PYTHON for part in range(_VARIANTS)):
            tokens = llm.tokenizer.encode(prompt)
            text = llm.generate(tokens, max_new_tokens=_TOKENS)
            known.append(Known(tokens, prompt, _TOKENS, text.text))
    return known


async def _soak(
    pid: int, url: str, completed: list[Known], clients: int, seconds: float
) -> tuple[list[int], Counter[str]]:
    """The server's memory in every second, and the counts of request outcomes."""
    outcomes: Counter[str] = Counter()
    sizes = []
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE) as client:
        model = model_name(url)
        known = [asked for each in completed for asked in each.questions(model)]
        known += [
            (each, await each.answer(client, stream=False)) for each in await questions(client)
        ]
        end = time.monotonic() + seconds
        tasks = [
            asyncio.create_task(_client(client, known, random.Random(each), end, outcomes))
            for each in range(clients)
        ]
        while time.monotonic() < end:
            sizes.append(memory(pid))
            await asyncio.sleep(1)
        await asyncio.gather(*tasks)
    return sizes, outcomes


async def _client(
    client: httpx.AsyncClient,
    known: list[tuple[Question, list[str]]],
    rng: random.Random,
    end: float,
    outcomes: Counter[str],
) -> None:
    """One request after the other."""
    while time.monotonic() < end:
        question, wanted = rng.choice(known)
        patience = rng.uniform(0, _GONE_WITHIN) if rng.random() < _CANCELLED else None
        try:
            async with asyncio.timeout(patience):
                texts = await question.answer(client, stream=rng.random() < 0.5)
        except TimeoutError:
            outcomes["went"] += 1
        except (httpx.HTTPError, KeyError, ValueError) as error:
            print(f"lost: {question.path} {error!r}", file=sys.stderr)
            outcomes["lost"] += 1
        else:
            right = texts == wanted
            outcomes["right" if right else "wrong"] += 1
            outcomes[question.path] += right
            if not right:
                print(f"wrong: {question.path} {texts} in place of {wanted}", file=sys.stderr)


async def _settled(url: str) -> dict[str, float]:
    """The server's numbers, when it has nothing to do any more or should have nothing."""
    end = time.monotonic() + _SETTLE
    async with httpx.AsyncClient(base_url=url) as client:
        while True:
            lines = (await client.get("/metrics")).text.splitlines()
            pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            numbers = {name: float(value) for name, value in pairs}
            left = numbers["edgespec_texts_running"] + numbers["edgespec_texts_waiting"]
            if not left or time.monotonic() > end:
                return numbers
            await asyncio.sleep(0.1)


def _mean(numbers: dict[str, float], name: str) -> float:
    total, times = (numbers[f"edgespec_{name}_{part}"] for part in ("sum", "count"))
    return round(total / times, 4) if times else 0.0


def _seconds(text: str) -> int:
    seconds = count(text)
    if seconds < 8:
        raise argparse.ArgumentTypeError(f"{text!r}: give 8 or more")
    return seconds


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Many clients of one server, some of which disconnect."
    )
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE, metavar="BUNDLE")
    parser.add_argument("--minutes", type=count, default=10, help="minutes to run (default 10)")
    parser.add_argument("--seconds", type=_seconds, help="seconds to run instead, at least 8")
    parser.add_argument("--clients", type=count, default=16, help="number of clients (default 16)")
    parser.add_argument("--parallel", type=count, default=4, help="texts at once (default 4)")
    parser.add_argument(
        "--context",
        type=count,
        default=1024,
        help="context: so short that the caches are full before memory is looked at (default 1024)",
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
