"""What passes of a model with states cost: of trees, of chains, and of a layer with a state.

    python benchmarks/random_checkpoint.py qwen3.5-0.8b -o hybrid
    python benchmarks/random_checkpoint.py qwen3.5-0.8b -o attention --set full_attention_interval=1
    edgespec export hybrid -o hybrid-bundle --precision int4-small --no-calibration
    edgespec export attention -o attention-bundle --precision int4-small --no-calibration
    python benchmarks/hybrid.py hybrid-bundle attention-bundle

It verifies trees of three branches in one pass, as chains of as many rows, and branch by branch, as
a runtime must that has states for chains only. It counts rows of a tree whose logits differ in any
bit from those of their branch alone. With a second bundle, of the same layers without states, it
says what a layer with a state costs by rows. Figures are medians of processor time, of one thread
by default, on which other programs have little influence.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from common import add_threads, count, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.trees.tree import ROOT, TokenTree

_BRANCHES, _DEPTHS, _READ = 3, (1, 2, 5), 42
_TREE, _CHAIN, _BRANCH_BY_BRANCH = "tree", "chain", "branch by branch"


def main() -> None:
    """Measures one bundle, or two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("attention", type=Path, nargs="?", help="bundle without states")
    parser.add_argument("--turns", type=count, default=7, help="repeats (default 7)")
    add_threads(parser)
    parser.set_defaults(threads=1)
    _measure(parser.parse_args())


def _measure(arguments: argparse.Namespace) -> None:
    paths = [each for each in (arguments.bundle, arguments.attention) if each is not None]
    opened = [bundles.load(path) for path in paths]
    layout = opened[0].target.layout
    states = len(layout.recurrent(range(layout.head)))
    if not states:
        raise InputError(f"{paths[0]} has no layers with a state: give a bundle that has some")
    table, other_bits = [], 0
    for device in CPU_ENGINES:
        models = [
            Model.load(each, bundles.TARGET, engine(device), arguments.threads) for each in opened
        ]
        runners = [Runner(model) for model in models]
        for depth in _DEPTHS:
            times, differing = _times(runners, depth, arguments.turns)
            other_bits += differing
            own = times[0]
            line = [device, 1 + _BRANCHES * depth, *(own[each] for each in own)]
            if len(times) > 1:
                line.append(round((own[_TREE] - times[1][_TREE]) / states, 2))
            table.append(line)
    header = ["engine", "rows", f"{_TREE} ms", f"{_CHAIN} ms", f"{_BRANCH_BY_BRANCH} ms"]
    header += ["ms per layer with a state"] * (len(paths) > 1)
    print_table(header, table)
    print(f"\nrows of trees with other bits than in their branch: {other_bits}")
    print_result(
        "hybrid",
        {
            "layers_with_a_state": states,
            "threads": arguments.threads,
            "header": header,
            "table": table,
            "other_bits": other_bits,
        },
    )


def _times(runners: list[Runner], depth: int, turns: int) -> tuple[list[dict[str, float]], int]:
    """Returns each runner's milliseconds by kind of pass, and the rows with other bits."""
    vocabulary = runners[0].model.role.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, _READ + 1 + _BRANCHES * depth)
    text, pending, drafted = tokens[:_READ].tolist(), int(tokens[_READ]), tokens[_READ + 1 :]
    numbers = np.arange(len(drafted)).reshape(_BRANCHES, depth)
    parents = np.where(np.arange(depth) == 0, ROOT, numbers - 1).ravel()
    tree = Rows.tree(pending, TokenTree(drafted, parents))
    chain = Rows.chain([pending, *drafted])
    branches = [Rows.chain([pending, *drafted[each]]) for each in numbers]
    kinds = {_TREE: [tree], _CHAIN: [chain], _BRANCH_BY_BRANCH: branches}
    for runner in runners:
        runner.resume(())
        runner.prefill(text)
    samples: list[dict[str, list[float]]] = [{kind: [] for kind in kinds} for _ in runners]
    for turn in range(turns + 1):
        for runner, by_kind in zip(runners, samples, strict=True):
            for kind, passes in kinds.items():
                for rows in passes:  # the first call includes the change of shape
                    runner.verify(rows)
                begin = time.process_time()
                for rows in passes:
                    runner.verify(rows)
                if turn:
                    by_kind[kind].append(time.process_time() - begin)
    found = [
        {kind: round(1e3 * median(times), 1) for kind, times in by_kind.items()}
        for by_kind in samples
    ]
    return found, _differing(runners[0], tree, branches, numbers)


def _differing(
    runner: Runner,
    tree: Rows,
    branches: list[Rows],
    numbers: npt.NDArray[np.int64],
) -> int:
    """Returns how many rows of a tree have other logits than in their branch alone."""
    logits = runner.verify(tree)["logits"].copy()
    differing = 0
    for branch, nodes in zip(branches, numbers, strict=True):
        alone = runner.verify(branch)["logits"]
        rows = logits[[0, *nodes + 1]]
        differing += int((rows != alone[: len(rows)]).any(axis=1).sum())
    return differing


if __name__ == "__main__":
    sys.exit(exit_code(main))
