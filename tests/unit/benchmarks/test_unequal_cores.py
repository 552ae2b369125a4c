"""Slow cores beside fast ones: what the parts cost that a pass is cut into."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from checkout import ROOT

from edgespec import bundle as bundles
from edgespec.models.embedded import BUNDLE

# Hidden width, inner width, columns of keys, layers and vocabulary of Qwen2.5-Coder; and the most
# that slow cores beside fast ones may lose.
QWEN = {
    "0.5B": (896, 4864, 128, 24, 151936, 1.12),
    "1.5B": (1536, 8960, 256, 28, 151936, 1.1),
    "7B": (3584, 18944, 512, 28, 152064, 1.05),
}
BITS = 4.5


@pytest.fixture(scope="module")
def cores():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("unequal_cores")


def matrix(rows, width):
    return int(rows * width * BITS / 8), -(-rows // 16)


@pytest.mark.parametrize("name", QWEN)
def test_slow_cores_bring_nearly_their_speed(cores, name):
    hidden, inner, keys, layers, vocabulary, most = QWEN[name]
    layer = [
        [matrix(hidden, hidden), matrix(keys, hidden), matrix(keys, hidden)],
        [matrix(hidden, hidden)],
        [matrix(inner, hidden), matrix(inner, hidden)],
        [matrix(hidden, inner)],
    ]
    nodes = [*layer * layers, [matrix(vocabulary, hidden)]]
    assert 1 <= cores.loss(nodes, [1.0] * 6 + [0.5] * 8) < most
    assert 1 <= cores.loss(nodes, [1.0] * 8) < 1.05


def test_who_is_free_takes_the_next_part(cores):
    # The fast core takes the parts of 0, 1, 2 and 4 seconds, the slow one that of 0 to 3.
    assert cores.seconds([1, 1, 1, 2], [1.0, 1 / 3]) == 4
    assert cores.seconds([1, 1], [1.0, 0.1]) == 10


def test_parts_are_whole_tiles_and_all_of_a_matrix(cores):
    for sizes in ([(64, 1)], [matrix(896, 896), matrix(128, 896)], [matrix(151936, 896)]):
        parts = cores.parts_of(sizes)
        assert sum(parts) == pytest.approx(sum(size for size, _ in sizes))
        assert len(parts) <= sum(tiles for _, tiles in sizes)


def test_a_bundles_matrices_are_those_of_its_file(cores):
    bundle = bundles.load(BUNDLE)
    native = bundle.manifest.roles["target"].native
    found = sum(size for node in cores.matrices(bundle) for size, _ in node)
    size = Path(bundle.path / native.data).stat().st_size
    assert 0.5 * size < found <= size
