"""`/infill` and completions with a suffix, as editors and OpenAI's client ask for them."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from fillers import make_filler
from pairs import with_eos
from servers import MODEL, PLACE, refused, serving

from edgespec import LLM

BEFORE = "".join(f"def twice_{n}(x):\n    return x * 2\n\n\n" for n in range(6))
LINE = "def add(a, b):\n    return "
BEHIND = "\n\n\nprint(add(2, 3))\n"
CHUNK = {"text": "x = 1\n", "filename": "a.py"}

# As llama.vscode writes them (`createRequestPayload` in its llama-server.ts).
VSCODE = {
    "input_prefix": BEFORE, "input_suffix": BEHIND, "input_extra": [CHUNK], "prompt": LINE,
    "n_predict": 24, "top_k": 40, "top_p": 0.99, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 4,
    "t_max_prompt_ms": 500, "t_max_predict_ms": 60_000,
}  # fmt: skip
VSCODE_WARMS = {
    "input_prefix": "", "input_suffix": "", "input_extra": [CHUNK], "prompt": "", "n_predict": 0,
    "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1,
}  # fmt: skip
# As llama.vim writes it (`llama#fim` in its autoload/llama.vim).
VIM = {
    "id_slot": 0, "input_prefix": BEFORE, "input_suffix": BEHIND,
    "input_extra": [{**CHUNK, "time": [1, 2]}], "prompt": LINE, "n_predict": 24, "stop": [],
    "n_indent": 4, "top_k": 40, "top_p": 0.99, "samplers": ["top_k", "top_p", "infill"],
    "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 60_000,
    "response_fields": [
        "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
        "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
        "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated",
        "tokens_cached",
    ],
}  # fmt: skip
VIM_WARMS = {
    "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": [{**CHUNK, "time": 5}],
    "prompt": "", "n_predict": 0, "temperature": 0.0, "samplers": [], "stream": False,
    "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_filler(tmp_path_factory.mktemp("filler"))


@pytest.fixture(scope="module")
def plain(bundle):
    """What is right."""
    return LLM(bundle, draft="none", **PLACE)


@pytest.fixture
def running(bundle):
    """As `edgespec serve` has it."""
    with LLM(bundle, draft="lookup", **PLACE) as llm, serving(llm) as running:
        yield running


def expected(plain, **options):
    files = [(CHUNK["filename"], CHUNK["text"])]
    asked = {"max_new_tokens": 24, "min_indent": 4, **options}
    return plain.infill(BEFORE + LINE, BEHIND, files, **asked)


def events(response):
    """The objects of a stream."""
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_what_llama_vscode_asks_for(running, plain):
    given = running.post(VSCODE, "/infill")
    assert given.status_code == 200
    given = given.json()
    right = expected(plain)
    assert given["content"] == right.text
    assert (given["stop"], given["model"], given["truncated"]) == (True, MODEL, False)
    assert given["tokens_evaluated"] == right.prompt_tokens
    assert given["tokens_predicted"] == given["timings"]["predicted_n"] == right.new_tokens
    ended = right.tokens[-1] in plain.infill_prompt("", "").stop_ids
    assert given["stop_type"] == ("eos" if ended else "limit")
    timings = given["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == right.prompt_tokens
    assert timings["prompt_ms"] > 0
    assert timings["prompt_per_second"] == pytest.approx(
        1000 * timings["prompt_n"] / timings["prompt_ms"]
    )
    assert given["edgespec"]["left_out"] == 0


def test_what_llama_vim_asks_for(running, plain):
    """It gets the fields that it names, under these names."""
    given = running.post(VIM, "/infill").json()
    assert list(given) == VIM["response_fields"]
    assert given["content"] == expected(plain).text
    assert given["timings/predicted_n"] == expected(plain).new_tokens
    assert given["truncated"] is False


@pytest.mark.parametrize("warms", [VSCODE_WARMS, VIM_WARMS], ids=["vscode", "vim"])
def test_a_request_without_tokens_reads_the_files(running, plain, warms):
    given = running.post({**warms, "prompt_cache_key": "mine"}, "/infill")
    assert given.status_code == 200
    if warms is VIM_WARMS:
        assert given.json() == {}
    else:
        assert (given.json()["content"], given.json()["tokens_predicted"]) == ("", 0)
    files = [(CHUNK["filename"], CHUNK["text"])]
    read = len(plain.infill_prompt("", "", files).tokens) - 2
    after = running.post({**VSCODE, "prompt_cache_key": "mine"}, "/infill").json()
    assert after["tokens_cached"] == after["timings"]["cache_n"] == read
    assert after["content"] == expected(plain).text


def test_typing_reads_what_is_new_only(running, plain):
    """The number of rows that are read is what is behind the edit."""
    mine = {**VSCODE, "prompt_cache_key": "typing"}
    before = running.post(mine, "/infill").json()
    after = running.post({**mine, "prompt": LINE + "a"}, "/infill").json()
    files = [(CHUNK["filename"], CHUNK["text"])]
    same = len(plain.infill_prompt(BEFORE + LINE, "", files).tokens) - 2
    assert before["tokens_cached"] == 0
    assert after["tokens_cached"] >= same - 2
    assert after["timings"]["prompt_n"] <= after["tokens_evaluated"] - same + 2


def test_the_last_event_of_a_stream_tells_the_same(running):
    asked = {**VSCODE, "n_indent": 0}
    stop = {"stop": [running.post(asked, "/infill").json()["content"][3:5]]}
    whole = running.post({**asked, **stop}, "/infill").json()
    assert whole["stop_type"] == "word"
    given = running.post({**asked, **stop, "stream": True}, "/infill")
    *parts, last = events(given)  # without [DONE], as llama-server
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert {part["stop"] for part in parts} <= {False}
    assert (last["stop"], last["content"]) == (True, "")
    for field in ("tokens_predicted", "stop_type", "tokens_evaluated"):
        assert last[field] == whole[field]


def test_a_stream_without_tokens_has_no_text(running):
    given = events(running.post({**VSCODE_WARMS, "stream": True}, "/infill"))
    assert {event["content"] for event in given} == {""}
    assert given[-1]["stop"] is True


def test_it_is_greedy_unless_it_is_asked_otherwise(running, plain):
    assert running.post(VSCODE, "/infill").json()["content"] == expected(plain).text
    asked = {**VSCODE, "temperature": 1.5, "seed": 3, "return_tokens": True}
    given = running.post(asked, "/infill").json()
    right = expected(plain, temperature=1.5, seed=3, top_k=40, top_p=0.99)
    assert (given["content"], given["tokens"]) == (right.text, right.tokens)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"n_indent": 0}, {"min_indent": 0}),
        ({"n_predict": -1, "max_tokens": 3}, {"max_new_tokens": 10_000}),
        ({"n_predict": None, "max_tokens": 3}, {"max_new_tokens": 3}),
    ],
    ids=str,
)
def test_each_option_reaches_the_text(running, plain, fields, options):
    given = running.post({**VSCODE, **fields}, "/infill").json()
    right = expected(plain, **options)
    assert (given["content"], given["tokens_predicted"]) == (right.text, right.new_tokens)


def test_after_its_time_a_text_ends_with_its_line(running, plain):
    asked = {**VSCODE, "n_indent": 0, "n_predict": 200, "temperature": 1.5}
    texts = (running.post({**asked, "seed": seed}, "/infill").json() for seed in range(20))
    whole = next(text for text in texts if "\n" in text["content"])
    seed = whole["edgespec"]["seed"]
    given = running.post({**asked, "seed": seed, "t_max_predict_ms": 1e-6}, "/infill").json()
    assert given["content"] == whole["content"].split("\n")[0]
    assert given["stop_type"] == "limit"


def test_fields_that_are_not_known_are_passed_over(running, plain):
    """As llama-server does, so that newer editors than this server still work."""
    asked = {**VSCODE, "n_something": 3, "repeat_penalty": 1.0, "logit_bias": [], "mirostat": 0}
    assert running.post(asked, "/infill").json()["content"] == expected(plain).text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_prefix": None}, "input_prefix is null"),
        ({"input_prefix": 5}, "input_prefix is 5"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra.0.text is missing"),
        ({"input_extra": "x"}, "input_extra is 'x'"),
        ({"n_predict": -2}, "n_predict is -2"),
        ({"n_indent": -1}, "n_indent is -1"),
        ({"t_max_predict_ms": "1"}, "t_max_predict_ms is '1'"),
        ({"n_cmpl": 2}, "n_cmpl is 2"),
        ({"mirostat": 3}, "mirostat is 3"),
        ({"repeat_penalty": 0}, "repeat_penalty is 0"),
        ({"logit_bias": [[5, "no"]]}, "logit_bias.0.1 is 'no'"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "no adapter 0: start the server with --lora"),
        ({"model": "other"}, "model 'other' not found"),
    ],
    ids=str,
)
def test_what_is_refused(running, fields, reason):
    given = running.post({**VSCODE, **fields}, "/infill")
    refused(given, 404 if "model" in fields else 400, reason)


@pytest.mark.parametrize("missing", ["input_prefix", "input_suffix"])
def test_what_must_be_given(running, missing):
    body = {name: value for name, value in VSCODE.items() if name != missing}
    refused(running.post(body, "/infill"), 400, f"{missing} is missing")


def test_a_text_in_a_given_form(bundle, tmp_path):
    path = with_eos(bundle, tmp_path / "ending", 0)
    with LLM(path, draft="none", **PLACE) as llm, serving(llm) as running:
        schema = {"enum": ["one", "two"]}
        given = running.post({**VSCODE, "json_schema": schema}, "/infill").json()
        assert given["content"] in ('"one"', '"two"')
        assert given["stop_type"] == "eos"
        wrong = running.post({**VSCODE, "json_schema": {"type": "nonsense"}}, "/infill")
        refused(wrong, 400, "json_schema cannot be used")


def test_a_text_that_is_too_long_is_cut(bundle):
    with LLM(bundle, draft="none", context=160, **PLACE) as llm, serving(llm) as running:
        given = running.post({**VSCODE, "input_suffix": BEHIND * 20}, "/infill").json()
        assert given["edgespec"]["left_out"] > 100
        assert 110 < given["tokens_evaluated"] <= 160 - 24
        endless = running.post({**VSCODE, "n_predict": -1, "n_indent": 0}, "/infill").json()
        assert endless["tokens_evaluated"] <= 120
        assert endless["truncated"] is (endless["stop_type"] == "limit")


def test_a_model_that_cannot_fill_in_says_why(served_bundle):
    with LLM(served_bundle, draft="none", **PLACE) as llm, serving(llm) as running:
        refused(running.post(VSCODE, "/infill"), 400, "the model cannot fill in text")
        asked = {"prompt": BEFORE, "suffix": BEHIND}
        refused(running.post(asked), 400, "the model cannot fill in text")
        assert running.post({"prompt": BEFORE, "suffix": ""}).status_code == 200


# Completions with a suffix


def test_a_completion_with_a_suffix(running, plain):
    client = running.client()
    asked = {"model": MODEL, "prompt": BEFORE, "suffix": BEHIND, "max_tokens": 24, "temperature": 0}
    given = client.completions.create(**asked)
    right = plain.infill(BEFORE, BEHIND, max_new_tokens=24)
    assert given.choices[0].text == right.text
    assert given.usage.prompt_tokens == right.prompt_tokens
    parts = client.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].text for part in parts) == right.text
    without = client.completions.create(**{**asked, "suffix": ""})
    assert without.choices[0].text == plain.generate(BEFORE, max_new_tokens=24).text


def test_a_suffix_behind_tokens_is_refused(running):
    with pytest.raises(openai.BadRequestError, match="suffix goes with a prompt of text"):
        running.client().completions.create(model=MODEL, prompt=[5, 6], suffix="x")


def test_models_say_that_they_fill_in(running, bundle):
    (model,) = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert "infill" in model["capabilities"]


def test_a_suffix_in_ollamas_words(running, plain):
    options = {"temperature": 0, "num_predict": 24}
    body = {"model": MODEL, "prompt": BEFORE, "suffix": BEHIND, "stream": False}
    given = running.post({**body, "options": options}, "/api/generate").json()
    assert given["response"] == plain.infill(BEFORE, BEHIND, max_new_tokens=24).text
    shown = running.post({"model": MODEL}, "/api/show").json()
    assert shown["capabilities"] == ["completion", "insert"]


@pytest.mark.parametrize("field", ["n", "n_cmpl"])
def test_there_is_one_suggestion(running, field):
    refused(running.post({**VSCODE, field: 2}, "/infill"), 400, f"{field} is 2")
    assert running.post({**VSCODE, field: 1, "seed": 7}, "/infill").json()["content"]
