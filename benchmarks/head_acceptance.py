"""Measures what a bundle's draft gets accepted, and what drafting costs.

    python benchmarks/head_acceptance.py BUNDLE --prompts humaneval.jsonl --chat

For each temperature it drafts chains, which give the acceptance by depth: the share of rounds in
which a token was accepted, of those in which all before it were. Then it drafts trees of some
sizes. All texts are compared with those of plain decoding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from common import add_threads, count, counts, exit_code, print_result, print_table

from edgespec import LLM
from edgespec.api.generation import GenerationStream
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.decoding.generate import Round

_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        temperature: 0 for greedy texts.
        nodes: most nodes of a tree; chains if `width` is 1.
        width: most branches of a level.
        tokens_a_round: new tokens per round.
        draft_ms: median duration of a draft.
        verify_ms: median duration of the target's pass.
        acceptance: accepted share by depth, of chains; empty for trees.
        equal: texts that are plain decoding's.
    """

    temperature: float
    nodes: int
    width: int
    tokens_a_round: float
    draft_ms: float
    verify_ms: float
    acceptance: tuple[float, ...]
    equal: int


def main() -> None:
    arguments = _parse_arguments()
    prompts = read_prompts(arguments.prompts, arguments.limit)
    lines: list[Line] = []
    with LLM(arguments.bundle, draft=arguments.draft, threads=arguments.threads) as llm:
        asked = [_tokens(llm, prompt, arguments.chat) for prompt in prompts]
        for temperature in _TEMPERATURES:
            how = {"max_new_tokens": arguments.new_tokens, "temperature": temperature, "seed": 0}
            plain = [llm.generate(each, draft_source="none", **how).tokens for each in asked]
            for nodes, width in ((arguments.depth, 1), *((n, 4) for n in arguments.trees)):
                options = {**how, "num_assistant_tokens": nodes, "tree_width": width}
                streams = [llm.stream(each, **options) for each in asked]
                texts = [stream.finish().tokens for stream in streams]
                equal = sum(map(list.__eq__, texts, plain))
                lines.append(_line(temperature, nodes, width, streams, equal))
        provenance = llm.bundle.manifest.provenance
    print_table(
        ["T", "nodes", "width", "tokens/round", "draft ms", "verify ms", "accepted", "equal"],
        [
            [*list(asdict(each).values())[:6], " ".join(f"{a:.0%}" for a in each.acceptance),
             f"{each.equal}/{len(asked)}"]
            for each in lines
        ],
    )  # fmt: skip
    print_result(
        "head_acceptance",
        {
            "bundle": provenance,
            "draft": arguments.draft,
            "prompts": [path.name for path in arguments.prompts],
            "chat": arguments.chat,
            "texts": len(asked),
            "new_tokens": arguments.new_tokens,
            "threads": arguments.threads,
            "lines": [asdict(each) for each in lines],
        },
    )


def _tokens(llm: LLM, prompt: str, chat: bool) -> list[int]:
    if chat:
        return llm.chat_tokens([{"role": "user", "content": prompt}])
    return llm.tokenizer.encode(prompt)


def _line(
    temperature: float, nodes: int, width: int, streams: Sequence[GenerationStream], equal: int
) -> Line:
    rounds = [each for stream in streams for each in stream.rounds if each.drafted]
    return Line(
        temperature=temperature,
        nodes=nodes,
        width=width,
        tokens_a_round=round(sum(len(each.tokens) for each in rounds) / len(rounds), 3),
        draft_ms=round(1e3 * median(each.draft_seconds for each in rounds), 2),
        verify_ms=round(1e3 * median(each.verify_seconds for each in rounds), 2),
        acceptance=_by_depth(rounds, nodes) if width == 1 else (),
        equal=equal,
    )


def _by_depth(rounds: Sequence[Round], depths: int) -> tuple[float, ...]:
    """Returns the accepted share by depth; a chain that ended earlier counts as far as it went."""
    shares = []
    for depth in range(depths):
        reached = [each for each in rounds if each.drafted > depth and each.accepted >= depth]
        accepted = sum(each.accepted > depth for each in reached)
        shares.append(round(accepted / len(reached), 3) if reached else 0.0)
    return tuple(shares)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a draft gets accepted, and what it costs.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "--prompts", type=Path, nargs="*", default=[], metavar="FILE",
        help="files with prompts, as for edgespec bench (default: built-in code)",
    )  # fmt: skip
    parser.add_argument("--limit", type=count, default=8, help="number of prompts (default 8)")
    parser.add_argument("--chat", action="store_true", help="ask by the chat template")
    parser.add_argument("--draft", choices=("head", "model"), default="head", help="(default head)")
    parser.add_argument("--depth", type=count, default=4, help="tokens of a chain (default 4)")
    parser.add_argument(
        "--trees", type=counts, default=[4, 8, 16], metavar="N,N,...",
        help="sizes of trees (default 4,8,16)",
    )  # fmt: skip
    parser.add_argument(
        "--new-tokens", type=count, default=96, help="new tokens of each text (default 96)"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
