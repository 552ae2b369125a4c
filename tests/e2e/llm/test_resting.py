"""Memory that a model gives back while nobody uses it."""

from __future__ import annotations

import pytest
from native_llms import with_library

from edgespec import LLM
from edgespec.llm.llm import inside

pytestmark = with_library
PROMPT = "def add(a, b):\n    return a + b\n\n\n" * 40
MOST = 8


@pytest.fixture(scope="module")
def llm():
    with LLM(threads=1) as found:
        yield found


def test_pools_shrink_and_texts_stay_the_same(llm):
    loaded = inside(llm)
    pools = [each.pool for each in loaded.models.values()]
    new = [pool.size for pool in pools]
    prompts = [f"# {number}\n{PROMPT}" for number in range(4)]
    expected = [llm.generate(each, max_new_tokens=MOST).text for each in prompts]
    grown = [pool.size for pool in pools]
    assert grown[0] > new[0]
    loaded.shrink()
    assert [pool.size for pool in pools] == new
    assert not any(pool.used for pool in pools)
    assert [llm.generate(each, max_new_tokens=MOST).text for each in prompts] == expected


def test_sessions_keep_what_they_have_read(llm):
    session = llm.session()
    first = session.generate(PROMPT, max_new_tokens=MOST)
    inside(llm).shrink()
    held = inside(llm).engine.target.pool.used
    assert held >= first.prompt_tokens
