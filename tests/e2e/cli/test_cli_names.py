"""Names instead of paths: from a word of the catalogue to an answer, by a stand-in of the Hub."""

from __future__ import annotations

import json
import sys

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, PROMPT, fails
from ggufs import write_gguf
from hubs import hub
from huggingface_hub import constants
from terminals import Terminal

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.cli import proposing
from edgespec.models.embedded import BUNDLE
from edgespec.store.store import BundleStore

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
QUICK = [*FAST, "-n", 8]
TOO_LARGE = 1 << 50  # bytes, or weights that no model has


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A target, a draft for it, and a draft of other tokens."""
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, tokens) in enumerate((("target", 331), ("draft", 331), ("other", 300))):
        make_checkpoint(folder / name, "llama", seed=seed, **SIZES)
        write_tokenizer(folder / name, tokens)
        chat = {"tokenizer.chat_template": TEMPLATE}
        write_gguf(folder / name, folder / f"{name}-Q8_0.gguf", "Q8_0", **chat)
    return {name: folder / f"{name}-Q8_0.gguf" for name in ("target", "draft", "other")}


@pytest.fixture(scope="module")
def served(files):
    """The stand-in, with a repository for each of the files."""
    with hub() as server:
        for name, file in files.items():
            server.repositories[f"tiny/{name}-GGUF"] = {file.name: file}
        yield server


@pytest.fixture
def named(files, served, own_cache, tmp_path, monkeypatch):
    """Writes the user's own entries, for processes that ask the stand-in."""
    served.take_the_place(monkeypatch, tmp_path / "hub")
    served.asked.clear()
    catalogue = tmp_path / "models.toml"
    monkeypatch.setenv("EDGESPEC_CATALOGUE", str(catalogue))

    def write(name, of="target", **fields):
        size = fields.pop("size", files[of].stat().st_size)
        repository = fields.pop("repository", f"tiny/{of}-GGUF")
        lines = [f'[models."{name}"]', f'repository = "{repository}"']
        lines.append(f'files = [{{file = "{files[of].name}", size = {size}}}]')
        lines += [f"{field} = {json.dumps(value)}" for field, value in fields.items()]
        with catalogue.open("a") as file:
            file.write("\n".join([*lines, ""]))

    return write


@pytest.fixture
def fast(monkeypatch):
    """A machine with 8 GB, which it reads with 20 GB/s."""
    monkeypatch.setattr("edgespec.store.choosing.bandwidth", lambda threads, seconds: 20e9)
    monkeypatch.setattr("edgespec.store.choosing.available_bytes", lambda: 8 * 10**9)


def downloads(served):
    return {path.rpartition("/")[2] for path in served.asked if "/resolve/" in path}


# From a name to a model


def test_a_name_is_fetched_with_its_draft_and_found_again(cli, named, served, files):
    named("tiny:1b", draft="tiny:0.1b")
    named("tiny:0.1b", "draft")
    first = cli("run", "Tiny:1B", "--raw", PROMPT, *QUICK)
    assert first.code == 0, first.err
    assert (
        "tiny:1b is tiny/target-GGUF:target-Q8_0.gguf, 0.0 GB to fetch; tiny:0.1b drafts for it"
    ) in first.err
    assert downloads(served) == {"target-Q8_0.gguf", "draft-Q8_0.gguf"}
    (listed,) = json.loads(cli("list", "--json").out)
    assert (listed["name"], listed["called"]) == ("tiny-1b", "tiny:1b")
    assert listed["draft"] == "tiny/draft-GGUF:draft-Q8_0.gguf"
    assert "tiny:1b" in cli("list").out
    alone = cli("run", files["target"], "--raw", PROMPT, *QUICK, "--draft", "none")
    assert alone.out == first.out
    served.asked.clear()
    for word in ("tiny:1b", "tiny-1b"):
        again = cli("run", word, "--raw", PROMPT, *QUICK)
        assert (again.code, again.out) == (0, first.out), again.err
    with LLM("tiny:1b", threads=1) as llm:
        assert llm.bundle.draft is not None
        assert repr(llm).startswith("<LLM tiny:1b: ")
    assert served.asked == []
    assert cli("rm", "tiny:1b").code == 0
    assert [*BundleStore().made()] == ["target-q8_0"]


@pytest.mark.parametrize("command", ["show", "plan"])
@pytest.mark.parametrize("name", ["tiny:1b", "tiny/target-GGUF:target-Q8_0.gguf"])
def test_who_only_looks_at_a_model_fetches_none(cli, named, served, command, name):
    named("tiny:1b")
    fails(cli(command, name), f"no bundle of {name} is on this machine: `edgespec pull {name}` ")
    assert downloads(served) == set()
    assert cli("pull", name).code == 0
    served.asked.clear()
    assert cli(command, name).code == 0
    assert served.asked == []


def test_what_is_here_by_another_name_can_be_looked_at(cli, named, served):
    named("tiny:1b")
    assert cli("pull", "tiny/target-GGUF:target-Q8_0.gguf").code == 0
    served.asked.clear()
    assert cli("show", "tiny:1b").code == 0
    assert downloads(served) == set()


def test_a_plan_with_a_draft_says_how_to_fetch_both(cli, named, served):
    named("tiny:1b")
    named("tiny:0.1b", "draft")
    pair = "tiny:1b", "--draft", "tiny:0.1b"
    fails(cli("plan", *pair), "tiny:1b and tiny:0.1b is", f"pull {' '.join(pair)}` fetches")
    assert cli("pull", *pair).code == 0
    served.asked.clear()
    assert cli("plan", *pair).code == 0
    assert served.asked == []


def test_a_model_that_is_here_by_another_name_is_not_made_again(cli, named):
    named("tiny:1b")
    assert cli("pull", "tiny/target-GGUF:target-Q8_0.gguf").code == 0
    found = cli("pull", "tiny:1b")
    assert (found.code, "making a bundle" in found.err) == (0, False)
    assert len(BundleStore().made()) == 1
    assert cli("models", "name", "target-q8_0", "mine").code == 0
    assert cli("pull", "tiny").out.strip().endswith("mine")


def test_a_users_name_takes_the_place_of_the_one_that_it_came_by(cli, named):
    named("tiny:1b")
    cli("pull", "tiny:1b")
    cli("models", "name", "tiny:1b", "mine")
    (listed,) = json.loads(cli("list", "--json").out)
    assert (listed["name"], listed["called"]) == ("mine", None)


def test_a_draft_that_does_not_suit_is_left_out(cli, named):
    named("other:1b", draft="tokens:1b")
    named("tokens:1b", "other")
    first = cli("pull", "other:1b")
    assert first.code == 0, first.err
    assert "the draft is left out, since its vocabulary is not the model's" in first.err
    named("missing:1b", "draft", draft="nowhere:1b")
    named("nowhere:1b", repository="tiny/nothing-GGUF")
    second = cli("pull", "missing:1b")
    assert second.code == 0, second.err
    assert "the draft is left out, since it cannot be fetched: tiny/nothing-GGUF:" in second.err
    assert {
        made.record.called: bundles.load(made.path).draft for made in BundleStore().made().values()
    } == {"other:1b": None, "missing:1b": None}


def test_a_draft_that_somebody_names_goes_before_the_catalogues(cli, named, served):
    named("tiny:1b", draft="tiny:0.1b")
    named("tiny:0.1b", "other")
    named("tiny:0.2b", "draft")
    assert cli("pull", "tiny:1b", "--draft", "tiny:0.2b").code == 0
    assert downloads(served) == {"target-Q8_0.gguf", "draft-Q8_0.gguf"}


def test_a_familys_name_takes_what_fits(cli, named, served, fast):
    named("tiny:1b", parameters=10**9)
    named("tiny:9b", "draft", parameters=9 * 10**9, size=TOO_LARGE)
    found = cli("pull", "tiny")
    assert (found.code, found.out.strip().endswith("tiny-1b")) == (0, True), found.err
    assert downloads(served) == {"target-Q8_0.gguf"}
    asked = len(served.asked)
    assert cli("pull", "tiny").out == found.out
    assert len(served.asked) == asked


def test_what_does_not_fit_is_not_fetched(cli, named, served):
    named("tiny:1b", state=TOO_LARGE)
    told = ("tiny:1b needs 1125", "GB are free", "`edgespec search` lists")
    fails(cli("pull", "tiny:1b"), *told, code=3)
    assert downloads(served) == set()


def test_a_checkpoint_that_is_exported_may_be_a_name(cli, named, tmp_path):
    named("tiny:1b")
    named("tiny:0.1b", "draft")
    made = cli("export", "tiny:1b", "--draft", "tiny:0.1b", "-o", tmp_path / "bundle")
    assert made.code == 0, made.err
    assert bundles.load(tmp_path / "bundle").draft is not None


def test_near_names_are_proposed(cli, own_cache):
    told = fails_with(cli("run", "qwen3.5:5b", "-p", "x"))
    assert "did you mean qwen3.5:" in told
    assert " or qwen3.5:" in told
    assert "did you mean llama3.3:70b, llama3.2" in fails_with(cli("chat", "llama3.3:2b"))
    assert "a name that `edgespec search` lists" in fails_with(cli("chat", "zzz"))


def fails_with(result):
    fails(result, "there is no model")
    return result.err


# Searching


def test_search_lists_the_catalogue_and_the_hub(cli, named, served, fast):
    named("target:7b", size=4 * 10**9, parameters=7 * 10**9, licence="MIT", cache=100_000)
    named("target:70b", size=40 * 10**9, draft="target:7b")
    found = json.loads(cli("search", "Target", "--json").out)
    one, other = found["catalogue"]
    assert (one["name"], one["licence"], one["fits"]) == ("target:7b", "MIT", True)
    assert one["tokens_per_second"] == 3.8
    assert 4.4e9 < one["memory"] < 4.7e9
    assert (other["fits"], other["draft"]) == (False, None)
    assert found["hub_answers"]
    assert found["hub"] == [
        {
            "name": "tiny/target-GGUF",
            "parameters": 10**9,
            "licence": "mit",
            "downloads": 7,
            "readable": True,
        }
    ]
    assert any(each.startswith("/api/models?search=Target&filter=gguf") for each in served.asked)
    shown = cli("search", "target").out
    assert "target:7b" in shown
    assert "too much" in shown
    assert "4,096 tokens of context; tokens/s estimated, without drafts" in shown
    assert "tiny/target-GGUF" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.usefixtures("fast")
def test_search_goes_without_the_hub(cli, served, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    shown = cli("search", "qwen3").out
    assert "heads for qwen3:8b, to name behind --draft: RedHatAI/Qwen3-8B-speculator" in shown
    assert "qwen3:4b" in shown
    assert "the Hub does not answer" in shown
    monkeypatch.setenv("COLUMNS", "80")
    every = cli("search").out
    assert "nomic-embed-text:v1.5" in every
    assert "the Hub" not in every
    [row] = [line for line in every.splitlines() if line.startswith("qwen3:4b ")]
    assert "Apache-2.0" in row, "the licence is folded"
    monkeypatch.setattr(constants, "ENDPOINT", served.address)
    assert cli("search", "zzz").out.startswith("there is no model for 'zzz'")


# Without a name


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")


@POSIX
@pytest.mark.usefixtures("fast")
def test_a_first_answer_takes_one_command_and_one_question(named, served, own_cache):
    """On a fresh cache: `edgespec chat`, Enter, and a message."""
    named("tiny:1b", parameters=TOO_LARGE, proposed=True)
    chat = Terminal("", *QUICK, columns=120)
    chat.until("these suit this machine:")
    chat.until(r"1  tiny:1b +0\.0 GB to download, 0\.\d GB of memory, about [\d,]+ tokens/s")
    chat.until(r"which one, 1 to \d\? ")
    assert downloads(served) == set()
    chat.type("\r")
    chat.until("making a bundle of tiny:1b, once")
    chat.until("/help shows the commands")
    chat.until("> ")
    chat.type("hello\r")
    chat.until("stopped after 8 tokens")
    chat.leave()
    chat.close()
    assert chat.shown.count("which one") == 1
    proposals = proposing._proposals()
    assert tuple(proposals[0]) == ("tiny-1b", "is here")
    assert "tiny:1b" not in [each.name for each in proposals]
    (own_cache / "models" / "tiny-1b" / "target.tiles").write_bytes(b"")
    assert proposing._proposals()[0].name == "tiny:1b"


@POSIX
def test_who_wants_none_talks_to_the_demonstration(named):
    named("tiny:1b", parameters=TOO_LARGE, proposed=True)
    chat = Terminal("", *QUICK)
    chat.until("which one")
    chat.type("what\r")
    chat.until("which one")
    chat.type("n\r")
    chat.until("a demonstration that knows a")
    chat.leave()
    chat.close()


def test_without_a_terminal_nothing_is_asked(cli, named):
    named("tiny:1b", parameters=TOO_LARGE, proposed=True)
    found = cli("chat", *QUICK, stdin=b"")
    assert "which one" not in found.err
    assert bundles.load(BUNDLE).manifest.provenance["target"] in found.err
