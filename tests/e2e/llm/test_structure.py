"""Text that follows a grammar: it does, and drafting does not change it."""

from __future__ import annotations

import json
import re
from functools import cache

import jsonschema
import numpy as np
import pytest
from native_llms import with_library
from pairs import LONG_PROMPT, with_eos
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.runtime.sampling.grammar import GrammarCompiler
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler

pytestmark = with_library

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kinds": {"type": "array", "items": {"enum": ["small", "large"]}, "maxItems": 3},
    },
    "required": ["name", "count", "kinds"],
    "additionalProperties": False,
}
DATE = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"
CALLS = """start: call (";" call){0,2} "."
call: NAME "(" (NAME ("," NAME)~0..2)? ")"
NAME: /[a-z]{1,5}/"""
_CALL = r"[a-z]{1,5}\((?:[a-z]{1,5}(?:,[a-z]{1,5}){0,2})?\)"
CALLS_AS_REGEX = rf"{_CALL}(?:;{_CALL}){{0,2}}\."
STRUCTURES = [{"json_schema": SCHEMA}, {"regex": DATE}, {"grammar": CALLS}]
DRAFTS = ("model", "parallel", "lookup", "recycling", "auto")


@pytest.fixture(scope="module")
def load(pairs, tmp_path_factory):
    """Bundles of a random pair whose text can end."""
    path = with_eos(pairs.pair("llama").path, tmp_path_factory.mktemp("ending") / "bundle", 0)
    return cache(lambda draft: LLM(path, draft=draft, threads=1))


def follows(text, structure):
    if "regex" in structure:
        return re.fullmatch(DATE, text) is not None
    if "grammar" in structure:
        return re.fullmatch(CALLS_AS_REGEX, text) is not None
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda fields: next(iter(fields)))
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 3.0, "top_k": 5},
        {"temperature": 2.0, "top_p": 0.8, "repetition_penalty": 1.2},
        {"temperature": 4.0, "min_p": 0.02},
    ],
    ids=str,
)
def test_it_follows_and_is_the_same_for_every_draft(load, structure, fields):
    options = {"max_new_tokens": 120, **structure, **fields}
    plain = load("none")
    ended = 0
    forced = 0
    drafting = [load(draft) for draft in DRAFTS]
    for seed in range(3):
        expected = plain.generate(LONG_PROMPT, seed=seed, **options)
        assert expected.drafted == 0
        if expected.finish_reason == "stop":
            assert follows(expected.text, structure)
            ended += 1
        for llm in drafting:
            result = llm.generate(LONG_PROMPT, seed=seed, **options)
            assert result.tokens == expected.tokens
            forced += sum(n for name, n in result.sources.items() if "grammar" in name)
    assert ended
    assert forced or "json_schema" not in structure


def test_greedy_text_takes_the_best_of_what_is_allowed(load):
    options = {"max_new_tokens": 30, "regex": DATE}
    expected = load("none").generate(LONG_PROMPT, **options)
    assert follows(expected.text, options)
    for draft in DRAFTS:
        assert load(draft).generate(LONG_PROMPT, **options).tokens == expected.tokens


def test_what_is_allowed_is_what_the_grammar_goes_on_with(load):
    """Against every token tried by hand."""
    llm = load("none")
    size = llm.tokenizer.vocab_size
    eos = llm.bundle.target.eos_ids
    texts = [llm.tokenizer.decode([token]) for token in range(size)]
    matcher = GrammarCompiler(llm.bundle.path, size, eos).compile("regex", DATE)

    def begins(text):
        filled = text + "2000-00-00"[len(text) :]
        return len(text) <= 10 and re.fullmatch(DATE, filled) is not None

    made = ""
    rng = np.random.default_rng(0)
    while True:
        allowed = matcher.allowed()
        expected = [bool(text) and begins(made + text) for text in texts]
        for token in eos:
            expected[token] = len(made) == 10
        assert allowed.tolist() == expected
        token = int(rng.choice(np.flatnonzero(allowed)))
        matcher.advance(token)
        if token in eos:
            break
        made += texts[token]
    assert follows(made, {"regex": DATE})


def test_only_what_is_allowed_is_chosen():
    rng = np.random.default_rng(0)
    for fields in ({}, {"temperature": 1.0}, {"temperature": 2.0, "top_k": 3, "top_p": 0.7}):
        for size in (50, 20_000):  # the second is above what has its noise made as a whole
            sampler = Sampler(SamplingOptions(seed=1, **fields), size)
            logits = rng.standard_normal(size).astype(np.float32) * 5
            allowed = np.zeros(size, np.bool_)
            allowed[rng.choice(size, 7, replace=False)] = True
            few = np.full(size, -np.inf, np.float32)
            few[allowed] = logits[allowed]
            for position in range(40):
                chosen = sampler.choose(logits, position, allowed)
                assert allowed[chosen]
                assert chosen == sampler.choose(few, position)


def test_a_grammar_may_allow_fewer_than_are_tried_under_noise():
    size = 9000
    rng = np.random.default_rng(4)
    allowed = np.zeros(size, np.bool_)
    allowed[rng.choice(size, 100, replace=False)] = True
    options = SamplingOptions(temperature=30, top_p=0.999, min_p=1.0, seed=1)
    for position in range(200):  # only the likeliest is left, and mostly not among the first tried
        logits = rng.standard_normal(size).astype(np.float32)
        likeliest = np.where(allowed, logits, -np.inf).argmax()
        assert Sampler(options, size).choose(logits, position, allowed) == likeliest


def test_a_text_cut_short_is_a_beginning(load):
    result = load("auto").generate(LONG_PROMPT, json_schema=SCHEMA, max_new_tokens=4)
    assert result.finish_reason == "length"
    assert result.text.startswith('{"name": "'[: len(result.text)])


def test_grammars_that_cannot_be_used_are_refused(load):
    llm = load("none")
    circular = {}
    circular["not"] = circular
    for fields, part in (
        ({"regex": "("}, "unclosed group"),
        ({"regex": "\udcff"}, "regex is not valid Unicode at character 0: give UTF-8"),
        ({"grammar": "start: \udcff"}, "grammar is not valid Unicode at character 7"),
        ({"json_schema": {"enum": {1}}}, "json_schema is not valid JSON (Object of type set"),
        ({"json_schema": circular}, "json_schema is not valid JSON (Circular reference"),
        ({"grammar": "x:"}, "grammar cannot be used"),
        ({"json_schema": "[1"}, "no JSON object"),
        ({"json_schema": "[1]"}, "no JSON object"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema cannot be used"),
        ({"json_schema": 3}, "json_schema is 3"),
        ({"regex": "a", "grammar": 'start: "a"'}, "regex and grammar are given"),
    ):
        with pytest.raises(InputError, match=re.escape(part)) as caught:
            llm.stream("x", **fields)
        assert len(str(caught.value).splitlines()) == 1


def test_ends_of_text_in_the_padding_of_the_vocabulary_count_for_nothing(load):
    llm = load("none")
    size = llm.tokenizer.vocab_size
    matcher = GrammarCompiler(llm.bundle.path, size, (0, size + 19)).compile("regex", "a?")
    assert matcher.allowed()[0]
    with pytest.raises(InputError, match="no token that ends a text"):
        GrammarCompiler(llm.bundle.path, size, (size + 19,))


@pytest.mark.parametrize("regex", ["abz", "a(z|é)b"])
def test_a_grammar_that_wants_what_no_token_stands_for_is_refused(tmp_path, regex):
    vocabulary = {text: number for number, text in enumerate(["<unk>", "</s>", "a", "b"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    matcher = GrammarCompiler(tmp_path, len(vocabulary), (1,)).compile("regex", regex)

    def go_on():
        while (token := int(matcher.allowed().argmax())) != 1:
            matcher.advance(token)

    with pytest.raises(InputError, match="characters that the tokenizer lacks"):
        go_on()


def test_a_model_whose_text_never_ends_is_refused(natives):
    with pytest.raises(InputError, match="no token that ends a text"):
        natives("llama", "none").generate("x", regex="a")


def test_on_the_command_line(cli, load, tmp_path):
    llm = load("none")
    path = llm.bundle.path
    schema = tmp_path / "schema.json"
    config = tmp_path / "grammar.toml"
    schema.write_text(json.dumps(SCHEMA))
    options = ["--threads=1", "--draft=none", "-n", "60"]
    expected = llm.generate("x", max_new_tokens=60, json_schema=SCHEMA).text
    assert cli("run", path, "x", *options, "--json-schema", schema).out == f"{expected}\n"
    for name, value in (("regex", DATE), ("grammar", CALLS)):
        config.write_text(f"{name} = {json.dumps(value)}\n")
        expected = llm.generate("x", max_new_tokens=60, **{name: value}).text
        assert cli("run", path, "x", *options, "--config", config).out == f"{expected}\n"
    missing = cli("run", path, "x", "--json-schema", tmp_path / "missing")
    assert missing.code == 2
    assert "missing: No such file" in missing.err
    (tmp_path / "bad").write_bytes(b"\xff")
    bad = cli("run", path, "x", "--json-schema", tmp_path / "bad")
    assert bad.code == 2
    assert "bad: byte 0 is not UTF-8" in bad.err
