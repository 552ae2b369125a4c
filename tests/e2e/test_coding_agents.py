"""Coding agents, as their makers publish them, create a file with a model that plays back calls.

`EDGESPEC_AGENTS` names a folder in which they were installed by

    npm install @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code
    python -m venv aider.venv && aider.venv/bin/pip install aider-chat

and `EDGESPEC_REAL_MODELS` one with `qwen-coder-0.5b`, whose tokenizer the model has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from checkpoints import make_checkpoint
from real import FOLDER, needs
from scripts import Scripted
from servers import MODEL, PLACE, serving

from edgespec import LLM, export
from edgespec.export import ExportOptions
from edgespec.llm import chat

# As aider has models write files, which calls no tools.
WRITTEN = "hello.txt\n```\nhi\n```\n\nDone."
CODER = "qwen-coder-0.5b"
TASK = "Create the file hello.txt with the text: hi"
PATIENCE = 240  # seconds
CONTEXT = 65536
BODIES = 4 << 20

pytestmark = [pytest.mark.slow, needs(CODER)]


def agent(name):
    """The path of an agent; the test is skipped without it."""
    folder = Path(os.environ.get("EDGESPEC_AGENTS", "none"))
    places = (folder / "node_modules" / ".bin", folder / "aider.venv" / "bin")
    found = shutil.which(name, path=os.pathsep.join(map(str, places)))
    if found is None:
        pytest.skip(f"EDGESPEC_AGENTS has no {name}: install it there")
    return found


class Free:
    """A constraint that allows all."""

    def __init__(self, size):
        self._all = np.ones(size, bool)

    def allowed(self):
        return self._all

    def advance(self, token):
        pass

    def forced(self):
        return []


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A small model with the tokenizer of a large one."""
    folder = tmp_path_factory.mktemp("agents")
    source = FOLDER / CODER
    make_checkpoint(
        folder / "checkpoint",
        "llama",
        vocab_size=json.loads((source / "config.json").read_text())["vocab_size"],
        max_position_embeddings=CONTEXT,
        num_hidden_layers=1,
    )
    for file in (*source.glob("tokenizer*"), source / "chat_template.jinja"):
        shutil.copy(file, folder / "checkpoint")
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="int8"))
    with LLM(folder / "bundle", draft="none", context=CONTEXT, **PLACE) as opened:
        yield opened


def call(folder, functions):
    """The call of a tool that writes the file, among those that an agent offers; None without."""
    offered = {each["name"]: each["parameters"]["properties"] for each in functions}
    path = str(folder / "hello.txt")
    writers = {
        "Write": {"file_path": path, "content": "hi"},
        "write": {"filePath": path, "content": "hi"},
        "write_file": {"file_path": path, "content": "hi"},
        "exec_command": {"cmd": "printf hi > hello.txt"},
        "shell": {"command": ["sh", "-c", "printf hi > hello.txt"]},
    }
    known = next((name for name in writers if name in offered), None)
    if known is None:
        return None
    given = writers[known]
    arguments = {name: given[name] for name in offered[known] if name in given}
    return json.dumps({"name": known, "arguments": arguments})


@pytest.fixture
def running(llm, monkeypatch, tmp_path):
    """A server whose model calls a tool that writes the file, once, and says that it is done.

    Without such a tool it writes the file as a text.
    """
    called = []

    def scripted(tokenizer, grammars, options, answer):
        asked = call(tmp_path, [tool["function"] for tool in options.tools_described])
        said = "Done." if asked else WRITTEN
        if asked and not called:
            called.append(asked)
            said = f"<tool_call>\n{asked}\n</tool_call>"
        inner = plain(tokenizer, grammars, options, answer) or Free(tokenizer.vocab_size)
        end = tokenizer.added_tokens["<|im_end|>"]
        return Scripted(inner, [*tokenizer.encode(said, add_special=False), end])

    plain = chat._grammar
    monkeypatch.setattr(chat, "_grammar", scripted)
    with serving(llm, parallel=4, body_limit=BODIES) as served:
        yield served


def claude(url, _home):
    settings = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return ["-p", TASK, "--permission-mode", "acceptEdits"], settings


def codex(url, home):
    provider = f'{{name="edgespec",base_url="{url}/v1",wire_api="responses"}}'
    settings = [
        f"model_providers.edgespec={provider}",
        'model_provider="edgespec"',
        f'model="{MODEL}"',
    ]
    options = [part for each in settings for part in ("-c", each)]
    sandbox = ["--skip-git-repo-check", "-s", "danger-full-access"]
    return ["exec", *sandbox, *options, TASK], {"CODEX_HOME": str(home)}


def opencode(url, home):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"limit": {"context": CONTEXT, "output": 4096}}},
    }
    config = home / "opencode.json"
    config.write_text(json.dumps({"provider": {"edgespec": provider}, "permission": "allow"}))
    settings = {"OPENCODE_CONFIG": str(config), "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return ["run", "-m", f"edgespec/{MODEL}", TASK], settings


def qwen(url, _home):
    settings = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    return ["--yolo", "--auth-type", "openai", "-p", TASK], settings


def aider(url, _home):
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AIDER_ANALYTICS_DISABLE": "true"}
    where = ["--openai-api-base", f"{url}/v1", "--openai-api-key", "none"]
    quiet = ["--no-git", "--no-check-update", "--no-show-model-warnings", "--map-tokens", "0"]
    how = ["--model", f"openai/{MODEL}", "--edit-format", "whole", "--yes-always"]
    return [*how, *where, *quiet, "--message", TASK], settings


@pytest.mark.parametrize(
    "how", [claude, codex, opencode, qwen, aider], ids=lambda each: each.__name__
)
def test_an_agent_creates_a_file(running, tmp_path, tmp_path_factory, how):
    program = agent(how.__name__)
    home = tmp_path_factory.mktemp("home")
    options, settings = how(running.url, home)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [program, *options],
        cwd=tmp_path,
        env={**kept, "HOME": str(home), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (tmp_path / "hello.txt").exists(), done.stdout + done.stderr
    assert (tmp_path / "hello.txt").read_text().removesuffix("\n") == "hi"  # aider ends all lines
    assert "Done." in done.stdout
