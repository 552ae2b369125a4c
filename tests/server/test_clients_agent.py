"""An agent of LangChain's, which calls a tool and answers with its result, with a real model.

The extra `clients` installs LangChain. `EDGESPEC_REAL_MODELS` names a folder with
`qwen-coder-1.5b`.
"""

from __future__ import annotations

import pytest
from installed import installed
from real import needs
from servers import MODEL, serving

from edgespec import LLM

CODER = "qwen-coder-1.5b"

agents = installed("langchain.agents")
langchain = installed("langchain_openai")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # about its own code
    needs(CODER),
]

# Without it this model calls again what it has called, as it also does in transformers.
SYSTEM = "Use a tool once. When you have its result, answer the user in one sentence."
STEPS = 8  # the agent fails if it has not ended by then


@pytest.fixture(scope="module")
def running(real_bundle):
    bundle = real_bundle(CODER, "--no-calibration")
    with LLM(bundle, threads=2, context=2048) as llm, serving(llm) as running:
        yield running


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_an_agent_calls_a_tool_and_answers_with_its_result(running, responses):
    asked = []

    def population(city: str) -> str:
        """Look up how many people live in a city."""
        asked.append(city)
        return f"{city} has 412000 inhabitants."

    def add(a: int, b: int) -> int:
        """Add two whole numbers."""
        raise AssertionError("nobody has asked for a sum")

    model = langchain.ChatOpenAI(
        model=MODEL, base_url=f"{running.url}/v1", api_key="none", temperature=0,
        max_tokens=200, max_retries=0, use_responses_api=responses,
    )  # fmt: skip
    agent = agents.create_agent(model, [add, population], system_prompt=SYSTEM)
    question = {"role": "user", "content": "How many people live in Ghent?"}
    done = agent.invoke({"messages": [question]}, {"recursion_limit": STEPS})
    assert asked == ["Ghent"]
    assert [message.type for message in done["messages"]] == ["human", "ai", "tool", "ai"]
    assert "412" in done["messages"][-1].text
