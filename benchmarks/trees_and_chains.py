"""Compares what a drafter's chains and its trees of several sizes bring.

    python benchmarks/trees_and_chains.py BUNDLE --source head --limit 8

Rows are made to look nearly free, so that every round has as many nodes as it may: tokens a round
then tell of the drafter alone. The gain is by what passes of so many rows cost on this machine with
one thread, and the median time of a draft. Texts are compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from common import count, counts, exit_code, facts_of, mean_length, print_result, print_table
from prompts import CHAT

from edgespec import LLM
from edgespec.llm.llm import inside
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.sequences.model import PassCost

_HOW: Mapping[str, Mapping[str, Any]] = {"greedy": {}, "T = 0.8": {"temperature": 0.8, "seed": 1}}
_FREE = {1: 1.0, 64: 1.001}  # seconds by rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--source", default="head", help="draft source (default: head)")
    parser.add_argument("--chain", type=count, default=7, help="nodes of a chain (default: 7)")
    parser.add_argument("--trees", type=counts, default=[4, 8, 16, 32], metavar="N,N")
    parser.add_argument("--limit", type=count, default=8, help="prompts of a kind (default: 8)")
    parser.add_argument("--tokens", type=count, default=96, help="new tokens (default: 96)")
    arguments = parser.parse_args()
    sizes = [(arguments.chain, 1), *((nodes, 4) for nodes in arguments.trees)]
    rows = []
    found = {}
    with LLM(arguments.bundle, draft="auto", threads=1, context=1024) as llm:
        inside(llm).engine.measure()
        real = inside(llm).engine.target.cost
        for kind, prompts in _prompts(llm, arguments.limit).items():
            for how, sampling in _HOW.items():
                options = {"max_new_tokens": arguments.tokens, **sampling}
                plain = llm.generate(prompts, draft_source="none", **options)
                for nodes, width in sizes:
                    inside(llm).engine.target.cost = PassCost(_FREE)
                    streams = [
                        llm.stream(
                            each,
                            draft_source=arguments.source,
                            num_assistant_tokens=nodes,
                            tree_width=width,
                            **options,
                        )
                        for each in prompts
                    ]
                    made = [stream.finish() for stream in streams]
                    inside(llm).engine.target.cost = real
                    same = sum(a.tokens == b.tokens for a, b in zip(made, plain, strict=True))
                    drafts = [each.draft_seconds for stream in streams for each in stream.rounds]
                    length = mean_length(made)
                    spent = median([each for each in drafts if each])
                    gain = length * real.seconds(1) / (real.seconds(nodes + 1) + spent)
                    name = f"{kind}, {how}, {'chain' if width == 1 else 'tree'} of {nodes}"
                    found[name] = facts = [length, round(1e3 * spent, 1), round(gain, 2)]
                    rows.append([name, *facts, f"{same}/{len(made)}"])
    print_table(["texts", "tokens a round", "ms a draft", "of plain's speed", "same"], rows)
    print("ms of a pass:", {n: round(1e3 * real.seconds(n), 1) for n in (1, 5, 9, 17, 33)})
    print_result("trees_and_chains", {**facts_of(arguments.bundle), "found": found})


def _prompts(llm: LLM, limit: int) -> dict[str, list[list[int]]]:
    def asked(text: str) -> list[int]:
        if not llm.tokenizer.has_chat_template:
            return llm.tokenizer.encode(text)
        return llm.chat_tokens([{"role": "user", "content": text}])

    code = [f"Complete this function:\n```python\n{each}\n```" for each in PYTHON[:limit]]
    return {"code": list(map(asked, code)), "chat": list(map(asked, CHAT[:limit]))}


if __name__ == "__main__":
    sys.exit(exit_code(main))
