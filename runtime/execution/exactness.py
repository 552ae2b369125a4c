"""Whether a model computes a row alike in all company here, bit for bit: tried, not assumed.

Ordered attention (`export/components/attention.py`) makes a row's sums independent of the call that
computes it, as far as an engine's kernels do. That is a matter of the engine, its version, the
processor and the weights, so it is tried with the model itself, once on each machine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engines, common_shapes
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.measurements import measurement_file
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import BORDER
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.system.cachedir import store, stored

_log = logging.getLogger(__name__)

_READ = 70  # tokens before those that are tried: more than ordered attention takes apart
_TRIED = 8


@dataclass(frozen=True)
class Exactness:
    """Whether a role's rows are alike in all company on its engines.

    Attributes:
        exact: they are, bit for bit, in calls of an even number of rows.
        single: in calls of any number of rows, too.
    """

    exact: bool
    single: bool


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Exactness | None:
    """What was found on this machine before; None: it was not tried."""
    return stored(measurement_file(bundle, f"rows of {role}", engines, threads), Exactness)


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, found: Exactness) -> None:
    """Store what `recall` finds."""
    store(measurement_file(bundle, f"rows of {role}", engines, threads), found)


def load(bundle: Bundle, name: str, engines: Engines, threads: int) -> Model:
    """Load a role, see `Model.load`, and `use_exact_shapes` it.

    Raises:
        DeviceError: if an engine refuses a stage, or fails in the first calls.
        InputError: if engines have no shapes in common.
    """
    model = Model.load(bundle, name, engines, threads)
    use_exact_shapes(model, bundle, name, engines, threads)
    return model


def use_exact_shapes(
    loaded: Model, bundle: Bundle, name: str, engines: Engines, threads: int
) -> None:
    """Have a model's calls in shapes that keep its rows alike, and note whether they are.

    By what was found on this machine before, or by trying it now. Models without ordered attention
    stay as they are.

    Args:
        loaded: the model; its `shapes` and `exact` are set.
        bundle: where it is from.
        name: its role.
        engines: of its stages.
        threads: for each engine's operators.
    """
    if not loaded.ordered:
        return
    found = recall(bundle, name, engines, threads)
    if found is None:
        found = measure(loaded)
        remember(bundle, name, engines, threads, found)
        _log.info("%s on %s: %s", name, loaded.device, found)
    # Even rows are worth their cost only where they bring something.
    loaded.shapes = common_shapes(engines).exact(single=found.single or not found.exact)
    loaded.exact = found.exact


def measure(model: Model) -> Exactness:
    """Compute rows alone, in chains, in a tree, behind other chunks and in a larger cache."""
    usual = model.shapes
    largest = usual.capacities[-1] if usual.capacities else BORDER
    if largest < _READ + _TRIED or not _alike(model, largest):
        return Exactness(exact=False, single=False)
    model.shapes = replace(usual, rows=tuple(sorted({1, 3, *usual.rows})))
    try:
        single = not usual.capacities and _alike(model, largest)
    finally:
        model.shapes = usual
    return Exactness(exact=True, single=single)


def _alike(model: Model, largest: int) -> bool:
    rng = np.random.default_rng(0)
    tried = min(_TRIED, (model.shapes.rows[-1] + 1) // 2)  # with a branch beside each
    text: list[int] = rng.integers(0, model.role.vocab_size, _READ + tried).tolist()
    rest = text[_READ:]
    alone, expected = _after_reading(model, text, chunk=_READ), []
    for token in rest:
        expected.append(alone.verify(Rows.chain([token]))["logits"][0].copy())
        alone.commit([0])
    chain = _after_reading(model, text, chunk=23)
    odd = _after_reading(model, text, chunk=_READ, capacity=min(largest, BORDER))
    tree = _after_reading(model, text, chunk=33)
    # Results last until the next call; of the tree every other row is on the text's own branch.
    return (
        np.array_equal(chain.verify(Rows.chain(rest))["logits"][:tried], expected)
        and np.array_equal(odd.verify(Rows.chain(rest[:-1]))["logits"][: tried - 1], expected[:-1])
        and np.array_equal(tree.verify(_with_branches(rest))["logits"][: 2 * tried : 2], expected)
        and np.array_equal(Runner(model).prefill(text)["logits"][0], expected[-1])
    )


def _after_reading(model: Model, text: Sequence[int], chunk: int, capacity: int = 1) -> Runner:
    """What has read the first tokens, so many at a time."""
    runner = Runner(model)
    runner.reserve(capacity)
    for start in range(0, _READ, chunk):
        runner.prefill(text[start : min(start + chunk, _READ)])
    return runner


def _with_branches(tokens: Sequence[int]) -> Rows:
    """A chain of tokens, with another token before each but the first."""
    nodes, parents, above = list[int](), list[int](), ROOT
    for token in tokens[1:]:
        nodes += [token - 1 if token else 1, token]
        parents += [above, above]
        above = len(nodes) - 1
    return Rows.tree(tokens[0], TokenTree(np.array(nodes), np.array(parents)))
