"""Which model is chosen for a machine: its memory as a plan counts it, and its speed."""

from __future__ import annotations

from dataclasses import replace

import huggingface_hub
import pytest
from checkpoints import make_checkpoint
from ggufs import write_gguf
from hubs import list_files
from real import FOLDER, needs

from edgespec import bundle as bundles
from edgespec.errors import MemoryLimitError
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import plan_memory
from edgespec.store.catalogue import Catalogue, CatalogueEntry, CatalogueVocabulary, ModelFile
from edgespec.store.choosing import CONTEXT, ModelChooser, as_told, checkpoint_name
from edgespec.store.making import bundle_of

GB = 10**9


def entry(name, *sizes, **fields):
    """A model with files of these sizes in GB, the usual one first."""
    precisions = ("Q4_K_M", "Q3_K_M", "Q8_0")
    files = [
        ModelFile(f"{name}-{precision}.gguf", int(size * GB))
        for size, precision in zip(sizes, precisions, strict=False)
    ]
    fields = {"parameters": int(sizes[0] * 1.7 * GB), **fields}
    return CatalogueEntry(name, f"owner/{name.replace(':', '-')}", tuple(files), **fields)


def chooser(free, speed, *entries):
    """Of a machine with so many GB free, which reads so many a second."""
    made = ModelChooser(Catalogue({}, {each.name: each for each in entries}), int(free * GB))
    vars(made)["bandwidth"] = speed * GB
    return made


SMALL = entry("x:1b", 0.6)
MIDDLE = entry("x:4b", 2.5, 2.0, 4.3, draft="x:1b")
LARGE = entry("x:9b", 5.6, draft="x:1b")


# Files


def test_the_usual_file_is_taken_or_the_next_smaller_one_that_fits():
    files = {
        free: choice and choice.file.precision
        for free in (1.0, 2.0, 2.2, 2.7, 64)
        for choice in [chooser(free, 20, MIDDLE).fitting(MIDDLE)]
    }
    assert files == {1.0: None, 2.0: None, 2.2: "Q3_K_M", 2.7: "Q4_K_M", 64: "Q4_K_M"}


def test_a_draft_is_taken_where_it_fits_too():
    alone = chooser(3.0, 20, SMALL, MIDDLE).fitting(MIDDLE)
    assert alone.draft is None
    both = chooser(3.5, 20, SMALL, MIDDLE).fitting(MIDDLE)
    assert both.draft.entry == SMALL
    assert both.memory - alone.memory == both.size - alone.size == SMALL.files[0].size
    assert chooser(3.5, 20, MIDDLE).fitting(MIDDLE).draft is None  # nobody knows it


def test_what_reads_pictures_and_states_count():
    sees = replace(SMALL, tower=GB, state=GB // 2, cache=1000)
    made = chooser(64, 20, SMALL, sees)
    more = made.fitting(sees).memory - made.fitting(SMALL).memory
    assert more == GB + (640 << 20) + GB // 2 + (CONTEXT + 254) * 1000
    assert made.fitting(sees).size == SMALL.files[0].size + GB


# Names


def test_a_familys_name_is_the_largest_that_fits_at_a_good_speed():
    family = (SMALL, MIDDLE, LARGE)
    chosen = {
        (free, speed): chooser(free, speed, *family).best(family).entry.name
        for free, speed in ((64, 200), (5, 200), (64, 30), (64, 7), (64, 1))
    }
    assert chosen == {
        (64, 200): "x:9b",
        (5, 200): "x:4b",
        (64, 30): "x:4b",
        (64, 7): "x:1b",
        (64, 1): "x:1b",  # where none has a good speed
    }


def test_of_a_mixture_a_token_reads_what_it_chooses():
    mixture = entry("x:30b-a3b", 18, active=int(3 * GB))
    made = chooser(64, 40, LARGE, mixture)
    assert made.rate(mixture, mixture.files[0]) > 15 > made.rate(LARGE, LARGE.files[0])
    assert made.best((LARGE, mixture)).entry == mixture


def test_what_does_not_fit_is_said_with_the_numbers():
    told = r"x:4b needs 2\.1 GB of memory with a context of 4,096 tokens, and 1\.0 GB are free"
    with pytest.raises(MemoryLimitError, match=told):
        chooser(1.0, 20, MIDDLE).best((MIDDLE,))
    with pytest.raises(MemoryLimitError, match=r"x:1b needs 0\.7 GB"):
        chooser(0.1, 20, SMALL, MIDDLE).best((SMALL, MIDDLE))


# The Hub's word


def test_the_hubs_sizes_go_before_the_catalogues(monkeypatch):
    def tell(sizes):
        list_files(monkeypatch, sizes)
        told = huggingface_hub.model_info("x")
        for each in told.siblings:
            each.size = sizes[each.rfilename]

    names = [each.file for each in MIDDLE.files]
    tell({names[0]: 9 * GB, names[1]: None, "mmproj-F16.gguf": 5})
    told = as_told(MIDDLE)
    assert [(each.file, each.size) for each in told.files] == [
        (names[0], 9 * GB),
        (names[1], 2 * GB),
    ]
    assert told.tower == 5
    choice = chooser(4, 20, MIDDLE).best((MIDDLE,), as_told)
    assert choice.file.precision == "Q3_K_M"
    for sizes in ({}, {"other.gguf": 1}):  # nobody answers, or the files have other names
        tell(sizes)
        assert as_told(MIDDLE) == MIDDLE


def test_the_size_of_a_split_file_is_that_of_its_parts(monkeypatch):
    parts = [f"x-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    split = replace(SMALL, files=(ModelFile(parts[0], GB),))
    list_files(monkeypatch, parts)
    for each in huggingface_hub.model_info("x").siblings:
        each.size = 7
    assert as_told(split).files[0].size == 14
    list_files(monkeypatch, parts[:1])
    assert as_told(split) == split


def test_who_reads_checkpoints_is_given_the_file(monkeypatch, tmp_path):
    list_files(monkeypatch, [])
    monkeypatch.setattr("edgespec.store.choosing.available_bytes", lambda: 8 * GB)
    assert checkpoint_name("qwen3:0.6b") == "unsloth/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q4_K_M.gguf"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3").mkdir()
    for word in ("owner/name", "qwen3", "no such"):
        assert checkpoint_name(word) == word


# Proposals


@pytest.mark.parametrize(
    ("free", "speed", "names"),
    [
        (64, 600, ["x:70b", "x:30b-a3b", "x:9b"]),
        (30, 60, ["x:30b-a3b", "x:4b", "x:1b"]),
        (8, 60, ["x:9b", "x:4b", "x:1b"]),
        (8, 12, ["x:1b", "x:4b", "x:9b"]),
        (4, 60, ["x:4b", "x:1b"]),
        (0.3, 60, []),
    ],
)
def test_three_are_proposed_by_memory_and_speed(free, speed, names):
    entries = [
        SMALL,
        MIDDLE,
        LARGE,
        entry("x:30b-a3b", 18, active=3 * GB),
        entry("x:70b", 42),
    ]
    entries = [replace(each, proposed=True) for each in entries]
    others = entry("x:100b", 1, parameters=10**11), replace(entries[0], name="e:1", kind="rankings")
    found = chooser(free, speed, *entries, *others).proposals()
    assert [each.entry.name for each in found] == names


def test_of_the_shipped_models_three_fit_a_laptop():
    made = ModelChooser(Catalogue.read(), 12 * GB)
    vars(made)["bandwidth"] = 40 * GB
    found = made.proposals()
    assert len(found) == 3
    assert all(made.rate(each.entry, each.file) >= 4 for each in found)


# As a plan counts it


def planned(file):
    """Bytes that a plan has for a file, with the usual context."""
    bundle = bundles.load(bundle_of(file))
    (found,) = plan_memory(bundle, LoadOptions(context=CONTEXT)).demands
    return found.total + found.mapped


@pytest.mark.parametrize(
    ("name", "layers", "heads", "vocabulary"),
    [
        pytest.param(name, *sizes, marks=needs(name))
        for name, *sizes in (
            ("qwen-coder-0.5b.gguf", 24, 2, "qwen2"),
            ("smollm2-135m.gguf", 30, 3, "smollm2"),
        )
    ],
)
def test_memory_is_nearly_that_of_a_plan(own_cache, name, layers, heads, vocabulary):
    file = FOLDER / name
    model = CatalogueEntry(
        "x:1b",
        "a/b",
        (ModelFile(name, file.stat().st_size),),
        vocabulary=vocabulary,
        context=8192,
        cache=layers * heads * 64 * 2 * 2,
    )
    catalogue = Catalogue(Catalogue.read().vocabularies, {})
    counted = ModelChooser(catalogue, 0).memory(model, model.files[0])
    assert 1 <= counted / planned(file) < 1.15


def test_memory_of_a_small_model_is_nearly_that_of_a_plan(own_cache, tmp_path):
    make_checkpoint(tmp_path / "c", "llama", max_position_embeddings=8192)
    write_gguf(tmp_path / "c", tmp_path / "x.gguf", "Q8_0")
    file = tmp_path / "x.gguf"
    target = bundles.load(bundle_of(file)).target
    model = CatalogueEntry(
        "x:1b",
        "a/b",
        (ModelFile(file.name, file.stat().st_size),),
        vocabulary="x",
        context=8192,
        cache=target.layers * target.kv_heads * target.head_dim * 4,
    )
    catalogue = Catalogue({"x": CatalogueVocabulary(target.vocab_size)}, {})
    counted = ModelChooser(catalogue, 0).memory(model, model.files[0])
    assert 0.9 < counted / planned(file) < 1.1
