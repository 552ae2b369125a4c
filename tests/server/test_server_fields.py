"""Fields of bodies that are not known here, and those that are known and have no effect."""

from __future__ import annotations

import json
import logging

import pytest
from servers import MODEL, PROMPT

from edgespec.serve.protocols import fields as bodies

MESSAGES = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
ROUTES = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 6},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 6},
    "/v1/responses": {"input": "hello", "max_output_tokens": 6},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 6},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 6}},
    "/api/generate": {"prompt": "hello", "stream": False, "options": {"num_predict": 6}},
    "/api/show": {},
    "/tokenize": {"content": "hello"},
    "/detokenize": {"tokens": [65, 66]},
    "/render": {"text": "hello"},
}
ODD = [{"a": [1]}, ["b"], "c", 7, True]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(bodies, "_told", set())


def told(caplog):
    """What the server has logged of requests."""
    return [record.getMessage() for record in caplog.records if record.name == bodies.__name__]


def passed_over(name):
    return f"a request has the field {name!r}, which is not known here: it is passed over"


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_not_known_is_passed_over_and_named_once(running, path, caplog):
    asked = ROUTES[path] if path == "/render" else {"model": MODEL, **ROUTES[path]}
    expected = running.post(asked, path)
    for value in ODD:
        given = running.post({**asked, "of_tomorrow": value, "an_id": value}, path)
        assert given.status_code == expected.status_code
        assert ("error" in given.json()) == ("error" in expected.json())
    assert told(caplog) == [passed_over("of_tomorrow"), passed_over("an_id")]


NESTED = {
    "stream_options": ("/v1/completions", {"stream_options": {"inner": 1}, "stream": True}),
    "response_format": (
        "/v1/completions",
        {"response_format": {"type": "json_object", "inner": 1}},
    ),
    "json_schema": (
        "/v1/completions",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "object"}, "inner": 1},
            }
        },
    ),
    "prediction": (
        "/v1/completions",
        {"prediction": {"type": "content", "content": "a", "inner": 1}},
    ),
    "speculative": ("/v1/completions", {"speculative": {"inner": 1}}),
    "reasoning": ("/v1/responses", {"reasoning": {"effort": "low", "inner": 1}}),
    "text": ("/v1/responses", {"text": {"inner": 1}}),
    "text.format": ("/v1/responses", {"text": {"format": {"type": "text", "inner": 1}}}),
    "options": ("/api/chat", {"options": {"num_predict": 6, "inner": 1}}),
    "messages": ("/v1/chat/completions", {"messages": [{**MESSAGES[0], "inner": 1}]}),
    "content": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "inner": 1}]}]},
    ),
    "input": ("/v1/responses", {"input": [{**MESSAGES[0], "inner": 1}]}),
    "messages of Ollama's": ("/api/chat", {"messages": [{**MESSAGES[0], "inner": 1}]}),
}


@pytest.mark.parametrize("name", NESTED)
def test_so_is_what_is_not_known_within_a_field(ending, name, caplog):
    path, fields = NESTED[name]
    asked = {"model": MODEL, **ROUTES[path], **fields}
    for _ in range(2):
        assert ending.post(asked, path).status_code == 200
    assert told(caplog) == [passed_over("inner")]


def test_notes_of_clients_are_passed_over_without_a_word(running, caplog):
    notes = {"id": "msg-1", "status": "completed", "cache_control": {"type": "ephemeral"}}
    asked = {**ROUTES["/v1/chat/completions"], "messages": [{**MESSAGES[0], **notes}]}
    assert running.post(asked, "/v1/chat/completions").status_code == 200
    assert not told(caplog)


def test_names_in_the_log_are_short_and_of_one_line_and_not_too_many(running, caplog, monkeypatch):
    monkeypatch.setattr(bodies, "_MOST_TOLD", 3)
    names = ["x" * 9000, "a\nWARNING b\x1b[31m", *"cdef"]
    asked = {"prompt": "a", "max_tokens": 1, **dict.fromkeys(names, 1)}
    assert running.post(asked).status_code == 200
    found = told(caplog)
    assert len(set(found)) == 3
    assert all(len(line) < 200 and line.isprintable() for line in found)


NO_EFFECT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_retention",
    "prompt_cache_options",
    "cache_prompt",
    "moderation",
    "timings_per_token",
    "id_slot",
    "samplers",
    "min_keep",
    "dynatemp_exponent",
)
OF_CHATS = ("verbosity",)
OF_RESPONSES = ("client_metadata", "include", "max_tool_calls", "context_management")


@pytest.mark.parametrize("value", ODD, ids=str)
@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/completions", NO_EFFECT),
        ("/v1/chat/completions", NO_EFFECT + OF_CHATS),
        ("/v1/responses", NO_EFFECT[:9] + OF_RESPONSES),
    ],
)
def test_what_has_no_effect_may_hold_whatever_it_holds(running, path, names, value, caplog):
    asked = {"model": MODEL, **ROUTES[path], **dict.fromkeys(names, value)}
    assert running.post(asked, path).status_code == 200
    assert not told(caplog)


NEUTRAL = {
    "typical_p": 1,
    "dynatemp_range": 0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0,
    "mirostat": 0,
    "top_n_sigma": -1,
    "adaptive_target": -1.0,
    "lora": [],
    "grammar_lazy": False,
    "n_cmpl": 1,
    "use_beam_search": False,
    "min_tokens": 0,
    "ignore_eos": False,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "truncate_prompt_tokens": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "logits_processors": None,
    "structured_outputs": {},
    "guided_json": None,
    "guided_choice": [],
    "chat_template": None,
    "documents": [],
    "prompt_embeds": None,
}


def test_samplers_and_features_that_are_off_change_nothing(running, plain, caplog):
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 9}
    given = running.post({**asked, **NEUTRAL}).json()
    assert given["choices"][0]["text"] == plain.generate(PROMPT, max_new_tokens=9).text
    assert not told(caplog)


def test_llama_cpps_names_for_what_is_here(running, ending, plain):
    asked = {"prompt": PROMPT, "temperature": 0, "n_predict": 9, "t_max_predict_ms": 60_000}
    given = running.post(asked).json()
    assert given["choices"][0]["text"] == plain.generate(PROMPT, max_new_tokens=9).text
    asked |= {"json_schema": {"enum": ["seven"]}, "n_predict": 60}
    given = ending.post(asked).json()
    assert json.loads(given["choices"][0]["text"]) == "seven"
    both = ending.post({**asked, "response_format": {"type": "json_object"}})
    assert "json_schema and response_format are given" in both.json()["error"]["message"]


# Tools of OpenAI's own, and those of namespaces, which Codex makes of each server of tools

OWN = [
    {"type": "web_search"},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
    {"type": "tool_search", "execution": "client"},
    {"type": "web_search"},
]


@pytest.mark.parametrize(
    ("path", "own"), [("/v1/responses", [OWN[0], *OWN[2:]]), ("/v1/chat/completions", OWN)]
)
def test_tools_of_openais_own_are_passed_over_and_named_once(running, path, own, caplog):
    asked = {"model": MODEL, **ROUTES[path]}
    given = running.post({**asked, "tools": own}, path)
    assert given.status_code == 200
    assert told(caplog) == [
        f"a request offers a tool of the type {kind!r}, which is not here: it is passed over"
        for kind in dict.fromkeys(each["type"] for each in own)
    ]
    caplog.set_level(logging.WARNING)
    assert running.post({**asked, "tools": own}, path).status_code == 200
    assert len(told(caplog)) == len(own) - 1
