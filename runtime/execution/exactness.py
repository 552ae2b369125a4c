"""Measures whether a model computes a row bit for bit alike, whatever else is in the call.

Ordered attention (`export/components/attention.py`) makes a row's sums independent of the other
rows of its call, as far as an engine's kernels allow. That depends on the engine, its version, the
processor and the weights, so it is measured with the model itself, once on each machine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engines, common_shapes
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.measurements import measurement_file
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.snapshot import Snapshot
from edgespec.runtime.shapes import BORDER
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.system.cachedir import store, stored

_log = logging.getLogger(__name__)

_READ = 70  # tokens before the compared ones: more than ordered attention sums apart from others
_COMPARED = 8  # tokens whose rows are compared
# Rows of a text for which engines add up attention in several parts. How many there are may depend
# on how the processor's threads share a call.
_LONG = 900


@dataclass(frozen=True)
class Exactness:
    """Whether a role's rows are bit for bit alike in all calls on its engines.

    Attributes:
        exact: whether they are in calls with an even number of rows.
        single: whether they are in calls with any number of rows, too.
        texts: whether they are in calls that other texts share, too; None: not tried, since rows
            are not alike anyway, or the graph was one for a single text.
    """

    exact: bool
    single: bool
    texts: bool | None = None


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Exactness | None:
    """Returns what was measured on this machine before; None if nothing was."""
    return stored(measurement_file(bundle, f"rows of {role}", engines, threads), Exactness)


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, found: Exactness) -> None:
    """Store what `recall` finds."""
    store(measurement_file(bundle, f"rows of {role}", engines, threads), found)


def load(bundle: Bundle, name: str, engines: Engines, threads: int, *, texts: bool = True) -> Model:
    """Load a role (see `Model.load` for the arguments) and call `use_exact_shapes`.

    Raises:
        DeviceError: if an engine refuses a stage, or fails in the first calls.
        InputError: if engines have no shapes in common.
    """
    model = Model.load(bundle, name, engines, threads, texts=texts)
    use_exact_shapes(model, bundle, name, engines, threads)
    return model


def use_exact_shapes(
    loaded: Model, bundle: Bundle, name: str, engines: Engines, threads: int
) -> None:
    """Restrict a model to shapes in which its rows are alike, and set whether they are.

    Uses what was measured on this machine before, or measures it now. Of models without ordered
    attention nothing is measured: their texts may share calls if their graphs can.

    Args:
        loaded: the model; its `shapes`, `exact` and `joins_texts` are set.
        bundle: the bundle that it is from.
        name: name of its role.
        engines: engines of its stages.
        threads: number of threads of each engine.
    """
    if not loaded.ordered:
        # No row is alike in all calls anyway.
        loaded.joins_texts = loaded.can_join_texts
        return
    found = recall(bundle, name, engines, threads)
    untried = loaded.can_join_texts and found is not None and found.exact and found.texts is None
    if found is None or untried:
        found = measure(loaded)
        remember(bundle, name, engines, threads, found)
        _log.info("%s on %s: %s", name, loaded.device, found)
    # The padding to even numbers of rows is worth its cost only where it makes rows alike.
    loaded.shapes = common_shapes(engines).exact(single=found.single or not found.exact)
    loaded.exact = found.exact
    # Where rows are not alike anyway, no promise would be kept by turns.
    loaded.joins_texts = loaded.can_join_texts and (found.texts is True or not found.exact)


def measure(model: Model) -> Exactness:
    """Compute the same rows in different calls.

    They are rows alone, in chains, in a tree, after other chunks, in a larger cache and beside rows
    of another text.

    Returns:
        In which calls the results agree bit for bit.
    """
    usual = model.shapes
    largest = usual.capacities[-1] if usual.capacities else BORDER
    if largest < _READ + _COMPARED or not _alike(model, largest):
        return Exactness(exact=False, single=False)
    model.shapes = replace(usual, rows=tuple(sorted({1, 3, *usual.rows})))
    try:
        single = not usual.capacities and _alike(model, largest)
    finally:
        model.shapes = usual
    texts = _joined(model) if model.can_join_texts else None
    return Exactness(exact=True, single=single, texts=texts)


def _alike(model: Model, largest: int) -> bool:
    rng, result = np.random.default_rng(0), model.role.result
    count = min(_COMPARED, (model.shapes.rows[-1] + 1) // 2)  # each has a sibling in the tree
    text: list[int] = rng.integers(0, model.role.vocab_size, _READ + count).tolist()
    rest = text[_READ:]
    alone, expected = _after_reading(model, text, chunk=_READ), []
    for token in rest:
        expected.append(alone.verify(Rows.chain([token]))[result][0].copy())
        alone.commit([0])
    chain = _after_reading(model, text, chunk=23)
    odd = _after_reading(model, text, chunk=_READ, capacity=min(largest, BORDER))
    tree = _after_reading(model, text, chunk=33)
    # Results are valid until the next call. In the tree every other row is on the text's branch.
    return (
        np.array_equal(chain.verify(Rows.chain(rest))[result][:count], expected)
        and np.array_equal(odd.verify(Rows.chain(rest[:-1]))[result][: count - 1], expected[:-1])
        and np.array_equal(tree.verify(_with_branches(rest))[result][: 2 * count : 2], expected)
        and np.array_equal(Runner(model).prefill(text)[result][0], expected[-1])
    )


def _joined(model: Model) -> bool:
    """Whether rows are the same beside those of another text, with more rows and fewer."""
    model.joins_texts = True
    passes, rng, result = JointPasses(model), np.random.default_rng(1), model.role.result
    for length in (_READ, _LONG):
        before = _noise(model, length)
        for sizes in ((1, 1), (3, 8), (9, 2)):
            asked, expected = [], []
            for size in sizes:
                runner = Runner(model)
                runner.restore(before)
                rows = Rows.chain(rng.integers(0, model.role.vocab_size, size))
                asked.append((runner, rows))
                expected.append(runner.verify(rows)[result][:size].copy())
            for made in passes.verify(asked):
                for number, results in made:
                    if not np.array_equal(results[result], expected[number]):
                        return False
    return True


def _noise(model: Model, length: int) -> Snapshot:
    """Returns what a text of this length might leave in caches, without computing it."""
    runner = Runner(model)
    runner.skip(length)
    zeros, rng = runner.snapshot(length), np.random.default_rng(2)
    noise = [(8 * rng.standard_normal(each.shape)).astype(each.dtype) for each in zeros.caches]
    return replace(zeros, caches=noise)


def _after_reading(model: Model, text: Sequence[int], chunk: int, capacity: int = 1) -> Runner:
    """Returns a runner that has read the first tokens in chunks of this size."""
    runner = Runner(model)
    runner.reserve(capacity)
    for start in range(0, _READ, chunk):
        runner.prefill(text[start : min(start + chunk, _READ)])
    return runner


def _with_branches(tokens: Sequence[int]) -> Rows:
    """Returns a chain of tokens as a tree, with a sibling before each token but the first."""
    nodes, parents, above = list[int](), list[int](), ROOT
    for token in tokens[1:]:
        nodes += [token - 1 if token else 1, token]
        parents += [above, above]
        above = len(nodes) - 1
    return Rows.tree(tokens[0], TokenTree(np.array(nodes), np.array(parents)))
