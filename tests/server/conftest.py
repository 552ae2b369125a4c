"""Models and servers that most tests of the server share."""

from __future__ import annotations

import pytest
from pairs import with_eos
from servers import PLACE, serving

from edgespec import LLM


@pytest.fixture(scope="session")
def plain(served_bundle):
    """What is right."""
    return LLM(served_bundle, draft="none", **PLACE)


@pytest.fixture(scope="session")
def llm(served_bundle):
    """The same model with drafts, whose texts end by length only."""
    return LLM(served_bundle, draft="lookup", sessions=3, **PLACE)


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm, parallel=3, limit=32) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    return running.client()


@pytest.fixture(autouse=True)
def forgotten(request):
    """What other tests asked is expected again, so that it would come in fewer pieces."""
    if "llm" in request.fixturenames and isinstance(llm := request.getfixturevalue("llm"), LLM):
        llm.forget()


@pytest.fixture(scope="session")
def ending(served_bundle, tmp_path_factory):
    """A server of a model whose texts can end."""
    path = with_eos(served_bundle, tmp_path_factory.mktemp("ending") / "bundle", 0)
    with LLM(path, draft="lookup", **PLACE) as llm, serving(llm, parallel=2) as running:
        yield running
