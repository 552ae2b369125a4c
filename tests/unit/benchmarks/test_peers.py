"""The comparison with peers, of which edgespec itself is one: processes, turns, what is kept."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from checkout import BENCHMARKS
from checkpoints import make_checkpoint
from ggufs import write_gguf
from heads import write_head

from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

sys.path.append(str(BENCHMARKS))  # last: names of ours come first

peers, turns, compare, exactness = map(
    importlib.import_module, ("peers", "peers.turns", "compare", "exactness")
)
PROMPT = (10, 11, 12, 13)


def loading(setting="plain", target=BUNDLE):
    return peers.Loading(str(target), None, setting, 1, 256, 2, folder="")


@pytest.fixture
def given(tmp_path):
    """The arguments of a comparison of edgespec with itself."""
    parser = argparse.ArgumentParser()
    turns.add_arguments(parser)
    words = ["model.gguf", "--cache", str(tmp_path), "--peers", "edgespec", "--threads", "1"]
    return parser.parse_args([*words, "--rows", str(tmp_path / "rows.jsonl")])


def test_a_peer_in_its_process_makes_texts_alone_and_at_once(tmp_path):
    with peers.Peer("edgespec", loading("lookup"), tmp_path) as peer:
        alone = peer.texts([PROMPT * 4], 12)
        both = peer.texts([PROMPT * 4, (20, 21)], 12)
        assert both.tokens[0] == alone.tokens[0]
        assert [len(text) for text in both.tokens] == [12, 12]
        assert 0 < alone.first <= alone.seconds
        assert 0 < alone.first_cpu <= alone.cpu
        assert 0 < alone.accepted < 12  # its text repeats itself


def test_what_goes_wrong_in_a_peer_is_a_reason(tmp_path):
    with pytest.raises(peers.PeerError, match="unknown is none of its settings: plain, auto"):
        peers.Peer("edgespec", loading("unknown"), tmp_path)
    with peers.Peer("edgespec", loading(), tmp_path) as peer:
        with pytest.raises(peers.PeerError, match="InputError"):
            peer.texts([()], 4)
        assert peer.texts([PROMPT], 4).tokens  # and goes on
        peer._process.kill()
        with pytest.raises(peers.PeerError, match="status -9"):
            peer.texts([PROMPT], 4)


@pytest.mark.parametrize("name", peers.FILES)
def test_peers_import_without_their_libraries(name):
    module = peers.module_of(name)
    assert "plain" in module.SETTINGS
    assert callable(peers.model_of(module).texts)


def test_a_further_turn_knows_what_was_read(tmp_path):
    prompt = tuple(range(10, 90))
    with peers.Peer("edgespec", loading(), tmp_path) as peer:
        whole = peer.texts([prompt], 4)
        assert peer.texts([prompt], 4, known=60).tokens == whole.tokens


def test_a_further_turn_forgets_nothing(monkeypatch, tmp_path):
    forgotten = []
    monkeypatch.setattr("edgespec.LLM.forget", lambda _: forgotten.append(True))
    own = peers.module_of("edgespec").Model(loading())
    for known in (0, 60):
        own.texts([list(range(10, 90))], 4, 0, 0, lambda: None, known)
    assert len(forgotten) == 1


def test_environments_are_made_once(monkeypatch, tmp_path):
    asked = []
    code = 1

    def run(command, **_):
        asked.append(command)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(peers.subprocess, "run", run)
    with pytest.raises(peers.PeerError, match=r"not installed: see .*pip\.log"):
        peers.python_of("xllamacpp", tmp_path)
    assert not peers.is_installed("xllamacpp", tmp_path)
    code = 0
    python = peers.python_of("xllamacpp", tmp_path)
    assert asked[-1][1:] == ["-m", "pip", "install", "--only-binary", ":all:", "xllamacpp"]
    assert python == tmp_path / "environments" / "xllamacpp" / "bin" / "python"
    assert peers.is_installed("xllamacpp", tmp_path)
    assert peers.is_installed("edgespec", tmp_path)
    count = len(asked)
    assert peers.python_of("xllamacpp", tmp_path) == python
    assert len(asked) == count
    assert peers.python_of("edgespec", tmp_path) == Path(sys.executable)


class Told:
    """A peer whose texts are told; the second way's are others."""

    asked = None

    def __init__(self, name, loading, cache):
        self.setting = loading.setting
        self.versions = {"told": "1"}
        self.started = time.monotonic() - 5  # seconds to load

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def texts(self, prompts, new_tokens, temperature=0.0, seed=0, known=0):
        self.asked.append((self.setting, len(prompts), new_tokens))
        tokens = [[prompt[0]] * new_tokens for prompt in prompts]
        if self.setting == "lookup":
            tokens[0][-1] += 1
        return peers.Made(tokens, 1.0, 2.0, 0.5, 1.0)


@pytest.fixture
def told(monkeypatch, given, tmp_path):
    given.model = tmp_path / "model.gguf"
    given.model.write_bytes(b"GGUF")
    monkeypatch.setattr(turns, "Peer", Told)
    monkeypatch.setattr(Told, "asked", [])
    return given


def test_ways_take_turns_and_a_second_run_goes_on(told):
    ways = [("edgespec", "plain"), ("edgespec", "lookup")]
    tasks = [turns.Task("code", number, (PROMPT,), 5) for number in range(3)]
    turns.Turns(told).run(tasks[:2], ways)
    order = [setting for setting, _, new in Told.asked if new == 5]
    assert order == ["plain", "lookup", "lookup", "plain"]
    Told.asked.clear()
    done = turns.Turns(told)
    done.run(tasks, ways)
    assert len([new for *_, new in Told.asked if new == 5]) == 2  # of the third alone
    assert len(done.of("code", ways[0])) == 3
    row = compare._row(done, "code", ways[1], "nothing")
    assert (row.value, row.cpu, row.texts, row.equal) == (4.0, 125.0, 3, "0 of 3")
    assert compare._row(done, "code", ways[1], "busy") is None
    told.minutes = 0
    late = turns.Turns(told)
    late.run([turns.Task("code", 9, (PROMPT,), 5)], ways)
    assert not late.made


def test_a_test_has_its_share_of_the_time_and_one_text_at_least(told):
    told.minutes = 100
    done = turns.Turns(told)
    ways = [("edgespec", "plain"), ("edgespec", "lookup")]
    done.run([turns.Task("code", number, (PROMPT,), 5) for number in range(3)], ways, share=0.0)
    assert [task.number for task, _ in done.made] == [0, 0]


def test_starts_count_from_the_process_on(told):
    tasks = [turns.Task("start", number, (PROMPT,), 1) for number in range(2)]
    done = turns.Turns(told)
    done.start(tasks, [("edgespec", "plain")])
    assert all(made.first >= 6.0 for made in done.made.values())
    row = compare._row(done, "start", ("edgespec", "plain"), "nothing")
    assert row.texts == 1
    assert row.begun >= 6.0
    Told.asked.clear()
    turns.Turns(told).start(tasks, [("edgespec", "plain")])
    assert Told.asked == []  # they were kept


def test_equal_and_repeated_texts_are_counted(told):
    ways = [("edgespec", "plain"), ("edgespec", "lookup")]
    done = turns.Turns(told)
    done.run(exactness._tasks({"code": [PROMPT, (20,), (30,), (40,)]}, [1, 2], 5), ways)
    assert exactness._cell(done, ways[0], "code, T=0", 2) == "4 of 4; 4 of 4"
    assert exactness._cell(done, ways[1], "code, T=0", 2) == "2 of 4; 4 of 4"
    assert exactness._cell(done, ways[1], "code, T=0", 4) == "-"
    questions = exactness.arithmetic(50)
    assert len(set(questions)) == 50
    assert questions == exactness.arithmetic(50)


def test_the_line_of_json_ends_the_output(told, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(turns, "tokenizer_of", lambda _: Tokenizer.from_folder(BUNDLE))
    words = ["compare.py", str(told.model), "--cache", str(tmp_path), "--peers", "edgespec"]
    words += ["--tests", "first,several,second,start", "-n", "4", "--beside", "nothing,busy"]
    monkeypatch.setattr(sys, "argv", words)
    compare.main()
    out = capsys.readouterr().out
    assert "| program " in out
    assert "| edgespec | plain " in out
    found = json.loads(out.splitlines()[-1])
    assert len(found["results"]) == 8
    assert found["results"]["first"][0]["value"] == 1.0
    assert found["results"]["second, beside busy"][0]["texts"] == 2
    assert found["peer_versions"] == {"edgespec": {"told": "1"}}
    assert found["hardware"]["cpu"]


def test_a_first_look_leaves_out_what_is_not_installed(told, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(turns, "tokenizer_of", lambda _: Tokenizer.from_folder(BUNDLE))
    words = ["compare.py", str(told.model), "--cache", str(tmp_path), "--quick"]
    monkeypatch.setattr(sys, "argv", [*words, "--peers", "edgespec,xllamacpp", "--tests", "code"])
    begun = []

    def turns_of(given, **facts):
        begun.append(given.minutes)
        return turns.Turns(given, **facts)

    monkeypatch.setattr(compare, "Turns", turns_of)
    compare.main()
    assert begun == [20]
    out = capsys.readouterr().out
    assert "not run: xllamacpp: not installed: run once without --quick" in out
    found = json.loads(out.splitlines()[-1])
    assert found["n"] == "32"
    assert [row["texts"] for row in found["results"]["code"]] == [2, 2, 2]


def test_a_head_is_a_setting_where_one_is_given(given, tmp_path):
    names = ("plain", "auto", *turns.HEADS, "draft")
    assert turns.ways_of(given, names) == [("edgespec", "plain"), ("edgespec", "auto")]
    given.head = given.draft = tmp_path
    assert [setting for _, setting in turns.ways_of(given, names)] == list(names)
    given.peers = ["xllamacpp", "ik_llama.cpp", "openvino-genai"]
    drafting = [name for name, setting in turns.ways_of(given, ("head",))]
    assert drafting == ["xllamacpp", "openvino-genai"]


def test_a_head_that_is_not_there_ends_the_comparison(told, tmp_path):
    told.head = tmp_path / "head"
    with pytest.raises(InputError, match="No such file or directory: give the folder of a head"):
        turns.Turns(told).run([turns.Task("code", 0, (PROMPT,), 5)], [("edgespec", "head")])


def test_a_head_that_peers_cannot_read_is_a_reason(told, tmp_path):
    model = make_checkpoint(tmp_path / "target", "llama", num_hidden_layers=8)
    write_gguf(tmp_path / "target", told.model)
    told.head = tmp_path / "head"
    write_head(told.head, model.config, edgespec_fusion="gated")
    done = turns.Turns(told)
    done.run([turns.Task("code", 0, (PROMPT,), 5)], [("edgespec", "head"), ("xllamacpp", "head")])
    assert [way for _, way in done.made] == [("edgespec", "head")]
    assert "fusion_gate" in done.failures["xllamacpp head"]


def test_a_program_keeps_a_core_busy_until_texts_are_made():
    children = psutil.Process().children
    before = len(children())
    with turns.beside("nothing"):
        assert len(children()) == before
    with turns.beside("busy"):
        assert len(children()) == before + 1
    assert len(children()) == before


def test_energy_is_told_where_the_processor_counts_it(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "_ENERGY", tmp_path)
    assert peers.joules_since(peers.energy()) is None
    zones = [tmp_path / f"intel-rapl:{number}" for number in range(2)]
    for zone in zones:
        zone.mkdir()
        (zone / "max_energy_range_uj").write_text("10000000\n")
        (zone / "energy_uj").write_text("9000000\n")
    begin = peers.energy()
    (zones[0] / "energy_uj").write_text("9500000\n")
    (zones[1] / "energy_uj").write_text("1000000\n")  # it began anew
    assert peers.joules_since(begin) == 2.5


def test_joules_a_token_are_told(told, monkeypatch):
    given = told
    texts = Told.texts
    monkeypatch.setattr(
        Told, "texts", lambda *args, **how: replace(texts(*args, **how), joules=6.0)
    )
    done = turns.Turns(given)
    done.run([turns.Task("code", 0, (PROMPT,), 4)], [("edgespec", "plain")])
    assert compare._row(done, "code", ("edgespec", "plain"), "nothing").joules == 2.0
