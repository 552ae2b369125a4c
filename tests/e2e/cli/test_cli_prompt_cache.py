"""The prompt cache: commands that start sooner on a prompt that an earlier process has read."""

from __future__ import annotations

import json

import pytest
from commandline import FAST, PLACE, fails

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.llm.instance import ModelInstance
from edgespec.llm.stored_prompts import BLOCK

PROMPT = "".join(f"def step_{n}(x):\n    return x * {n} + 1\n\n\n" for n in range(60))
SHORT = ["-n", "6", "--draft", "none", *FAST]


def files(folder):
    return list(folder.glob("*.prompt.safetensors"))


def test_the_second_process_reads_what_the_first_one_computed(start, tmp_path):
    folder = tmp_path / "a" / "prompts"
    found = []
    (tmp_path / "settings.toml").write_text(f"prompt_cache = '{folder}'")
    for option in ([], ["--config", "settings.toml"], ["--config", "settings.toml"]):
        process = start("run", PROMPT, *SHORT, "--json", *option)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found.append(json.loads(out))
    assert {tuple(each["tokens"]) for each in found} == {tuple(found[0]["tokens"])}
    blocks = (found[0]["prompt_tokens"] - 1) // BLOCK
    assert blocks > 1
    assert [each["reused"] for each in found] == [0, 0, blocks * BLOCK]
    assert len(files(folder)) == blocks


def test_chat_goes_on_after_a_restart(cli, tmp_path):
    folder = tmp_path / "prompts"
    first, second = (
        cli(
            "chat",
            *SHORT,
            "--temperature=0",
            "--prompt-cache",
            folder,
            stdin=f'"""{PROMPT}"""\n/stats\n'.encode(),
        )
        for _ in range(2)
    )
    assert first.code == second.code == 0
    assert first.out == second.out
    assert "; 0 of " in first.err
    assert f"; {len(files(folder)) * BLOCK} of " in second.err


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_what_is_wrong_is_told(cli, tmp_path, command):
    (tmp_path / "file").write_text("x")
    fails(
        cli(command, "--prompt-cache", tmp_path / "file", "--draft=none"),
        "prompt_cache",
        "cannot be used (File exists): name a folder",
    )
    for size, said in (("2", "size '2' is not valid"), ("none", "size 'none' is not valid")):
        fails(cli(command, "--prompt-cache", tmp_path, "--prompt-cache-size", size), said)


def test_serve_takes_both_options(cli, monkeypatch, tmp_path):
    seen = []

    def load(_loaded, _bundle, options, *_):
        seen.append((options.prompt_cache, options.prompt_cache_size))
        raise InputError("that is enough")

    monkeypatch.setattr(ModelInstance, "__init__", load)
    options = ["--prompt-cache", tmp_path, "--prompt-cache-size=3GiB"]
    fails(cli("serve", "--port=0", *options), "that is enough")
    assert seen == [(str(tmp_path), 3 << 30)]


def test_a_server_goes_on_where_the_last_one_ended(tmp_path):
    from servers import serving  # needs the packages of the extra serve

    counted = []
    texts = []
    for _ in range(2):
        with (
            LLM(prompt_cache=tmp_path / "prompts", draft="none", **PLACE) as llm,
            serving(llm) as running,
        ):
            body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "prompt_cache_key": "me"}
            texts.append(running.post(body).json()["choices"][0]["text"])
            counted.append(running.metrics()["edgespec_reused_total"])
    assert texts[0] == texts[1]
    assert counted == [0, len(files(tmp_path / "prompts")) * BLOCK]
