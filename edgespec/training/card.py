"""The card of a head: what it is for, what it learned from, and how often it is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CARD = "README.md"
"""Its name in a head's folder, as the Hub shows it."""


def card(config: Mapping[str, Any]) -> str:
    """Returns the card of a head.

    Args:
        config: content of its config.json, with what is known of the training under `edgespec`.
    """
    facts = config["edgespec"]
    kind = facts["kind"]
    base = facts["base_model"]
    tags = ["speculative-decoding", "draft-head", kind, "edgespec"]
    about = [f"base_model: {base}"] if base.count("/") == 1 else []
    about += [f"license: {facts['license']}", "tags:", *(f"- {tag}" for tag in tags)]
    lines = "\n".join(about)
    return f"""---
{lines}
---

# A draft head ({kind}) for {base}

It drafts for {base} and no other model: `{facts["weights"]}` names the target's weights. What the
model says stays the same; it only says it faster.

    edgespec export MODEL --draft HEAD -o BUNDLE
    edgespec run BUNDLE "Write the numbers of Fibonacci in Python."

It was trained by `edgespec train-draft` on {facts["tokens"]:,} tokens, texts that are read again
counted again: {facts["text"]}.

{_measured(facts)}

The licence is that of the model which wrote the texts, unless it is said otherwise here.
"""


def _measured(facts: Mapping[str, Any]) -> str:
    """Returns what is known of its acceptance."""
    depths = range(1, len(facts["acceptance"]) + 1)
    if not depths:
        return "How often the target accepts its tokens was not measured yet."
    kinds = {"all": facts["acceptance"], **facts["acceptance_by_kind"]}
    rows = "\n".join(_row(name, shares) for name, shares in kinds.items())
    return f"""Share of drafted tokens that the target accepts, by depth, where all before were
accepted, on texts that it did not learn from:

| text | {" | ".join(map(str, depths))} |
|---|{"--:|" * len(depths)}
{rows}"""


def _row(name: str, shares: Sequence[float]) -> str:
    return f"| {name} | {' | '.join(f'{share:.0%}' for share in shares)} |"
