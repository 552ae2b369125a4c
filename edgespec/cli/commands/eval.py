"""`edgespec eval`: perplexity on a text or a suite, and the distance from a reference bundle."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.arguments import add_model, add_options
from edgespec.cli.models import chosen
from edgespec.cli.parsing import Rare
from edgespec.cli.tables import markdown_table
from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.llm.load.options import LoadOptions
from edgespec.system.files import read_utf8

if TYPE_CHECKING:
    from edgespec.llm.llm import LLM
    from edgespec.measuring.perplexity import Evaluation
    from edgespec.measuring.suite import Card


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", type=Path, metavar="FILE", help="evaluate on this UTF-8 text")
    what.add_argument(
        "--suite",
        action="store_true",
        help="evaluate on built-in prose, code, dialogue and arithmetic, and show the answers to "
        "five questions",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="BUNDLE",
        help="also compare with this bundle of the same model, for example in fp32; both are in "
        "memory at once",
    )
    parser.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help=Rare(
            "with --text: number of tokens between the starts of two windows (default: half a "
            "window)"
        ),
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object; a perplexity too large for a float is null",
    )
    names = ("device", "threads", "context", "memory")
    add_options(parser.add_argument_group("machine"), LoadOptions, *names)


def execute(arguments: argparse.Namespace) -> int:
    """Evaluates on the text or the suite, and prints the result."""
    if arguments.suite and arguments.stride is not None:
        raise InputError("--stride is only for --text: leave it out with --suite")
    text = None if arguments.suite else read_utf8(arguments.text)

    from edgespec.llm.llm import LLM

    how = {name: getattr(arguments, name) for name in ("device", "threads", "context")}
    llm = LLM(chosen(arguments), draft="none", memory=arguments.memory, **how)
    reference = None
    if arguments.against is not None:
        # The second bundle gets the memory that the first one leaves, at least one byte, so that a
        # refusal shows the numbers.
        left = {each.memory: max(each.limit - each.total, 1) for each in llm.plan.demands}
        reference = LLM(arguments.against, draft="none", memory=left, **how)
    facts, lines = (
        _suite(llm, reference) if text is None else _text(llm, reference, text, arguments)
    )
    if arguments.json:
        from edgespec.system.environment import circumstances

        tell(json.dumps(_of_bundle(llm) | facts | circumstances()))
    else:
        tell(*lines)
    return 0


Found = tuple[dict[str, Any], list[str]]
"""Results as JSON values and as lines for the terminal."""


def _text(llm: LLM, reference: LLM | None, text: str, arguments: argparse.Namespace) -> Found:
    from edgespec.cli.progress import progress_bar
    from edgespec.measuring.perplexity import TokenizedText

    reading = TokenizedText(llm, text, arguments.stride, reference)
    with progress_bar(reading.scored) as show:
        found = reading.evaluate(lambda tokens: show("tokens", tokens))
    facts = {"text": arguments.text.name, **_numbers(found)}
    if found.against is not None and reference is not None:
        facts["against"] = _of_bundle(reference) | facts["against"]
    return facts, _lines(found)


def _suite(llm: LLM, reference: LLM | None) -> Found:
    from edgespec.cli.progress import progress_bar
    from edgespec.measuring.suite import Suite

    suite = Suite(llm, reference)
    with progress_bar(suite.tokens) as show:
        card = suite.run(show)
    facts: dict[str, Any] = {
        "suite": {kind: _numbers(found) for kind, found in card.texts.items()},
        "answers": [asdict(answer) for answer in card.answers],
        "against": None if reference is None else _of_bundle(reference),
    }
    return facts, _card(card)


def _of_bundle(llm: LLM) -> dict[str, Any]:
    return {
        "bundle": str(llm.bundle.path),
        "bundle_hash": llm.bundle.digest,
        "precision": llm.bundle.target.precision.weights,
    }


def _numbers(found: Evaluation) -> dict[str, Any]:
    """Returns the result of a text as JSON values, without the names of the bundles."""
    numbers: dict[str, Any] = {
        "tokens": found.tokens,
        "scored": found.scored,
        "window": found.window,
        "stride": found.stride,
        "engine": found.engine,
        "nats_per_token": found.nats.value,
        "perplexity": _finite(found.nats.perplexity),
        "perplexity_error": _finite(found.nats.perplexity_error),
        "against": None,
    }
    if found.against is not None:
        numbers["against"] = {
            "engine": found.against.engine,
            "nats_per_token": found.against.nats.value,
            "perplexity": _finite(found.against.nats.perplexity),
            "mean_kl": found.against.kl.value,
            "mean_kl_error": found.against.kl.error,
            "argmax_agreement": found.against.agreement,
        }
    return numbers


def _finite(value: float) -> float | None:
    """Returns None for an infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _lines(found: Evaluation) -> list[str]:
    from edgespec.measuring.perplexity import exponential

    lines = [
        f"{found.scored} of {found.tokens} tokens scored, windows of {found.window} tokens, "
        f"stride {found.stride}, on {found.engine}",
        f"perplexity {found.nats.perplexity:.6g} ± {found.nats.perplexity_error:.2g}",
    ]
    if found.against is not None:
        kl = found.against.kl
        nats = found.against.nats
        more = exponential(found.nats.value - nats.value) - 1
        lines += [
            f"reference {nats.perplexity:.6g}, the bundle's is {more:+.2%}",
            f"mean KL {kl.value:.4g} ± {kl.error:.2g} nats",
            f"same likeliest token {found.against.agreement:.2%}",
        ]
    return lines


def _card(card: Card) -> list[str]:
    """Formats a table of the texts, and then the answers."""
    from edgespec.measuring.perplexity import exponential
    from edgespec.measuring.suite import overall

    header = ["text", "tokens", "perplexity", "±"]
    compared = next(iter(card.texts.values())).against is not None
    if compared:
        header += ["reference", "KL, nats", "same likeliest token"]
    rows = []
    for kind, found in card.texts.items():
        row = [kind, found.scored, f"{found.nats.perplexity:.4g}"]
        row.append(f"{found.nats.perplexity_error:.2g}")
        if found.against is not None:
            against = found.against
            row += [f"{against.nats.perplexity:.4g}", f"{against.kl.value:.3g}"]
            row.append(f"{against.agreement:.1%}")
        rows.append(row)
    nats, kl, agreement = overall(list(card.texts.values()))
    total = ["all", sum(found.scored for found in card.texts.values())]
    total += [f"{exponential(nats):.4g}", ""]
    if kl is not None and agreement is not None:
        total += ["", f"{kl:.3g}", f"{agreement:.1%}"]
    lines = [markdown_table(header, [*rows, total]), ""]
    for answer in card.answers:
        lines.append(f"> {answer.question}")
        lines.append(answer.text.strip() or "(nothing)")
        if answer.reference is not None:
            same = answer.reference == answer.text
            lines.append("reference: " + ("the same" if same else answer.reference.strip()))
        lines.append("")
    return lines[:-1]
