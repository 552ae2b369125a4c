"""The page of a server in a browser, with answers that tests make up."""

from __future__ import annotations

import pytest
from pages import make_up, opened
from servers import PLACE, serving

from edgespec import LLM


@pytest.fixture(scope="module")
def running(served_bundle):
    with LLM(served_bundle, draft="none", context=256, **PLACE) as llm, serving(llm) as running:
        yield running


@pytest.fixture
def page(running, tmp_path):
    with opened(running, tmp_path) as page:
        page.until("store !== null")
        make_up(page)
        yield page
