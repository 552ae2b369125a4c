"""An agent of LangChain's and the coding agent aider, with a real model.

The extra `clients` installs LangChain. Aider wants other versions of many packages: install it in
an environment of its own, and have its `bin` on the path. `EDGESPEC_REAL_MODELS` names a folder
with `qwen-coder-1.5b`.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from installed import installed
from real import needs
from servers import MODEL, serving

from edgespec import LLM

AIDER = shutil.which("aider")
CODER = "qwen-coder-1.5b"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # about the clients' own code
    needs(CODER),
]


@pytest.fixture(scope="module")
def running(real_bundle):
    bundle = real_bundle(CODER)
    with LLM(bundle, threads=2, context=4096) as llm, serving(llm) as running:
        yield running


# Without it this model calls again what it has called, as it also does in transformers.
SYSTEM = "Use a tool once. When you have its result, answer the user in one sentence."
STEPS = 8  # the agent fails if it has not ended by then


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_an_agent_calls_a_tool_and_answers_with_its_result(running, responses):
    agents = installed("langchain.agents")
    langchain = installed("langchain_openai")
    asked = []

    def population(city: str) -> str:
        """Look up how many people live in a city."""
        asked.append(city)
        return f"{city} has 412000 inhabitants."

    def add(a: int, b: int) -> int:
        """Add two whole numbers."""
        raise AssertionError("nobody has asked for a sum")

    model = langchain.ChatOpenAI(
        model=MODEL,
        base_url=f"{running.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=200,
        max_retries=0,
        use_responses_api=responses,
    )
    agent = agents.create_agent(model, [add, population], system_prompt=SYSTEM)
    question = {"role": "user", "content": "How many people live in Ghent?"}
    done = agent.invoke({"messages": [question]}, {"recursion_limit": STEPS})
    assert asked == ["Ghent"]
    assert [message.type for message in done["messages"]] == ["human", "ai", "tool", "ai"]
    assert "412" in done["messages"][-1].text


SHAPES = '''"""Areas of shapes."""


def square(side):
    return side * side
'''
MAIN = """from shapes import square

print(square(3))
"""
MESSAGE = "Add a function rectangle(width, height) to shapes.py that returns its area."


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "main.py").write_text(MAIN)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def git(folder, *arguments):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.check_output(["git", *who, *arguments], cwd=folder, text=True)


@pytest.mark.skipif(AIDER is None, reason="aider is missing: pip install aider-chat")
def test_a_file_is_edited_to_the_end(running, repository):
    options = (
        f"--model openai/{MODEL} --openai-api-base {running.url}/v1 --openai-api-key none "
        "--edit-format whole --yes-always --no-stream --map-tokens 0 --no-auto-commits "
        "--no-show-model-warnings --no-check-update --no-gitignore --analytics-disable"
    )
    command = [AIDER, *options.split(), "--message", MESSAGE, "shapes.py"]
    home = {**os.environ, "HOME": str(repository.parent)}  # no settings of whoever runs the test
    done = subprocess.run(
        command, cwd=repository, env=home, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Applied edit to shapes.py" in done.stdout
    found: dict[str, object] = {}
    exec((repository / "shapes.py").read_text(), found)
    assert found["square"](3) == 9
    assert found["rectangle"](3, 4) == 12
    assert (repository / "main.py").read_text() == MAIN
    assert git(repository, "diff", "--name-only").split() == ["shapes.py"]
    metrics = running.metrics()
    assert metrics['edgespec_texts_total{finish_reason="stop"}'] >= 1
