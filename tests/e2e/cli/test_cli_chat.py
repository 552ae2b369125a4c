"""`edgespec chat`: a conversation from the first line to /bye."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace

import pytest
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, PLACE, fails
from repeating import make_repeating

from edgespec import LLM, bundle, export
from edgespec.cli import main
from edgespec.export import ExportOptions
from edgespec.runtime.text.loops import LEAST_TOKENS

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SHORT = [*FAST, "-n", "6", "--draft", "lookup", "--temperature", "0"]
CUT = "stopped after 6 tokens: /continue goes on, /set max_new_tokens allows longer answers\n"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """The same random weights with and without a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    make_checkpoint(folder / "checkpoint", "llama")
    write_tokenizer(folder / "checkpoint", 331)
    for name in ("plain", "chat"):
        export.make(folder / "checkpoint", folder / name, options=ExportOptions("fp32"))
        (folder / "checkpoint" / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def answers(bundles):
    """The conversation that these messages of a user's lead to."""
    llm = LLM(bundles / "chat", device="cpu", draft="none", threads=1)

    def talk(*said, system=None):
        messages = [{"role": "system", "content": system}] if system else []
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = llm.chat(messages, max_new_tokens=6).text
            messages.append({"role": "assistant", "content": answer})
        return messages

    return talk


def spoken(messages):
    return "".join(f"{each['content']}\n" for each in messages if each["role"] == "assistant")


def said(*lines):
    return "".join(f"{line}\n" for line in lines).encode()


def test_a_conversation(cli, bundles, answers):
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("hello", "and then?"))
    assert (result.code, result.err) == (0, 2 * CUT)
    assert result.out == spoken(answers("hello", "and then?"))


def test_an_answer_that_ends_by_itself_is_not_called_cut(cli, bundles, answers):
    stop = answers("hello")[-1]["content"][1:3]
    result = cli("chat", bundles / "chat", *SHORT, "--stop", stop, stdin=said("hello", "/stats"))
    assert "(stop)" in result.err
    assert "cut" not in result.err


def test_a_system_message_comes_first(cli, bundles, answers):
    result = cli("chat", bundles / "chat", *SHORT, "--system", "be brief", stdin=said("hello"))
    assert result.out == spoken(answers("hello", system="be brief"))


def test_several_lines_are_one_message(cli, bundles, answers):
    expected = spoken(answers("def f():\n    return 1", "one line"))
    for block in (('"""', "def f():", "    return 1", '"""'), ('"""def f():', '    return 1"""')):
        result = cli("chat", bundles / "chat", *SHORT, stdin=said(*block, '"""one line"""'))
        assert result.out == expected


def test_a_block_is_a_message_whatever_it_begins_with(cli, bundles, answers):
    lines = said('"""', "/exit is what I would type", '"""', '"""/exit"""', "hello")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    assert (result.code, result.err) == (0, 3 * CUT)
    assert result.out == spoken(answers("/exit is what I would type", "/exit", "hello"))


def test_reset_keeps_the_system_message_alone(cli, bundles, answers):
    arguments = ["chat", bundles / "chat", *SHORT, "--system", "be brief"]
    result = cli(*arguments, stdin=said("hello", "/clear", "hello"))
    assert result.out == 2 * spoken(answers("hello", system="be brief"))


def test_a_saved_conversation_goes_on(cli, bundles, answers, tmp_path):
    file = tmp_path / "talk.json"
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("hello", f"/save {file}"))
    assert "2 messages" in result.err
    assert json.loads(file.read_text("utf-8")) == answers("hello")
    result = cli("chat", bundles / "chat", *SHORT, "--history", file, stdin=said("and then?"))
    assert result.out == spoken(answers("hello", "and then?")[2:])


def test_a_conversation_is_saved_as_markdown(cli, bundles, answers, tmp_path):
    file = tmp_path / "talk.md"
    lines = said("hello", '"""', "a", "", "b", '"""', f"/save {file}")
    cli("chat", bundles / "chat", *SHORT, "--system", "be brief", stdin=lines)
    talk = answers("hello", "a\n\nb", system="be brief")
    names = {"system": "System", "user": "You", "assistant": "Assistant"}
    parts = [f"## {names[each['role']]}\n\n{each['content'].strip(chr(10))}" for each in talk]
    assert file.read_text("utf-8") == "\n\n".join(["# Conversation", *parts]) + "\n"
    fails(cli("chat", bundles / "chat", "--history", file), str(file), "a .json file that /save")


def test_a_file_of_others_is_replaced_only_at_the_second_word(cli, bundles, answers, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text("theirs")
    save = f"/save {file}"
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("hello", save))
    assert f"{file} exists: repeat the command to replace it" in result.err
    assert file.read_text() == "theirs"
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("hello", save, save, save))
    assert result.err.count("exists") == 1
    assert result.err.count(f"saved 2 messages to {file}, in place of the old file") == 2
    assert json.loads(file.read_text("utf-8")) == answers("hello")


def test_a_conversation_goes_on_in_its_file(cli, bundles, answers, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(answers("hello")))
    lines = said("so?", f"/save {file}")
    result = cli("chat", bundles / "chat", *SHORT, "--history", file, stdin=lines)
    assert "in place of the old file" in result.err
    assert json.loads(file.read_text("utf-8")) == answers("hello", "so?")


def test_a_mentioned_file_becomes_part_of_a_message(cli, bundles, answers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "long.txt").write_text("def f():\n" * 400)
    lines = said("what is @a.py", "@long.txt", "@b.py", "@a.py \\", "and this")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    block = "a.py:\n```py\nx = 1\n```"
    expected = answers(f"what is a.py\n\n{block}", f"a.py \nand this\n\n{block}")
    assert (result.code, result.out) == (0, spoken(expected))
    assert "a.py is part of the message: " in result.err
    assert "long.txt has " in result.err
    assert "there is no file b.py" in result.err


def test_a_backslash_at_the_very_end_belongs_to_the_message(cli, bundles, answers):
    result = cli("chat", bundles / "chat", *SHORT, stdin=b"one\\\ntwo\\")
    assert result.out == spoken(answers("one\ntwo\\"))


def test_what_is_said_is_utf8(cli, bundles, tmp_path):
    file = tmp_path / "talk.json"
    lines = b"\xef\xbb\xbf" + said("naïve", f"/save {file}")
    assert cli("chat", bundles / "chat", *SHORT, stdin=lines).code == 0
    assert json.loads(file.read_text("utf-8"))[0]["content"] == "naïve"


def test_a_system_message_replaces_that_of_the_history(cli, bundles, answers, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(answers("hello", system="be long")))
    arguments = ["chat", bundles / "chat", *SHORT, "--history", file, "--system", "be brief"]
    cli(*arguments, stdin=said(f"/save {file}"))
    expected = answers("hello", system="be long")
    expected[0]["content"] = "be brief"
    assert json.loads(file.read_text("utf-8")) == expected


def test_stats_tell_what_was_reused(cli, bundles):
    lines = said("/stats", "hello", "/stats", "and then?", "/stats")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    nothing, first, second = result.err.replace(CUT, "").splitlines()
    assert "no answer yet" in nothing
    assert "6 tokens (length)" in first
    assert " 0 of " in first
    assert " 0 of " not in second


def test_faults_do_not_end_the_conversation(cli, bundles, answers, tmp_path):
    commands = "/sing", "/save", f"/save {tmp_path}", "/save a\0b", "", "/help"
    lines = said(*commands, "hello", "/bye", "not read")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    assert result.code == 0
    assert result.out == spoken(answers("hello"))
    assert "no command /sing" in result.err
    assert "/save FILE" in result.err
    assert f"{tmp_path} cannot be written" in result.err
    assert "a\0b cannot be written (" in result.err
    assert "Ctrl-C stops an answer" in result.err


def test_an_answer_is_tried_again_and_goes_on(cli, bundles, answers):
    llm = LLM(bundles / "chat", device="cpu", draft="none", threads=1)
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("/retry", "hello", "/retry"))
    assert result.out == 2 * spoken(answers("hello"))
    assert result.err.startswith("there is no answer yet")
    assert "it is the same, since the temperature is 0" in result.err
    begun = answers("hello")
    further = llm.chat(begun, max_new_tokens=6).text
    lines = said("hello", "/continue", "and then?")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    begun[-1]["content"] += further
    asked = [*begun, {"role": "user", "content": "and then?"}]
    then = llm.chat(asked, max_new_tokens=6).text
    assert result.out == f"{spoken(answers('hello'))}{further}\n{then}\n"


def test_another_try_has_other_random_choices(cli, bundles):
    lines = said("/set temperature 1", "hello", "/retry")
    words = [*SHORT, "--seed", "5"]
    result = cli("chat", bundles / "chat", *words, stdin=lines)
    llm = LLM(bundles / "chat", device="cpu", draft="none", threads=1)
    asked = [{"role": "user", "content": "hello"}]
    how = {**llm.sampling, "max_new_tokens": 6, "temperature": 1.0}
    assert result.out == "".join(f"{llm.chat(asked, **how, seed=n).text}\n" for n in (5, 6))


def test_a_system_message_can_be_said_at_any_time(cli, bundles, answers):
    lines = said("/system", "hello", "/system be brief", "/system", "/clear", "hello", "/retry")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    brief = spoken(answers("hello", system="be brief"))
    assert result.out == spoken(answers("hello")) + 2 * brief
    assert "there is no system message\n" in result.err
    assert "\nbe brief\n" in result.err


def test_options_are_set(cli, bundles, answers):
    lines = said("/set max_new_tokens 3", "hello", "/set", "/set parameter top-k 4", "/set")
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    llm = LLM(bundles / "chat", device="cpu", draft="none", threads=1)
    assert result.out == llm.chat([answers("hello")[0]], max_new_tokens=3).text + "\n"
    assert "stopped after 3 tokens" in result.err
    assert "max_new_tokens 3; thoughts off\n" in result.err
    assert "top_k 4" in result.err
    for line, part in (
        ("/set temperture 1", "did you mean temperature?"),
        ("/set temperature -1", "temperature is -1.0: give 0 for greedy decoding"),
        ("/set seed many", "seed is 'many': give a whole number from 0 to 2**64 - 1"),
        ("/set top_k many", "top_k is 'many': give a whole number of at least 0\n"),
        ("/set max_time soon", "max_time is 'soon': give seconds above 0"),
        ("/set thoughts maybe", "thoughts is 'maybe': use one of on, off"),
        ("/set json_schema nowhere", "json_schema is 'nowhere': No such file or directory\n"),
        ("/clera", "did you mean /clear?"),
    ):
        assert part in cli("chat", bundles / "chat", *SHORT, stdin=said(line)).err


def test_commands_say_what_they_did(cli, bundles):
    commands = "/set temperature 0.5", "/set thoughts on", "/system be brief", "/clear"
    result = cli("chat", bundles / "chat", *SHORT, stdin=said("/clear", *commands))
    assert result.err.splitlines() == [
        "a new conversation",
        "temperature 0.5",
        "thoughts on",
        "the system message is set",
        "a new conversation, with the same system message",
    ]


def test_what_users_of_ollama_type_is_done_or_said(cli, bundles, answers):
    lines = said(
        "/set parameter temperature 0",
        "/set parameter num_predict 3",
        '/set system "be brief"',
        "hello",
        "/show",
        "/?",
        "/set parameter repeat_penalty 1.2",
        "/quit",
        "not read",
    )
    result = cli("chat", bundles / "chat", *SHORT, stdin=lines)
    brief = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    llm = LLM(bundles / "chat", **PLACE, draft="none")
    assert result.out == llm.chat(brief, max_new_tokens=3).text + "\n"
    assert "max_new_tokens 3\n" in result.err
    assert "chat: llama, " in result.err
    assert " parameters, context of 512 tokens, draft lookup\nbe brief\n" in result.err
    assert "/retry  " in result.err
    assert "repetition_penalty 1.2\n" in result.err
    for line, told in (
        ("/load qwen", "`edgespec chat qwen` chats with another model: leave with /bye"),
        (
            "/set parameter num_ctx 4096",
            "there is no option num_ctx: start the chat with --context",
        ),
        ("/set verbose", "/stats shows"),
        ("/set nowordwrap", "words are wrapped on a terminal"),
        ("/set nothink", "/set thoughts on"),
        ("/set format json", "/set json_schema FILE"),
    ):
        assert told in cli("chat", bundles / "chat", *SHORT, stdin=said(line)).err


def test_a_model_without_a_template_continues_plain_text(cli, bundles):
    llm = LLM(bundles / "plain", device="cpu", draft="none", threads=1)
    first = llm.generate("def f(", max_new_tokens=6).text
    second = llm.generate(f"def f({first}x", max_new_tokens=6).text
    result = cli("chat", bundles / "plain", *SHORT, stdin=said("def f(", "x"))
    assert result.out == f"{first}\n{second}\n"
    assert "no chat template" in result.err


def test_the_context_ends(cli, bundles):
    arguments = ["chat", bundles / "chat", *FAST, "--draft=none", "--context=24", "--temperature=0"]
    result = cli(*arguments, stdin=said("hello", "hello"))
    assert result.code == 0
    assert "the context is full: start a new conversation with /clear" in result.err
    most = LLM(bundles / "chat", draft="none", **PLACE).bundle.target.context_length
    told = f"shorten the prompt, or raise --context, up to {most}, or start a new conversation with"
    assert "the prompt is too long: its 47 tokens and a new one are longer than" in result.err
    assert told in result.err
    result = cli(*arguments, "--context-shift", stdin=said("hello", "hello"))
    assert result.err.count("the 2 oldest messages had no room in the context") == 1
    assert "too long" not in result.err


def test_an_answer_that_repeats_itself_is_stopped_and_goes_on(cli, tmp_path):
    path = make_repeating(tmp_path)
    file = tmp_path / "talk.json"
    arguments = ["chat", path, *FAST, "--draft=lookup", "--temperature=0"]
    told = cli(*arguments, stdin=said("hello", f"/save {file}", "/stats", "/continue"))
    assert told.code == 0
    assert told.err.count("stopped: it repeats itself (/continue goes on)\n") == 2
    assert "tokens (loop)" in told.err
    [_, answer] = json.loads(file.read_text("utf-8"))
    asked = [{"role": "user", "content": "hello"}]
    with LLM(path, draft="none", **PLACE) as llm:
        whole = llm.chat(asked).text
        assert whole.startswith(answer["content"])
        further = llm.chat([*asked, answer], stop_loops=True)
    assert len(answer["content"]) < len(whole)
    assert further.new_tokens >= LEAST_TOKENS  # it does not stop at once
    assert told.out == f"{answer['content']}\n{further.text}\n"


def test_settings_decide_whether_an_answer_is_stopped(cli, tmp_path):
    path = make_repeating(tmp_path)
    settings = tmp_path / "settings.toml"
    words = [path, *FAST, "--draft=lookup", "--temperature=0", "-n", "400", "--config", settings]
    settings.write_text("stop_loops = false\n")
    told = cli("chat", *words, stdin=said("hello"))
    assert told.err.startswith("stopped after 400 tokens: /continue goes on")
    settings.write_text("stop_loops = true\n")
    told = cli("run", *words, "-p", "hello")
    assert told.err.startswith("stopped: it repeats itself\n")


def test_what_cannot_help_is_not_advised(cli, bundles):
    """A larger context at the model's most, and to clear a conversation that is empty."""
    words = ["chat", bundles / "chat", *FAST, "--draft=none", "--temperature=0"]
    most = LLM(bundles / "chat", draft="none", **PLACE).context_length
    long = "x" * (most + 1)
    told = cli(*words, stdin=said(long, "hello", long)).err
    assert "--context" not in told
    assert told.count("shorten the prompt") == 2
    assert told.count("start a new conversation with /clear") == told.count("clear")


def test_what_cannot_be_saved_leaves_the_old_file(cli, bundles, tmp_path):
    file = tmp_path / "talk.json"
    file.write_text("old")
    result = cli(
        "chat", bundles / "chat", *SHORT, "--system", "\udcff", stdin=said(*2 * [f"/save {file}"])
    )
    assert result.code == 0
    assert f"{file} cannot be written" in result.err
    assert file.read_text() == "old"


def test_a_full_disk_leaves_the_old_file(cli, bundles, answers, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "talk.json"
    file.write_text(json.dumps(answers("hello")))
    old = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = cli(
            "chat", bundles / "chat", *SHORT, "--history", file, stdin=said("x", f"/save {file}")
        )
    assert "No space left" in result.err
    assert file.read_bytes() == old


@pytest.fixture
def templated(bundles, tmp_path):
    """A bundle with this chat template."""

    def make(template):
        folder = tmp_path / "bundle"
        name = "chat_template.jinja"
        shutil.copytree(bundles / "plain", folder)
        (folder / name).write_text(template)
        manifest = bundle.load(folder).manifest
        files = {**manifest.files, name: bundle.describe_file(folder / name)}
        listed = replace(manifest, files=files, tokenizer=(*manifest.tokenizer, name))
        bundle.save_manifest(folder, listed)
        return folder

    return make


@pytest.mark.parametrize("template", ["{{ 1/0 }}", "{{ 10.0**999 }}", "{% if %}", "{{ a.b.c }}"])
def test_a_template_that_takes_no_message_ends_it_at_once(cli, templated, template):
    result = cli("chat", templated(template), *SHORT, stdin=said("hello"))
    fails(result, "the model's chat template ")
    assert len(result.err.splitlines()) == 1


def test_a_message_that_a_template_refuses_does_not_end_the_conversation(cli, templated, tmp_path):
    said_no = "{% if m.content == 'no' %}{{ 1/0 }}{% endif %}"
    picky = f"{{% for m in messages %}}{said_no}{{{{ m.content }}}}{{% endfor %}}"
    lines = said("no", f"/save {tmp_path / 'talk.json'}")
    result = cli("chat", templated(picky), *SHORT, stdin=lines)
    assert (result.code, result.out) == (0, "")
    assert "chat template refuses" in result.err
    assert "saved 0 messages to" in result.err


def test_a_template_that_wants_a_system_message_is_not_broken(cli, templated):
    wants = "{{ messages[0].role == 'system' or 1/0 }}{{ messages[-1].content }}"
    folder = templated(wants)
    fails(cli("chat", folder, *SHORT, stdin=said("hello")), "division by zero")
    result = cli("chat", folder, *SHORT, "--system", "be brief", stdin=said("hello"))
    assert (result.code, result.err) == (0, CUT)


@pytest.mark.parametrize(
    "content",
    [
        "no json", "{}", '[{"role": "user"}]', '[["user", "x"]]', "1", "[" * 100_000,
        r'[{"role": "user", "content": "\ud800"}]',
    ],
)  # fmt: skip
def test_a_history_that_is_none_is_refused(cli, bundles, tmp_path, content):
    file = tmp_path / "talk.json"
    file.write_text(content)
    fails(cli("chat", bundles / "chat", "--history", file), str(file), "/save")


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_it_takes_two_to_talk(cli, bundles, monkeypatch, closed):
    with monkeypatch.context() as patch:
        patch.setattr(sys, closed, None)
        code = main(["chat", str(bundles / "chat"), *SHORT])
    assert code == 2


def test_bad_input_is_refused(cli, bundles):
    fails(cli("chat", bundles / "chat", "-n", "0"), "max_new_tokens is 0")
    fails(cli("chat", bundles / "chat", *SHORT, stdin=b"\xff\n"), "not UTF-8")
