"""The measure of walks counts what a reader does: files that are entered, and returns to them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import pytest
from checkout import ROOT

import edgespec

FIRST = """
class Part:
    def __init__(self, size):
        self.size = grown(size)
    @property
    def half(self):
        return other.halved(self.size)
    def __len__(self):
        return other.halved(self.size)

def grown(size):
    return size + 1

def shrunk(size):
    return size - 1
"""
SECOND = """
def halved(size):
    return size // 2

def made(size):
    return first.Part(size)

def begin(sizes):
    parts = [made(each) for each in sizes]
    return sum(each.half + len(each) for each in parts) + ended(1)

def ended(size):
    return first.grown(size) + first.shrunk(size) + begun(size)

def begun(size):
    return first.grown(size) + first.shrunk(size)
"""


@pytest.fixture(scope="module")
def walks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("walks")


@pytest.fixture
def modules():
    """Two modules of the package, as far as the measure can tell."""
    made = [ModuleType(f"edgespec.{name}") for name in ("first", "second")]
    for module, source in zip(made, (FIRST, SECOND), strict=True):
        file = f"{edgespec.__path__[0]}/{module.__name__}.py"
        exec(compile(source, file, "exec"), vars(module))
    made[0].other = made[1]
    made[1].first = made[0]
    return made


def test_a_call_from_another_file_enters_it_and_later_ones_return(walks, modules):
    walk = walks.Walk()
    with walk.recorded():
        modules[1].begin([3, 4])
    # `made` enters the first file; `half` reads as a field, and what it calls is a way back;
    # `ended` reads `shrunk` alone, which `begun` calls, too.
    assert walk.entries == [f"edgespec.{name}" for name in ("second", "first", "second", "first")]
    assert walk.files == ["edgespec.second", "edgespec.first"]
    assert walk.returns == {"edgespec.second": 1, "edgespec.first": 1}
    assert walk.of_loop == 0


def test_calls_outside_of_the_block_do_not_count(walks, modules):
    walk = walks.Walk()
    with walk.recorded():
        pass
    modules[1].begin([3])
    assert walk.entries == []


@pytest.mark.parametrize(
    ("argument", "expected"),
    [(3, True), (4, False), ({"size": 3}, True), ({"length": 3}, False), (3.0, False)],
)
def test_an_options_walk_has_what_is_handed_its_value(walks, argument, expected):
    def function(given, *more, **rest):
        return sys._getframe()

    assert walks.is_handed(function(argument), "size", 3) is expected
    assert walks.is_handed(function(None, argument), "size", 3) is False
    assert walks.is_handed(function(None, size=3), "size", 3) is True


# Files entered, and returns outside of the loop, at most.
HELD = {
    "generate": (35, 0),
    "chat": (60, 26),
    "path": (49, 7),
    "temperature": (10, 3),
    "draft": (7, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_no_walk_becomes_longer(walks, name):
    walk = walks.measured(name)
    files, returns = HELD[name]
    assert 5 < len(walk.files) <= files, walk.files
    assert walk.returns.total() - walk.of_loop <= returns, walk.returns
