"""The first token of an agent's second turn, beside that of the first, also after a restart.

An agent sends its whole conversation again with each result of a tool. Prints the processor time to
the first token of each turn, and as JSON the ratios:

    python benchmarks/second_turn.py qwen-coder-0.5b.gguf --tokens 8000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import exit_code, print_result

from edgespec import LLM

_SYSTEM = "You are a coding agent. You read and change files by your tools."
_FILE = "def step_{0}(state):\n    return state + {0} * len(str(state))\n"
_ANSWER = "I have read the file. I run its tests next."


def main() -> None:
    """Measures both turns in one process, and the second one in another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=8000, help="of the first turn's prompt")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        how: dict[str, Any] = {"draft": "none", "threads": given.threads, "prompt_cache": folder}
        with LLM(given.model, **how) as llm:
            begun = _begun(llm, given.tokens)
            first = _seconds(llm, begun)
            second = _seconds(llm, [*begun, *_further("41 passed, 1 failed in test_step_7. ")])
        with LLM(given.model, **how) as llm:  # which knows nothing of the other second turn
            further = _further("40 passed, 2 failed in test_step_9. ")
            restarted = _seconds(llm, [*begun, *further])
    print(f"first turn {first:.2f} s, second {second:.2f} s, after a restart {restarted:.2f} s")
    facts = {
        "model": Path(given.model).name,
        "tokens": given.tokens,
        "first_seconds": round(first, 3),
        "second_ratio": round(second / first, 4),
        "restarted_ratio": round(restarted / first, 4),
    }
    print_result("second_turn", facts)


def _begun(llm: LLM, tokens: int) -> list[dict[str, str]]:
    """Returns the conversation of the first turn, of about so many tokens."""
    text = "Mend this file:\n"
    while True:
        text += "".join(map(_FILE.format, range(len(text), len(text) + 10)))
        begun = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]
        if len(llm.chat_tokens(begun)) >= tokens:
            return begun


def _further(result: str) -> list[dict[str, str]]:
    """Returns what comes behind the first turn: what was answered, and what a tool gave."""
    return [{"role": "assistant", "content": _ANSWER}, {"role": "user", "content": result * 12}]


def _seconds(llm: LLM, messages: Sequence[dict[str, str]]) -> float:
    """Returns the processor time until the first token of an answer."""
    began = time.process_time()
    result = llm.chat(messages, max_new_tokens=1)
    spent = time.process_time() - began
    print(f"{result.prompt_tokens} tokens, {result.reused} of them known: {spent:.2f} s")
    return spent


if __name__ == "__main__":
    sys.exit(exit_code(main))
