"""`edgespec run`: where the prompt comes from, what the options do, what is printed."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, PLACE, PROMPT, fails

from edgespec import LLM, Result, export
from edgespec.cli import prompt
from edgespec.export import ExportOptions
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.options import GenerationOptions
from edgespec.models.embedded import BUNDLE


@pytest.fixture(scope="module")
def llm():
    return LLM(draft="none", **PLACE)


QUICK = ["--draft=none", *FAST]  # measures no passes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Random weights, so that the text is bytes at random, with a chat template."""
    path = tmp_path_factory.mktemp("cli") / "checkpoint"
    make_checkpoint(path, "llama")
    write_tokenizer(path, 331)
    (path / "chat_template.jinja").write_text("<{{ messages[0].role }}>{{ messages[0].content }}:")
    return path


@pytest.fixture(scope="module")
def bundle(checkpoint):
    output = checkpoint.parent / "bundle"
    export.make(checkpoint, output, options=ExportOptions(precision="fp32"))
    return output


# Where the prompt comes from


def test_the_prompt_comes_from_anywhere(cli, llm, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode())
    expected = llm.generate(PROMPT, max_new_tokens=4)
    sources = [
        ([PROMPT], b""),
        ([BUNDLE, PROMPT], b""),
        ([BUNDLE, *PROMPT.split(" ")], b""),  # words without quotes
        (["-p", PROMPT], b" \n"),
        ([BUNDLE, "--prompt", PROMPT], b""),
        (["-f", file], b""),
        ([BUNDLE, "--file", file], b""),
        ([], PROMPT.encode()),
        ([BUNDLE], PROMPT.encode()),
        (["-"], PROMPT.encode()),
        ([BUNDLE, "-"], PROMPT.encode()),
        (["-f", "-"], PROMPT.encode()),
    ]
    for words, stdin in sources:
        result = cli("run", *words, "-n", 4, "--json", *QUICK, stdin=stdin)
        assert result.code == 0, (words, result.err)
        assert json.loads(result.out)["tokens"] == expected.tokens, words


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders on this system")
def test_a_prompt_may_come_from_a_pipe(cli, llm, tmp_path):
    """As shells make one of <(…)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=[PROMPT])
    writer.start()
    result = cli("run", "-f", pipe, "-n", 4, "--json", *QUICK)
    writer.join()
    assert json.loads(result.out)["tokens"] == llm.generate(PROMPT, max_new_tokens=4).tokens


def test_options_may_stand_between_bundle_and_prompt(cli, llm):
    result = cli("run", BUNDLE, "-n", 3, *FAST, "--", "-x = ")
    assert result.out == llm.generate("-x = ", max_new_tokens=3).text + "\n"


def test_what_follows_two_dashes_is_no_option(cli, llm):
    expected = llm.generate("-x", max_new_tokens=3).text + "\n"
    assert cli("run", "-n", 3, *FAST, BUNDLE, "--", "-x").out == expected
    assert cli("run", "-n", 3, *FAST, BUNDLE, "--", "-x", "-y").code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["-p", "a", "-f", "b"], "more than one prompt"),
        ([BUNDLE, "a", "-p", "b"], "more than one prompt"),
        (["a", "-p", "b"], "there is no model 'a'"),
        (["a", "b", "c"], "there is no model 'a'"),
        (["a", "b"], "there is no model 'a'"),
        ([""], "the prompt is empty"),
        ([], "the prompt is empty"),
        (["-f", "missing.txt"], "missing.txt: No such file or directory"),
    ],
)
def test_prompts_that_are_refused(cli, words, part):
    fails(cli("run", *words, *FAST), part)


def test_what_looks_like_a_model_is_not_taken_for_a_prompt(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for word in ("model.gguf", "my model.gguf", "./model", "a/b/c", "misspelt", r"C:\model"):
        how = f"or -p {word!r}, if this is the prompt"
        fails(cli("run", word), f"there is no model '{word}'", how)
    fails(cli("run", tmp_path), f"{tmp_path}", "config.json")


def test_what_windows_adds_to_texts_is_no_part_of_the_prompt(cli, llm, tmp_path):
    prompt = "def f(x):\n    return "
    data = ("\ufeff" + prompt.replace("\n", "\r\n")).encode()
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)
    for words, stdin in ((["-f", file], b""), ([], data)):
        found = json.loads(cli("run", *words, "-n", 1, "--json", *FAST, stdin=stdin).out)
        assert found["prompt_tokens"] == len(llm.tokenizer.encode(prompt))


def test_a_terminal_is_waited_for_only_when_asked(cli):
    fails(cli("run", terminal=True), "there is no prompt")
    fails(cli("run", BUNDLE, terminal=True), "there is no prompt")
    assert cli("run", "-", "-n", 1, *FAST, stdin=b"x", terminal=True).code == 0


def test_bytes_that_are_not_utf8_are_located(cli, tmp_path):
    file = tmp_path / "latin-1"
    file.write_bytes("naïve".encode("latin-1"))
    fails(cli("run", stdin=b"ab\xff"), "stdin: byte 2 is not UTF-8")
    fails(cli("run", "-f", file), f"{file}: byte 2 is not UTF-8")
    fails(cli("run", "-p", "\udcff"), "not valid Unicode")


def test_a_prompt_may_be_longer_than_any_path_but_not_than_the_context(cli):
    fails(cli("run", "word " * 1200, "--context", 64, *FAST), "context length of 64")


# Options


def test_defaults_are_those_of_the_api(monkeypatch, cli):
    seen = {}

    class StopHereError(Exception):
        pass

    def load(self, bundle, **options):
        seen.update(options)

    def stream(self, prompt, **options):
        seen.update(options)
        raise StopHereError

    monkeypatch.setattr(LLM, "__init__", load)
    monkeypatch.setattr(LLM, "stream", stream)
    assert cli("run", "-p", "x").code == 1
    usual = asdict(LoadOptions()) | asdict(GenerationOptions())
    usual |= {"stop": [], "lora": [], "max_new_tokens": None}
    assert seen
    assert {name: usual[name] for name in seen} == seen


def test_sampling_options_reach_the_sampler(cli, llm, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("min_p = 0.01")
    words = ["--temperature=0.9", "--top-k=20", "--top-p=0.95", "--seed=7", "--config", file]
    result = cli("run", PROMPT, "-n", 16, "--json", "--context=100", *words, *FAST)
    expected = llm.generate(
        PROMPT,
        max_new_tokens=16,
        temperature=0.9,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        seed=7,
    )
    found = json.loads(result.out)
    assert found["tokens"] == expected.tokens
    assert found["seed"] == 7


def test_settings_come_from_a_file(cli, llm, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'draft = "lookup"\nthreads = 1\nmax_new_tokens = 9\nrepetition_penalty = 1.2\n'
        f'stop = "never"\nnum_assistant_tokens = 3\nprediction = """{PROMPT}"""'
    )
    found = json.loads(cli("run", PROMPT, "--config", file, "--json").out)
    assert found["tokens"] == llm.generate(PROMPT, max_new_tokens=9, repetition_penalty=1.2).tokens
    assert found["draft"] == "lookup"
    assert found["accepted_prediction_tokens"] is not None
    assert found["drafted"] <= 3 * found["rounds"]
    words = ["--config", file, "-n", 2, "--draft=none", "--stop", "no"]
    for given in ([PROMPT, *words], [*words, PROMPT]):  # the command line goes before it
        found = json.loads(cli("run", *given, "--json").out)
        assert (found["new_tokens"], found["draft"]) == (2, "none")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("max_token = 3", "unknown option 'max_token' (did you mean max_new_tokens?)"),
        ("draft = ", "is not TOML"),
        ('threads = "two"', "threads is 'two': give a whole number of at least 1"),
        ('draft = "best"', "draft is 'best': use one of auto, none"),
        ("regex = 3", "regex is 3: give a text"),
    ],
)
def test_settings_that_are_refused(cli, tmp_path, text, part):
    (tmp_path / "settings.toml").write_text(text)
    fails(cli("run", "-p", "x", "--config", tmp_path / "settings.toml"), part)
    fails(cli("run", "-p", "x", "--config", tmp_path / "none.toml"), "none.toml: No such file")


def test_stop_strings_know_three_escapes(cli, llm):
    whole = llm.generate(PROMPT, max_new_tokens=40).text
    line = whole.lstrip("\n").split("\n")[0]
    start = whole[: whole.index(line)]
    words = ["--stop", rf"{line}\n", "--stop", "never"]
    result = cli("run", PROMPT, "-n", 40, "--json", *words, *FAST)
    found = json.loads(result.out)
    assert (found["text"], found["finish_reason"]) == (start, "stop")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--top-p", "2"], "top_p is 2.0"),
        (["-n", "0"], "max_new_tokens is 0"),
        (["-n", "many"], "max_new_tokens is 'many': give a whole number of at least 1"),
        (["--stop", ""], "at least one character"),
        (["--draft", "best"], "draft is 'best': use one of auto, none"),
        (["--device", "toaster"], "device 'toaster' is not known"),
        (["--context", "1000000"], "context is 1000000"),
        (
            ["--temper", "1"],
            "there is no option --temper (did you mean --temperature?) (see edgespec run --help)",
        ),
        (["--chat"], "no chat template"),
    ],
)
def test_options_that_are_refused(cli, words, part):
    fails(cli("run", "x ", *words), part)


def test_bad_options_are_refused_before_the_model_is_loaded(cli, monkeypatch):
    def load(self, *_arguments, **_options):
        pytest.fail("loaded")

    monkeypatch.setattr(LLM, "__init__", load)
    fails(cli("run", "-p", "x", "--top-k", "-1"), "top_k is -1")


# Output


def test_text_goes_to_stdout_and_facts_to_stderr(cli, llm):
    expected = llm.generate(PROMPT, max_new_tokens=20)
    result = cli("run", BUNDLE, PROMPT, "-n", 20, *FAST)
    assert result.out == expected.text + "\n"
    cut, facts = result.err.splitlines()
    assert cut == "stopped after 20 tokens: use a larger -n for a longer text"
    assert facts.startswith("20 tokens (length), ")
    assert " tokens/s, mean accepted length " in result.err
    assert re.search(r"draft: auto \((\S+ \d+%(, )?)+\), engine: cpu:native\n$", result.err)
    plain = cli("run", PROMPT, "-n", 20, "--draft=none", *FAST)
    assert plain.out == result.out
    assert plain.err.endswith(
        " tokens/s, mean accepted length 1.00, draft: none, engine: cpu:native\n"
    )
    sampled = cli("run", PROMPT, "-n", 2, "--temperature=1", "--seed=5", "--draft=none", *FAST)
    assert sampled.err.endswith("draft: none, engine: cpu:native, seed: 5\n")
    assert sampled.err.startswith("edgespec: no model is given: this is python-7m, a demonstration")


def test_a_terminal_shows_the_prompt_before_the_text(cli, llm, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    result = cli("run", PROMPT, "-n", 8, *FAST, terminal=True)
    assert result.out == PROMPT + llm.generate(PROMPT, max_new_tokens=8).text + "\n"


def test_a_text_that_ends_by_itself_is_not_called_cut(cli, llm):
    stop = llm.generate(PROMPT, max_new_tokens=20).text[5:8]
    result = cli("run", BUNDLE, PROMPT, "-n", 20, "--stop", stop, *FAST)
    assert " tokens (stop), " in result.err
    assert len(result.err.splitlines()) == 1


def test_json_is_one_object_with_all_facts(cli):
    result = cli("run", PROMPT, "-n", 12, "--json", *FAST)
    found = json.loads(result.out)
    assert list(found) == [field.name for field in fields(Result)]
    assert result.out.count("\n") == 1
    assert result.err == ""
    assert found["new_tokens"] == len(found["tokens"]) == 12
    assert found["finish_reason"] == "length"
    assert (found["draft"], found["engine"]) == ("auto", "cpu:native")
    assert sum(found["sources"].values()) == found["rounds"]
    assert found["draft_memory"] == "cold"
    assert found["tokens_per_second"] > 0
    assert found["peak_rss_mb"] > 1


def explained(text):
    """The table's names and its rows."""
    names, *rows = [line.split() for line in text.splitlines()]
    assert all(len(line) <= 80 for line in text.splitlines())
    return names, rows


def test_every_round_explains_itself_after_the_text(cli):
    result = cli("run", BUNDLE, PROMPT, "-n", 30, "--explain", *FAST)
    plain = cli("run", BUNDLE, PROMPT, "-n", 30, *FAST)
    assert result.out == plain.out
    *table, cut, facts = result.err.splitlines()
    assert cut == plain.err.splitlines()[0]
    names, rows = explained("\n".join(table))
    assert names == ["round", "source", "nodes", "tokens", "expected", "ms", "expected"]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert sum(int(row[3]) for row in rows) == 29
    for row in rows:
        assert f"{row[1]} " in facts
        assert all(float(number) >= 0 for number in row[2:])
    alone = cli("run", BUNDLE, PROMPT, "-n", 30, "--explain", *QUICK)
    assert "expected" not in alone.err
    assert alone.err.split()[:6] == ["round", "source", "nodes", "tokens", "ms", "1"]


def test_nothing_is_explained_before_the_text_is_out(start):
    """In a terminal, which both streams share."""
    words = ["run", PROMPT, "-n", 30, "--explain", *FAST]
    process = start(*words, both=True)
    text, _, rest = process.communicate(timeout=60)[0].decode().partition(" round  source")
    assert len(text) > 30
    assert "ms" in rest
    assert "tokens/s" not in text


def test_a_round_without_text_explains_itself(cli, llm):
    expected = llm.generate(PROMPT, max_new_tokens=8)
    stop = llm.tokenizer.decode(expected.tokens[5:6])  # its round shows nothing
    words = ["-n", 8, "--draft=none", "--explain", "--json", "--stop", stop, *FAST]
    result = cli("run", PROMPT, *words)
    assert json.loads(result.out)["finish_reason"] == "stop"
    assert len(explained(result.err)[1]) == json.loads(result.out)["rounds"] > 0


def test_a_draft_memory_is_made_and_used_again(cli, bundle, tmp_path):
    file = tmp_path / "memory"
    settings = tmp_path / "settings.toml"
    settings.write_text(f"draft = 'recycling'\ndraft_memory = '{file}'")
    words = ["-n", 60, "--json", "--raw", "--config", settings, "--threads=1"]
    cold, hot = (json.loads(cli("run", bundle, PROMPT, *words).out) for _ in range(2))
    assert (cold["draft_memory"], hot["draft_memory"]) == ("cold", "hot")
    assert cold["tokens"] == hot["tokens"]
    assert hot["rounds"] < cold["rounds"]
    kept = file.read_bytes()
    fails(cli("run", PROMPT, *words), "learned from bundle")
    assert file.read_bytes() == kept
    file.write_bytes(kept[: len(kept) // 2])
    fails(cli("run", bundle, PROMPT, *words), str(file), "damaged")
    fails(cli("run", PROMPT, *words, "--draft=none"), "draft_memory")


def test_a_prompt_is_answered_if_the_model_chats_unless_it_is_raw(cli, bundle):
    words = ["-n", 3, "--temperature", 0, "--json", *FAST]
    llm = LLM(bundle, **PLACE)
    answer = llm.chat("hello", max_new_tokens=3).tokens
    for given in (["hello"], ["hello", "--chat"], ["-p", "hello"]):
        assert json.loads(cli("run", bundle, *given, *words).out)["tokens"] == answer
    raw = json.loads(cli("run", bundle, "hello", "--raw", *words).out)
    assert raw["tokens"] == llm.generate("hello", max_new_tokens=3).tokens != answer
    fails(cli("run", bundle, "hello", "--raw", "--chat"), "not allowed with")


def test_an_answer_is_sampled_as_the_authors_ask(cli, bundle):
    words = ["-n", 8, "--seed", 5, "--json", *FAST]
    llm = LLM(bundle, **PLACE)
    expected = llm.chat("hello", **llm.sampling, seed=5, max_new_tokens=8).tokens
    assert json.loads(cli("run", bundle, "hello", *words).out)["tokens"] == expected


def test_what_is_piped_in_beside_a_prompt_goes_before_it(cli, llm, bundle, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    expected = llm.generate(f"# fast\n\n{PROMPT}", max_new_tokens=4).tokens
    for given in ([PROMPT], [BUNDLE, PROMPT], ["-p", PROMPT], ["-f", file]):
        result = cli("run", *given, "-n", 4, "--json", *QUICK, stdin=b"\n# fast\n\n")
        assert json.loads(result.out)["tokens"] == expected, given
    words = ["-n", 3, "--temperature", 0, "--json", *FAST]
    asked = cli("run", bundle, "What is it?", *words, stdin="naïve\n".encode())
    answer = LLM(bundle, **PLACE).chat("naïve\n\nWhat is it?", max_new_tokens=3).tokens
    assert json.loads(asked.out)["tokens"] == answer
    fails(cli("run", PROMPT, *FAST, stdin=b"\xff"), "stdin: byte 0 is not UTF-8")


def test_a_terminal_beside_a_prompt_is_not_waited_for(cli, llm):
    found = cli("run", PROMPT, "-n", 4, "--json", *QUICK, stdin=b"typed", terminal=True)
    assert json.loads(found.out)["tokens"] == llm.generate(PROMPT, max_new_tokens=4).tokens


def test_stdin_that_cannot_be_read_does_no_harm_beside_a_prompt(start):
    """As nohup leaves it."""
    with Path(os.devnull).open("wb") as unreadable:
        process = start("run", PROMPT, "-n", 2, *QUICK, stdin=unreadable)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out


def test_a_pipe_without_end_is_refused(cli, monkeypatch):
    monkeypatch.setattr(prompt, "_MOST_BYTES", 8)
    fails(cli("run", *FAST, stdin=b"a long text"), "stdin has more than 0 MiB")


def test_an_output_that_knows_only_ascii_gets_question_marks(start, bundle):
    words = ["-n", 60, "--temperature", 2, "--seed", 3, "--draft", "none", *FAST]
    out, err = start("run", bundle, "naïve", *words, PYTHONIOENCODING="ascii").communicate()
    assert b" tokens/s" in err
    assert b"?" in out
    assert out.isascii()


def test_texts_in_pipes_are_utf8(start, bundle):
    words = ["-n", 60, "--raw", "--temperature", 2, "--seed", 3, "--draft", "none", *FAST]
    posix = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out, _ = start("run", bundle, "x", *words, **posix).communicate()
    options = {"max_new_tokens": 60, "temperature": 2, "seed": 3}
    text = LLM(bundle, draft="none", **PLACE).generate("x", **options).text
    assert not text.isascii()
    assert out.decode().splitlines() == text.splitlines()
