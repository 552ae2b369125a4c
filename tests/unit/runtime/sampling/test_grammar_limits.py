"""Grammars that would crash or exhaust the process are refused; others cost as much as before."""

from __future__ import annotations

import copy
import json
import os
import signal
import threading
import time
from contextvars import copy_context

import numpy as np
import pytest
from batches import FEW, answers, completion, write
from chats import Chat, template
from checkpoints import write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import GrammarSizeError, InputError
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.sampling import grammar
from edgespec.runtime.sampling.grammar import GrammarCompiler
from edgespec.runtime.sampling.trials import is_small
from edgespec.system.waiting import NOBODY_WAITS


def chain(count, link):
    """A chain of schemas, each with a reference to the next."""
    parts = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(count)}
    return {"$defs": {**parts, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def objects(count):
    return chain(
        count,
        lambda part: {
            "type": "object",
            "properties": {"next": part, "x": {"type": "integer"}},
            "required": ["next"],
            "additionalProperties": False,
        },
    )


def nested(count):
    return '{"type":"object","additionalProperties":' * count + "{}" + "}" * count


def rules(count):
    links = [f'r{n}: "a" r{n + 1}' for n in range(count)]
    return "\n".join(["start: r0", *links, f'r{count}: "b"'])


def wide(count):
    member = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    return {"type": "object", "properties": {f"k{n}": member for n in range(count)}}


def patterns(count):
    return [{"type": "string", "pattern": f".*{chr(97 + n)}.*"} for n in range(count)]


def joined(count):
    """Patterns that join each other by references."""
    parts = {
        f"d{n}": {"$ref": f"#/$defs/d{n + 1}", **each} for n, each in enumerate(patterns(count))
    }
    return {"$defs": {**parts, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


DEEP, MEMORY = "nest", "MB|longer than"
HOSTILE = {
    "objects by reference": ("json_schema", json.dumps(objects(876)), DEEP),
    "maps by reference": (
        "json_schema",
        json.dumps(chain(1102, lambda part: {"type": "object", "additionalProperties": part})),
        DEEP,
    ),
    "lists by reference": (
        "json_schema", json.dumps(chain(2000, lambda part: {"items": part})), DEEP,
    ),
    "nested maps": ("json_schema", nested(1102), DEEP),
    "rules": ("grammar", rules(2750), DEEP),
    "repeated repetitions": ("grammar", "start: /a{99999}/{99999}", MEMORY),
    "fewer repetitions": ("grammar", 'start: "x" /a{2000}/{2000}', MEMORY),
    "a multiple": ("json_schema", '{"type":"integer","multipleOf":9999999}', MEMORY),
    "joined patterns": ("json_schema", json.dumps({"allOf": patterns(20)}), MEMORY),
    "patterns by reference": ("json_schema", json.dumps(joined(20)), MEMORY),
    "characters": ("grammar", 'start: "a"' + " " * 1_000_000, "1000010 characters"),
    "members": ("json_schema", json.dumps(wide(20_000)), "characters"),
}  # fmt: skip
FINE = {
    "objects by reference": ("json_schema", json.dumps(objects(90))),
    "rules": ("grammar", rules(150)),
    "members": ("json_schema", json.dumps(wide(1500))),
    "names": ("json_schema", json.dumps({"enum": [f"name {n}" for n in range(5000)]})),
    "multiple": ("json_schema", '{"type":"integer","multipleOf":5000}'),
    "list": ("json_schema", '{"type":"array","items":{"type":"string"},"maxItems":5000}'),
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 331)
    return GrammarCompiler(folder, 331, [0])


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_too_large_is_refused(compiler, name):
    kind, source, part = HOSTILE[name]
    begun = time.monotonic()
    for _ in range(2):  # the second time without another trial
        with pytest.raises(GrammarSizeError, match=rf"^{kind} .*({part})") as caught:
            compiler.compile(kind, source)
        assert len(str(caught.value)) < 200
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("name", FINE)
def test_what_is_large_but_bounded_is_compiled(compiler, name):
    kind, source = FINE[name]
    assert not is_small(kind, source)
    assert compiler.compile(kind, source).allowed().any()


def test_patterns_that_are_too_complex_together_are_told(compiler):
    source = json.dumps({"allOf": patterns(12)})
    with pytest.raises(InputError, match="patterns that one string must match are too complex"):
        compiler.compile("json_schema", source)
    assert compiler.compile("json_schema", json.dumps({"allOf": patterns(3)})).allowed().any()


def test_members_that_are_counted_are_bounded(compiler):
    source = {**wide(400), "maxProperties": 300}
    with pytest.raises(GrammarSizeError, match="400 members to count"):
        compiler.compile("json_schema", json.dumps(source))


AMBIGUOUS = "start: s\ns: s s s | s s | A | A A\nA: /(.|\\n)/"


def follow(matcher, count):
    """Go on with the last of the allowed tokens, as branches of a draft do, too."""
    for _ in range(count):
        token = int(np.flatnonzero(matcher.allowed())[-1])
        copy.deepcopy(matcher).advance(token)
        matcher.advance(token)
        matcher.forced()


def test_an_ambiguous_grammar_ends_with_a_line(compiler, monkeypatch):
    monkeypatch.setattr(grammar, "_PATIENCE", 0.3)
    matcher = compiler.compile("grammar", AMBIGUOUS)
    begun = time.process_time()
    with pytest.raises(InputError, match=r"too long \(\d+ s .*make it simpler") as caught:
        follow(matcher, 4000)
    assert len(str(caught.value)) < 200
    assert time.process_time() - begun < 9


def test_a_grammar_that_fits_a_text_once_goes_on(compiler):
    source = "start: (word /[ \\n]/)*\nword: /[a-z]+/"
    follow(compiler.compile("grammar", source), 500)


def test_others_go_on_meanwhile(compiler):
    """The interpreter's lock is free while a child tries a grammar."""
    gaps = []
    ended = threading.Event()

    def watch():
        last = time.monotonic()
        while not ended.wait(0.001):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(GrammarSizeError):
            compiler.compile("json_schema", '{"type":"integer","multipleOf":8999999}')
    finally:
        ended.set()
        watching.join()
    assert len(gaps) > 100


def test_a_trial_that_nobody_waits_for_ends(compiler):
    """And so does waiting for the trial of another."""
    gone = threading.Event()
    errors = []
    source = '{"type":"integer","multipleOf":7999999}'
    compiler.compile("json_schema", FINE["names"][1])  # the child is there

    def ask():
        try:
            compiler.compile("json_schema", source)
        except InputError as error:
            errors.append(error)

    context = copy_context()
    context.run(NOBODY_WAITS.set, gone.is_set)
    threads = [threading.Thread(target=context.copy().run, args=(ask,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    gone.set()
    begun = time.monotonic()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 1.5  # where a trial takes 2 s of processor time
    assert ["nobody waits" in str(error) for error in errors] == [True] * 3
    with pytest.raises(GrammarSizeError):  # it was not taken for the result of the trial
        compiler.compile("json_schema", source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_does_not_wait_for_a_trial_of_a_thread_that_it_has_not(compiler):
    gone = threading.Event()

    def ask():
        NOBODY_WAITS.set(gone.is_set)  # in the context of this thread
        with pytest.raises(InputError):
            compiler.compile("json_schema", '{"type":"integer","multipleOf":6999999}')

    other = threading.Thread(target=ask)
    other.start()
    lock = compiler._trials._lock._lock
    while lock.acquire(blocking=False):
        lock.release()
        assert other.is_alive()
    if not (process := os.fork()):
        signal.alarm(60)
        try:
            compiler.compile("json_schema", '{"type":"integer","multipleOf":5003}')
            os._exit(0)
        finally:
            os._exit(1)
    gone.set()
    assert os.waitpid(process, 0)[1] == 0
    other.join(60)
    assert not other.is_alive()


def test_ordinary_grammars_need_no_trial():
    for kind, source in (
        ("json_schema", json.dumps(objects(20))),
        ("json_schema", json.dumps(wide(100))),
        ("json_schema", '{"type":"number","multipleOf":0.01,"minimum":0,"maximum":1e9}'),
        ("json_schema", '{"type":"string","pattern":"^[a-z]{2,40}$","maxLength":4000}'),
        ("regex", r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"),
        ("grammar", 'start: call (";" call){0,2}\ncall: NAME "(" NAME~0..2 ")"\nNAME: /[a-z]{5}/'),
    ):
        assert is_small(kind, source)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: (
        st.lists(each)
        | st.dictionaries(
            st.sampled_from(["multipleOf", "pattern", "patternProperties", "maxItems", "$ref"]),
            each,
        )
    ),
)


@settings(max_examples=50)
@given(JSON)
def test_any_json_can_be_looked_at(value):
    assert is_small("json_schema", json.dumps(value)) in (True, False)


@pytest.mark.parametrize("name", ["objects by reference", "a multiple"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_that_is_too_large_is_named(tmp_path, name, choice):
    schema = json.loads(HOSTILE[name][1])
    function = {"name": "huge", "parameters": {"type": "object", "properties": {"a": {}}}}
    function["parameters"] |= {"$defs": schema.pop("$defs", {}), "properties": {"a": schema}}
    chat = Chat(tmp_path, template("hermes"), ("<tool_call>", "</tool_call>"))
    tools = [{"type": "function", "function": each} for each in ({"name": "clock"}, function)]
    with pytest.raises(InputError, match=r"^tool huge: .*too large"):
        chat.ask(tools=tools, tool_choice=choice)


def test_a_line_of_a_batch_is_refused_alone(cli, tmp_path):
    kind, source, _ = HOSTILE["rules"]
    lines = [completion("bad", "x", **{kind: source}), completion("good", "x", max_tokens=2)]
    given = write(tmp_path / "in.jsonl", lines)
    assert cli("batch", given, "-o", tmp_path / "out.jsonl", *FEW).code == 4
    codes = {
        line["custom_id"]: line["response"]["status_code"]
        for line in answers(tmp_path / "out.jsonl")
    }
    assert codes == {"bad": 400, "good": 200}


def test_the_command_line_refuses_in_one_line(cli, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(HOSTILE["objects by reference"][1])
    result = cli("run", BUNDLE, "x", *FEW, "--json-schema", schema)
    assert (result.code, len(result.err.strip().splitlines())) == (2, 1)
    assert "too large" in result.err
