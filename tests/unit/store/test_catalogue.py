"""The catalogue: its form, and the user's own entries."""

from __future__ import annotations

import pytest

from edgespec.errors import InputError
from edgespec.models import ARCHITECTURES
from edgespec.models.formats.gguf.architectures import ARCHITECTURES as GGUF
from edgespec.models.named import HUB_FILE, HUB_ID
from edgespec.store.catalogue import CHAT, Catalogue
from edgespec.store.choosing import CONTEXT, ModelChooser

BITS = {
    "Q2_K": 3.0,
    "Q3_K_M": 3.9,
    "Q4_0": 4.6,
    "Q4_K_M": 4.9,
    "MXFP4": 4.4,
    "Q8_0": 8.5,
    "F16": 16,
}
"""Bits of a weight by precision; vocabularies have more."""
READ = ARCHITECTURES.keys() & {each.model_type for each in GGUF.values()}


@pytest.fixture(scope="module")
def shipped():
    return Catalogue.read()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes the user's own file."""
    file = tmp_path / "models.toml"
    monkeypatch.setenv("EDGESPEC_CATALOGUE", str(file))
    return file.write_text


def test_there_are_models_of_all_kinds(shipped):
    assert len(shipped.models) >= 60
    assert {each.kind for each in shipped.models.values()} == {"chat", "embeddings", "rankings"}
    assert sum(each.proposed for each in shipped.models.values()) >= 6


def test_every_entry_has_a_good_form(shipped):
    for name, each in shipped.models.items():
        series, _, size = name.partition(":")
        assert series, name
        assert size, name
        assert each.family in READ, name
        assert each.licence, name
        assert each.vocabulary in shipped.vocabularies, name
        assert 256 <= each.context <= 1 << 20, name
        assert each.head in ("", "MTP"), name
        assert each.kind != CHAT or each.cache > 0, name
        assert 0 <= each.active <= each.parameters, name


def test_every_file_has_a_size_that_its_weights_take(shipped):
    for name, each in shipped.models.items():
        assert each.files, name
        assert len({file.precision for file in each.files}) == len(each.files), name
        for file in each.files:
            assert HUB_FILE.fullmatch(f"{each.repository}:{file.file}"), name
            expected = each.parameters * BITS[file.precision] / 8
            assert 0.85 < file.size / expected < 1.75, (name, file, file.size / expected)
        assert each.tower < each.files[0].size, name


def test_a_draft_has_the_same_vocabulary_and_few_weights(shipped):
    drafted = [each for each in shipped.models.values() if each.draft]
    assert len(drafted) > 10
    for each in drafted:
        draft = shipped.models[each.draft]
        assert draft.vocabulary == each.vocabulary, each.name
        assert draft.parameters <= 0.4 * each.parameters, each.name
        assert not draft.tower, each.name
        assert not each.head, each.name


def test_heads_are_repositories_of_models_for_texts(shipped):
    headed = [each for each in shipped.models.values() if each.heads]
    assert len(headed) > 10
    for each in headed:
        assert each.kind == CHAT, each.name
        assert len(set(each.heads)) == len(each.heads), each.name
        assert all(HUB_ID.fullmatch(head) for head in each.heads), each.name


def test_names_mean_one_size_one_file_or_a_family(shipped):
    (one,) = shipped.named("Qwen3.5:4B")
    assert (one.name, one.series) == ("qwen3.5:4b", "qwen3.5")
    (file,) = shipped.named("qwen3:8b-q8_0")
    assert [each.precision for each in file.files] == ["Q8_0"]
    family = shipped.named("qwen3.5")
    assert {each.series for each in family} == {"qwen3.5"}
    assert len(family) > 4
    assert shipped.named("qwen3.5:latest") == family
    for word in ("", "qwen", "qwen3.5:5b", "owner/name", "qwen3.5:"):
        assert shipped.named(word) == ()
    assert {"qwen3.5", "qwen3.5:4b"} <= set(shipped.names)
    assert "smollm3" not in shipped.names  # it has one size


def test_the_users_entries_go_before_those_that_are_shipped(own, shipped):
    own(
        '[models."mine:7b"]\nrepository = "me/mine-GGUF"\n'
        'files = [{file = "mine-Q4_K_M.gguf", size = 4_000_000_000}]\n'
        '[models."qwen3:8b"]\nrepository = "me/other"\n'
        'files = [{file = "other.gguf", size = 5_000_000_000}]\n'
    )
    found = Catalogue.read()
    assert found.models.keys() == shipped.models.keys() | {"mine:7b"}
    assert found.models["qwen3:8b"].repository == "me/other"
    choice = ModelChooser(found, 10**10).fitting(found.models["mine:7b"])
    assert choice.hub_name == "me/mine-GGUF:mine-Q4_K_M.gguf"
    assert 4_000_000_000 < choice.memory < 4_300_000_000


GOOD = 'repository = "a/b"\nfiles = [{file = "c.gguf", size = 1}]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models = 3", "is no catalogue: "),
        ("[models", "is not TOML: "),
        ('[models."a:1"]\nrepository = "a/b"', r"the file\.models\.a:1\.files: missing"),
        (f'[models."a:1"]\n{GOOD}bits = 3', r"the file\.models\.a:1\.bits: unknown field"),
        (f'[models."a:1"]\n{GOOD}draft = 3', r"draft: expected str, found 3"),
        (f'[models."A:1"]\n{GOOD}', "'A:1': names have no capitals and no slashes"),
        (f'[models."a/b"]\n{GOOD}', "'a/b': names have no capitals and no slashes"),
        (f'[models."a:1"]\n{GOOD}kind = "tea"', "kind is 'tea': use one of chat"),
        ('[models."a:1"]\nrepository = "a/b"\nfiles = []', "files is empty: name one"),
        (f'[models."a:1"]\n{GOOD.replace("= 1", "= 0")}', "size is not positive: give its bytes"),
        ('[model."a:1"]', r"the file\.model: unknown field"),
    ],
)
def test_what_is_wrong_in_the_users_file_is_said(own, text, told):
    own(text)
    with pytest.raises(InputError, match=rf"models\.toml.*{told}"):
        Catalogue.read()


def test_the_users_file_is_where_settings_are(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CATALOGUE", str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputError, match=r"EDGESPEC_CATALOGUE is .*nowhere\.toml.*: create it"):
        Catalogue.read()
    monkeypatch.delenv("EDGESPEC_CATALOGUE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "mine:1b" not in Catalogue.read().models
    (tmp_path / "edgespec").mkdir()
    (tmp_path / "edgespec" / "models.toml").write_text(f'[models."mine:1b"]\n{GOOD}')
    assert "mine:1b" in Catalogue.read().models


def test_the_context_is_the_usual_one_of_a_plan():
    from edgespec.runtime.plan import SPARE_ROWS, USUAL_CONTEXT
    from edgespec.store import choosing

    assert (CONTEXT, choosing._SPARE) == (USUAL_CONTEXT, SPARE_ROWS)
