"""Answers as they are written, whole and part by part, and numbers: of texts that are given."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from backends import byte_fallback, byte_level, metaspace

from edgespec.llm.result import PromptProgress, Result
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.speculation.generation import Round
from edgespec.runtime.text.decoder import TextDecoder
from edgespec.runtime.text.endings import Ending
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.serve.metrics import Metrics
from edgespec.serve.models import Models
from edgespec.serve.parts import Part
from edgespec.serve.protocols.chat import ChatAnswer, ChatRequest
from edgespec.serve.protocols.completions import CompletionAnswer, CompletionRequest
from edgespec.serve.protocols.protocol import AnswerEnd, Origin, Signal
from edgespec.serve.protocols.text import StreamOptions
from edgespec.serve.protocols.token_texts import TokenTexts
from edgespec.serve.refusals import RequestError

TOKENIZER = Tokenizer(byte_level(), {})
BODIES = {
    CompletionAnswer: CompletionRequest(prompt="x"),
    ChatAnswer: ChatRequest(messages=[{"role": "user", "content": "x"}]),
}
KINDS = [*BODIES]


def answer(kind, usage=True):
    body = BODIES[kind].model_copy(update={"stream_options": StreamOptions(include_usage=usage)})
    return kind(body, Origin("tiny", "fp_1", TokenTexts(TOKENIZER)))


def encoded(text):
    return TOKENIZER.encode(text, add_special=False)


def likely(tokens):
    return tuple(TokenLogprobs(token, -0.5, ((token, -0.5),)) for token in tokens)


def made(text, **facts):
    tokens = encoded(text)
    usual = {"finish_reason": "length", "prompt_tokens": 9, "reused": 4, "logprobs": ()}
    return Result(
        text=text,
        tokens=tokens,
        seed=1,
        draft="none",
        draft_memory=None,
        engine="one",
        exact=True,
        draft_engine=None,
        peak_rss_mb=1.0,
        new_tokens=len(tokens),
        ttft_ms=1.0,
        tpot_ms=1.0,
        tokens_per_second=1.0,
        rounds=0,
        drafted=0,
        accepted=0,
        mean_accepted_length=0.0,
        begun=0,
        sources={},
        **usual | facts,
    )


@pytest.mark.parametrize(
    ("kind", "prefix", "whole", "chunk"),
    [
        (CompletionAnswer, "cmpl-", "text_completion", "text_completion"),
        (ChatAnswer, "chatcmpl-", "chat.completion", "chat.completion.chunk"),
    ],
)
def test_every_object_says_whose_it_is(kind, prefix, whole, chunk):
    before = int(time.time())
    written = answer(kind)
    parts = written.part(Part("the", (), ()))
    closing = written.closing([made("the end")])
    objects = [written.whole([made("the end")]), *written.opening(), *parts, *closing]
    assert [each["object"] for each in objects] == [whole] + [chunk] * (len(objects) - 1)
    for each in objects:
        assert each["id"] == objects[0]["id"]
        assert each["id"].startswith(prefix)
        assert (each["model"], each["system_fingerprint"]) == ("tiny", "fp_1")
        assert before <= each["created"] <= time.time()


@pytest.mark.parametrize("kind", KINDS)
def test_usage_and_the_end_in_openais_words(kind):
    result = made("the end", finish_reason="context")
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": result.new_tokens,
        "total_tokens": 9 + result.new_tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    whole = answer(kind).whole([result])
    last, *further = answer(kind).closing([result])
    assert [whole["usage"]] == [each["usage"] for each in further] == [usage]
    for each in (whole, last):
        assert each["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("backend", [byte_level, metaspace, byte_fallback])
def test_a_tokens_text_is_what_it_is_within_a_text(backend):
    """Some decoders drop a space at the beginning."""
    tokenizer = Tokenizer(backend(), {})
    texts = TokenTexts(tokenizer)
    tokens = tokenizer.encode("the fox and the", add_special=False)
    assert "".join(texts[token] for token in tokens).removeprefix(" ") == "the fox and the"
    assert [texts.shown(token) for token in tokens] == [texts[token] for token in tokens]


HARD = ["é🎉", "🎉🎉", "a🏳️b", "ab\u2028c", "한글 x"]


def of_tokenizer(kind, backend):
    tokenizer = Tokenizer(backend(), {})
    return tokenizer, kind(BODIES[kind], Origin("tiny", "fp_1", TokenTexts(tokenizer)))


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("backend", [byte_level, byte_fallback])
def test_bytes_of_tokens_join_to_the_answer(text, backend):
    tokenizer, written = of_tokenizer(ChatAnswer, backend)
    tokens = tokenizer.encode(f"a{text}", add_special=False)
    tokens = [*tokens, *tokenizer.special_ids]
    [part] = written.part(Part(text, likely(tokens), ()))
    told = part["choices"][0]["logprobs"]["content"]
    found = b"".join(bytes(each["bytes"]) for each in told)
    assert found.decode().lstrip() == f"a{text}"
    for each in told:
        if each["bytes"]:
            assert each["token"] == bytes(each["bytes"]).decode(errors="backslashreplace")


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("backend", [byte_level, byte_fallback])
def test_completions_name_as_many_tokens_as_asked_and_places_in_the_text(text, backend):
    tokenizer, written = of_tokenizer(CompletionAnswer, backend)
    tokens = tokenizer.encode(text, add_special=False)
    parts = [id_ for id_ in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.decode([id_])]
    top = tuple((token, -1.0 - n) for n, token in enumerate(parts[:5]))
    assert len(top) == 5
    logprobs = tuple(TokenLogprobs(token, -9.0, top) for token in tokens)
    result = replace(made(text), text=text, tokens=tokens, logprobs=logprobs)
    told = written.whole([result])["choices"][0]["logprobs"]
    for name, likeliest in zip(told["tokens"], told["top_logprobs"], strict=True):
        assert len(likeliest) == 5 + (name not in list(likeliest)[:5])
        assert name in likeliest
    assert all(0 <= each <= len(text) for each in told["text_offset"])
    assert told["text_offset"] == sorted(told["text_offset"])
    assert {name[:8] for name in told["top_logprobs"][0] if "\\x" in name} == {"bytes:\\x"}


@pytest.mark.parametrize("backend", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", [*HARD, "the fox and the end"])
def test_log_probabilities_end_with_the_text(text, backend):
    """Where a stop string ends it, also within a token or a character of several."""
    tokenizer, _ = of_tokenizer(ChatAnswer, backend)
    tokens = tokenizer.encode(f"a{text}", add_special=False)
    whole = tokenizer.decode(tokens)
    for stop in {whole[start : start + size] for size in (1, 3) for start in range(1, len(whole))}:
        shown = ""
        kept = ()
        answer = TextDecoder(tokenizer, tokens[:1], ending=Ending((stop,)))
        for token in tokens[1:]:
            shown += said(answer.push(token))
            assert answer.certain >= len(kept)
            kept = likely(answer.tokens)[: answer.certain]
            assert shown.encode().startswith(joined(tokenizer, kept))
        shown += said(answer.flush())
        count, beyond = answer.kept
        assert answer.certain <= count
        *most, last = likely(answer.tokens)[:count] or [None]
        told = () if last is None else (*most, replace(last, beyond=beyond))
        assert joined(tokenizer, told) == shown.encode()
        assert stop not in shown


def said(events):
    return "".join(event.text for event in events)


def joined(tokenizer, logprobs):
    return b"".join(data for data, _ in TokenTexts(tokenizer).parts(logprobs))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_no_part_told_are_told_at_the_end(kind):
    """As of a character that was not completed."""
    tokens = encoded("the end")
    written = answer(kind, usage=False)
    result = made("the end", logprobs=likely(tokens))
    [part] = written.part(Part("the", result.logprobs[:1], ()))
    [last] = written.closing([result])
    told = [each["choices"][0]["logprobs"] for each in (part, last)]
    if kind is ChatAnswer:
        found = [each["token"] for some in told for each in some["content"]]
    else:
        found = [each for some in told for each in some["tokens"]]
        offsets = [each for some in told for each in some["text_offset"]]
        assert offsets == [len("".join(found[:count])) for count in range(len(found))]
    assert found == [TokenTexts(TOKENIZER)[token] for token in tokens]


def test_of_a_part_that_is_shorter_than_the_targets_own_token_nothing_was_drafted():
    """Whose text may be the beginning of a stop string."""
    [word] = encoded("the")[-1:]
    rounds = (Round((word, word), 1, 1, "lookup", 0.1),)
    own = TOKENIZER.decode([word])
    for shown, drafted in ((own[:-1], 0), (own, 0), ("x" + own, 1)):
        [written] = answer(CompletionAnswer).part(Part(shown, (), rounds))
        assert written["edgespec"] == {"rounds": 1, "tokens": 2, "drafted": drafted}


def test_times_are_counted_in_seconds_with_the_waiting_and_of_tokens_that_there_are():
    metrics = Metrics(Models([]), lambda: 0, lambda: 0)
    text = replace(made("the end"), ttft_ms=500.0, tpot_ms=20.0)
    for tokens in (4, 1, 0):
        metrics.finished("tiny", replace(text, new_tokens=tokens), 2.0)
    lines = metrics.text().decode().splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for name, count, total in (("to_first", 2, 5.0), ("per_output", 1, 0.02)):
        assert float(numbers[f"edgespec_time_{name}_token_seconds_count"]) == count
        assert float(numbers[f"edgespec_time_{name}_token_seconds_sum"]) == pytest.approx(total)
    assert float(numbers['edgespec_reused_total{model="tiny"}']) == 3 * 4


def test_a_stream_sends_what_each_event_says():
    """Readers of events pass over lines that begin with a colon."""
    written = answer(ChatAnswer, usage=False)
    assert written.render(Signal.WAITING) == b": waiting\n\n"
    reading = Part("", (), (), progress=PromptProgress(3, 9))
    assert written.render(reading) == b": reading 3 of 9 tokens\n\n"
    for event, said in (
        (Signal.ACCEPTED, '"role": "assistant"'),
        (Part("the", (), ()), '"content": "the"'),
        (RequestError(500, "why"), '"message": "why"'),
    ):
        sent = written.render(event).decode()
        assert said in sent
        assert sent.startswith("data: ")
        assert sent.endswith("}\n\n")
    *_, last, done, rest = written.render(AnswerEnd([made("the")])).decode().split("\n\n")
    assert '"finish_reason": "length"' in last
    assert (done, rest) == ("data: [DONE]", "")
