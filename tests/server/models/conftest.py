"""Servers of several models."""

from __future__ import annotations

import math
import threading

import pytest
from servers import PLACE, PROMPT, make_bundle
from several_models import NAMES

from edgespec import LLM, bundle
from edgespec.llm.load.options import LoadOptions
from edgespec.serve.models import REST, Models
from edgespec.serve.served_model import ServedModel


@pytest.fixture(scope="session")
def bundles(served_bundle, tmp_path_factory):
    """Bundles of models that answer otherwise, by name."""
    folder = tmp_path_factory.mktemp("several")
    made = [served_bundle]
    for architecture in ("qwen2", "qwen3"):
        (folder / architecture).mkdir()
        made.append(make_bundle(folder / architecture, architecture=architecture))
    return dict(zip(NAMES, map(bundle.load, made), strict=True))


@pytest.fixture(scope="session")
def expected(bundles):
    """What each model answers alone."""
    found = {}
    for name, each in bundles.items():
        with LLM(each.path, draft="none", context=256, **PLACE) as llm:
            found[name] = llm.generate(PROMPT, max_new_tokens=8).text
    assert len(set(found.values())) == len(NAMES)
    return found


@pytest.fixture
def several(bundles):
    def make(count=2, most=None, any_name=False, kept=math.inf, rest=REST, **options):
        how = LoadOptions(**{"draft": "none", "context": 256, **PLACE, **options})
        served = [ServedModel(name, bundles[name], how) for name in NAMES[:count]]
        return Models(served, most, any_name, kept, rest)

    return make


@pytest.fixture
def paused(monkeypatch):
    """Loading a model waits until it is let go on; names of those that wait."""
    loading = []
    go_on = threading.Event()
    load = ServedModel.load

    def slow(self, *arguments):
        loading.append(self.name)
        assert go_on.wait(60)
        load(self, *arguments)

    monkeypatch.setattr(ServedModel, "load", slow)
    yield loading, go_on
    go_on.set()
