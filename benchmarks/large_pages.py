r"""Measures a token whose weights lie in small pages of the system's cache, or in large ones.

    python benchmarks/large_pages.py qwen-coder-1.5b.gguf

Before each turn the file of the target's weights is dropped from the cache and read anew, in small
pages or as edgespec asks for them (`edgespec/system/machine.py`). Nobody else may use the bundle
meanwhile. Where the system has no large pages, both are the same. Least of all turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.llm.load import graphs
from edgespec.measuring.prompts import PYTHON

PAGES = ("small", "large")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=count, default=48, help="new tokens of a text (default 48)")
    parser.add_argument("--repeat", type=count, default=3, help="turns (default 3)")
    add_threads(parser)
    given = parser.parse_args()
    if not hasattr(os, "posix_fadvise"):
        raise InputError("this system drops no file from its cache: measure on Linux")
    with LLM(given.model, draft="none") as llm:
        weights = llm.bundle.path / llm.bundle.target.native.data
    found = {pages: list[float]() for pages in PAGES}
    for _ in range(given.repeat):
        for pages in PAGES:
            found[pages].append(milliseconds(given, weights, large=pages == "large"))
    small, large = (min(found[pages]) for pages in PAGES)
    print_table(
        ["pages", "ms a token", "of small pages'"],
        [["small", f"{small:.1f}", ""], ["large", f"{large:.1f}", f"{large / small:.2f}"]],
    )
    print_result("large_pages", {"model": given.model.name, "milliseconds": found})


def milliseconds(given: argparse.Namespace, weights: Path, large: bool) -> float:
    """Returns what a token takes behind a text's first, plainly, with weights read anew."""
    with weights.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    small = mock.patch.object(graphs, "prefer_large_pages")
    with nullcontext() if large else small:
        llm = LLM(given.model, draft="none", threads=given.threads)
    with llm:
        llm.warm_up()
        return min(
            llm.generate(text, max_new_tokens=given.n, draft_source="none").tpot_ms
            for text in PYTHON[:3]
        )


if __name__ == "__main__":
    sys.exit(exit_code(main))
