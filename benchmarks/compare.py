"""Compares edgespec with other runtimes, with the same checkpoint, prompts and threads.

    python benchmarks/compare.py qwen-1.5b --draft qwen-0.5b --cache peers --prompts HumanEval.jsonl
    python benchmarks/compare.py qwen-1.5b --cache peers --settings plain --contexts 512,2048
    python benchmarks/compare.py qwen-1.5b --cache peers --peers edgespec-gguf,llama.cpp-gguf

The others are llama.cpp, OpenVINO GenAI, ONNX Runtime GenAI and transformers. Each has its own
virtual environment and model format below --cache; both are created once and kept. All settings
are loaded at the same time, each in its own process, and take turns text by text. Prompts are token
ids. If a setting cannot run, the reason is printed. Peers named `-gguf`, `xllamacpp` and
`ik_llama.cpp` read the GGUF file beside the checkpoint's folder, `qwen-1.5b.gguf`.

--prepare only creates environments and models and loads each setting once, so that the caches of
the other runtimes are filled too.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from common import add_threads, count, counts, exit_code, names, print_result, print_table
from peers import BY_NAME_ALONE, PEERS, peer
from peers.base import AUTO, DRAFT, LOOKUP, PLAIN, Checkpoints, Loading, Request
from peers.lines import SPEED_HEADER, Line, context_cells, failures_lines, speed_lines
from peers.measure import Job, Measured, measure
from peers.setup import stretched
from prompts import CHAT

from edgespec.measuring.prompts import read_prompts
from edgespec.models import load_checkpoint
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

_SETTINGS = (PLAIN, LOOKUP, DRAFT, AUTO)


def main() -> None:
    arguments = _parse_arguments()
    pair = Checkpoints(arguments.target.absolute(), _absolute(arguments.draft))
    requests = _requests(arguments, Tokenizer.from_folder(pair.target))
    longest = max(len(request.prompt) + request.new_tokens for _, request in requests)
    pair = stretched(pair, longest, arguments.cache)
    job = Job(
        checkpoints=pair,
        settings=dict.fromkeys(arguments.peers, arguments.settings),
        requests=requests,
        repeats=0 if arguments.prepare else arguments.repeat,
        loading=Loading(
            setting="",
            folder=arguments.cache,
            threads=arguments.threads,
            context=longest,
            eos_ids=load_checkpoint(pair.target).config.eos_ids,
            device=arguments.device,
        ),
        cache=arguments.cache.absolute(),
    )
    found = measure(job)
    if arguments.prepare:
        for way in found.ways:
            print(f"{way.name}: ready, {way.start_seconds:.1f} s to its first token")
    lines = [] if arguments.prepare else _print_tables(arguments, found)
    for line in failures_lines(found.failures):
        print(line)
    if arguments.prepare:
        return
    _keep(arguments, job, found, lines)


def _print_tables(arguments: argparse.Namespace, found: Measured) -> list[Line]:
    if arguments.contexts:
        print_table(*_by_context(arguments, found))
        return []
    lines = []
    for temperature in arguments.temperature:
        mine = speed_lines(found.ways, found.rows, temperature)
        print(f"\nT={temperature:g}\n")
        print_table(SPEED_HEADER, [line.cells() for line in mine])
        lines += mine
    return lines


def _keep(arguments: argparse.Namespace, job: Job, found: Measured, lines: list[Line]) -> None:
    """Writes the JSON line and the raw rows."""
    contexts = _by_context(arguments, found)
    print_result(
        "compare",
        {
            "checkpoint": arguments.target.name,
            "draft": arguments.draft and arguments.draft.name,
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "device": arguments.device,
            "prompts": len({number for number, _ in job.requests}),
            "repeats": arguments.repeat,
            "settings": {name: peer(name).settings for name in arguments.peers},
            "peer_versions": found.versions,
            "failures": found.failures,
            "lines": [asdict(line) for line in lines],
            "contexts": [dict(zip(contexts[0], line, strict=True)) for line in contexts[1]],
        },
    )
    if arguments.raw is not None:
        rows = {"ways": list(map(asdict, found.ways)), "rows": list(map(asdict, found.rows))}
        arguments.raw.write_text(json.dumps(rows) + "\n", encoding="utf-8")


def _by_context(
    arguments: argparse.Namespace, found: Measured
) -> tuple[list[str], list[list[object]]]:
    """Returns the table's header and lines; empty if no contexts were given."""
    if not arguments.contexts:
        return [], []
    return context_cells(found.ways, found.rows, arguments.contexts)


def _requests(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[tuple[int, Request]]:
    """Returns each prompt at each temperature, or one greedy text for each context length."""
    prompts = [tokenizer.encode(text) for text in read_prompts(arguments.prompts, arguments.limit)]
    if arguments.chat:
        asked = arguments.prompts and read_prompts(arguments.prompts, arguments.limit)
        chats = [
            tokenizer.chat([{"role": "user", "content": text}])
            for text in asked or CHAT[: arguments.limit]
        ]
        prompts = [tokenizer.encode(text, add_special=False) for text in chats]
    new_tokens = arguments.new_tokens
    if arguments.contexts:
        stream = [token for prompt in prompts for token in prompt]
        lengths = [context - new_tokens for context in arguments.contexts]
        return [
            (number, Request(_cycled(stream, length), new_tokens, 0.0, 0))
            for number, length in enumerate(lengths)
        ]
    return [
        (number, Request(tuple(prompt), new_tokens, temperature, 1000 * number))
        for number, prompt in enumerate(prompts)
        for temperature in arguments.temperature
    ]


def _cycled(tokens: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(islice(cycle(tokens), length))


def _absolute(path: Path | None) -> Path | None:
    return path and path.absolute()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="edgespec and its peers on one checkpoint.")
    parser.add_argument("target", type=Path, help="folder of the checkpoint")
    parser.add_argument("--draft", type=Path, help="folder of its draft's checkpoint")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for all files, which are kept"
    )
    parser.add_argument(
        "--peers", type=lambda text: names(text, tuple(PEERS)),
        default=[name for name in PEERS if name not in BY_NAME_ALONE],
        help=f"of {','.join(PEERS)} (default: all but {', '.join(BY_NAME_ALONE)})",
    )  # fmt: skip
    parser.add_argument(
        "--settings", type=lambda text: names(text, _SETTINGS), default=list(_SETTINGS),
        help=f"of {','.join(_SETTINGS)}, where a peer has them (default all)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="device of edgespec's target (default cpu)")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=(), help="JSON lines with prompt or turns"
    )
    parser.add_argument(
        "--chat", action="store_true", help="ask questions in the model's chat template"
    )
    parser.add_argument("--limit", type=count, help="number of prompts to use, from the first")
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument(
        "--contexts",
        type=counts,
        default=[],
        help="context lengths to test instead of prompts, such as 512,2048",
    )
    parser.add_argument(
        "--repeat", type=count, default=3, help="repeats; the median is reported (default 3)"
    )
    parser.add_argument(
        "--raw", type=Path, metavar="FILE", help="write every text to this JSON file"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="only create environments and models"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    if arguments.draft is None:
        arguments.settings = [name for name in arguments.settings if name != DRAFT]
    if arguments.contexts and min(arguments.contexts) <= arguments.new_tokens:
        parser.error(f"--contexts: the {arguments.new_tokens} new tokens are a part of each")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
