"""Loading in its three steps: a plan, opened models, and the drafters of a table."""

from __future__ import annotations

import pytest
from native_llms import with_library
from toys import toy_model

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.llm.load.drafters import MAKERS, make_drafters
from edgespec.llm.load.models import ModelSet, load_models
from edgespec.llm.load.options import DRAFTS, LoadOptions
from edgespec.llm.load.place import plan_memory
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.speculation.generation import AUTO, NO_DRAFT
from edgespec.runtime.text.tokenizer import Tokenizer

CHEAP = ["prediction", "lookup", "recycling", "grammar"]


@pytest.fixture
def opened():
    """Opens the embedded pair with options; all is closed at the end."""
    sets = []

    def open_models(**options):
        bundle = bundles.load(BUNDLE)
        made = LoadOptions(context=256, threads=1, **options)
        sets.append(load_models(bundle, made, plan_memory(bundle, made)))
        return bundle, made, Tokenizer.of(bundle), sets[-1]

    yield open_models
    for each in sets:
        each.close()


def test_each_source_that_users_can_name_is_a_row():
    assert set(DRAFTS) - {AUTO, NO_DRAFT} <= MAKERS.keys()
    assert list(MAKERS)[: len(CHEAP)] == CHEAP


@with_library
@pytest.mark.parametrize("draft", [AUTO, "lookup", "model"])
def test_a_drafter_has_the_name_of_its_row(opened, draft):
    parts = opened(draft=draft)
    sources = make_drafters(*parts)
    dear = [] if draft == "lookup" else ["model", "grammar"]
    assert [each.name for each in sources.drafters] == CHEAP + dear
    assert sources.recycling in sources.drafters
    assert set(sources.names) == {NO_DRAFT, draft, "lookup", "recycling", *dear[:1]}
    assert len(sources.timings) == 1 + len(dear[:1])
    sources.close()
    assert not sources.drafters
    assert not sources.timings


@with_library
def test_without_drafts_only_the_target_is_opened(opened):
    parts = opened(draft=NO_DRAFT)
    assert parts[-1].roles.keys() == {TARGET}
    sources = make_drafters(*parts)
    assert (sources.drafters, sources.names, sources.timings) == ([], (NO_DRAFT,), [])


@with_library
def test_a_source_for_which_a_bundle_has_nothing_is_refused(opened):
    with pytest.raises(InputError, match="nothing that drafts by layer-skip: use another --draft"):
        make_drafters(*opened(draft="layer-skip"))


def test_closed_models_are_let_go():
    models = ModelSet({TARGET: toy_model(), DRAFT: toy_model()}, part=toy_model())
    opened = [*models.roles.values()]
    models.close()
    assert (models.roles, models.part, models.frequent) == ({}, None, None)
    assert not any(each.pool.used for each in opened)
