"""Stop strings that name special tokens, by every route that takes them."""

from __future__ import annotations

import pytest
from pairs import with_eos
from servers import MODEL, PLACE, PROMPT, serving

from edgespec import LLM

TOKEN = "<|endoftext|>"
GRAMMAR = {"grammar": f'start: "ab" {TOKEN} "cd"'}
STOPS = [
    ([TOKEN], "ab"),
    (["never", TOKEN], "ab"),
    ([f"b{TOKEN}"], "a"),
    ([f"ab{TOKEN}c"], ""),
    ([f"{TOKEN}x", "d"], "abc"),
]


@pytest.fixture(scope="module")
def llm(served_bundle, tmp_path_factory):
    """A model with a special token besides the one that ends its texts."""
    path = with_eos(served_bundle, tmp_path_factory.mktemp("stops") / "bundle", 1)
    with LLM(path, draft="lookup", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


@pytest.mark.parametrize(("stop", "text"), STOPS)
def test_a_stop_string_may_name_a_special_token(running, llm, stop, text):
    asked = {"model": MODEL, "stop": stop, "max_tokens": 20, **GRAMMAR}
    completion = running.post({**asked, "prompt": PROMPT}).json()["choices"][0]
    messages = [{"role": "user", "content": "hello"}]
    chat = running.post({**asked, "messages": messages}, "/v1/chat/completions").json()
    [said] = chat["choices"]
    result = llm.generate(PROMPT, stop=stop, **GRAMMAR)
    assert (completion["text"], completion["finish_reason"]) == (text, "stop")
    assert (said["message"]["content"], said["finish_reason"]) == (text, "stop")
    assert (result.text, result.finish_reason) == (text, "stop")


def test_without_such_a_string_the_token_is_no_part_of_the_text(llm):
    for stop in ((), ("never",), ("<|im_start|>",), ("<|endof",)):
        assert llm.generate(PROMPT, stop=stop, **GRAMMAR).text == "abcd"


# Not all of what a script says here is the answer.
