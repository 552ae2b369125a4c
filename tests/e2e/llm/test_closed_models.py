"""A model that was closed gives its memory back, whoever still refers to what."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from native_llms import loaded, with_library
from pairs import LONG_PROMPT, with_skips

from edgespec import LLM
from edgespec.llm.llm import inside

pytestmark = [
    with_library,
    pytest.mark.skipif(sys.platform != "linux", reason="no /proc that lists mapped files"),
]


def mapped():
    """How many parts of weight files this process has mapped."""
    return sum(".tiles" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def without_collector():
    """Counts what is mapped for the test's own models, with nothing freed by the collector."""
    gc.collect()
    before = mapped()
    gc.disable()
    yield lambda: mapped() - before
    gc.enable()


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("llama", "none"),
        ("llama", "auto"),
        ("lfm2-draft", "model"),
        ("head", "auto"),
        ("dflash", "head"),
        ("assistant", "head"),
        ("stranger", "model"),
    ],
)
def test_closing_unmaps_all_files(pairs, without_collector, name, draft):
    llm = loaded(pairs, name, draft)
    read = llm.stream(LONG_PROMPT, max_new_tokens=8)
    unread = llm.stream(LONG_PROMPT)
    session = llm.session()
    begun = llm.stream(LONG_PROMPT)
    read.finish()
    next(iter(begun))
    pools = [model.pool for model in inside(llm).models.values()]
    assert without_collector() > 0
    llm.close()
    assert without_collector() == 0
    assert not any(pool.arrays for pool in pools)
    del unread, session, begun


def test_closing_unmaps_parts_of_a_target(pairs, without_collector, tmp_path):
    path = with_skips(pairs.pair("llama").path, tmp_path / "bundle", (2, 3))
    llm = LLM(path, draft="layer-skip", threads=1, context=512)
    llm.generate(LONG_PROMPT, max_new_tokens=8)
    llm.close()
    assert without_collector() == 0


def test_a_model_that_is_left_is_unmapped_with_its_last_reference(pairs, without_collector):
    for _ in range(3):
        with loaded(pairs, "llama") as llm:
            llm.generate(LONG_PROMPT, max_new_tokens=2)
        del llm
        assert without_collector() == 0
