"""`edgespec eval`: perplexity over a text, and the distance from another bundle."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.arguments import DEVICE_HELP, add_bundle, add_option
from edgespec.cli.progress import progress_bar
from edgespec.options import MEMORY_HELP
from edgespec.textfiles import read_utf8

if TYPE_CHECKING:
    from edgespec.llm import LLM
    from edgespec.perplexity import Evaluation


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_bundle(parser)
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="a UTF-8 text to predict"
    )
    parser.add_argument(
        "--against", type=Path, metavar="BUNDLE",
        help="a bundle of the same model to compare with, as one of fp32; both are loaded",
    )  # fmt: skip
    parser.add_argument(
        "--stride", type=int, metavar="N",
        help="tokens from the start of a window to that of the next (default: half a window)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true",
        help="print one JSON object; a perplexity beyond what a float holds is null there",
    )  # fmt: skip
    machine = parser.add_argument_group("machine")
    add_option(machine, "device", DEVICE_HELP, kind=str)
    add_option(machine, "threads", "of each engine (default: physical cores)")
    add_option(machine, "context", "tokens of a window (default: what the model was made for)")
    machine.add_argument("--memory", metavar="SIZE", help=MEMORY_HELP)


def execute(arguments: argparse.Namespace) -> int:
    """Read the text, and print what it showed."""
    text = read_utf8(arguments.text)

    from edgespec.llm import LLM
    from edgespec.perplexity import Reading

    how = {name: getattr(arguments, name) for name in ("device", "threads", "context")}
    llm = LLM(arguments.bundle, draft="none", memory=arguments.memory, **how)
    reference = None
    if arguments.against is not None:
        # What the first one will take is not there for the second; a byte is refused with numbers.
        left = {each.device: max(each.limit - each.total, 1) for each in llm.plan.devices}
        reference = LLM(arguments.against, draft="none", memory=left, **how)
    reading = Reading(llm, text, arguments.stride, reference)
    with progress_bar(reading.scored) as show:
        found = reading.evaluate(lambda tokens: show("tokens", tokens))
    if arguments.json:
        print(json.dumps(_facts(arguments, found, llm, reference)))
    else:
        print("\n".join(_lines(found)))
    return 0


def _facts(
    arguments: argparse.Namespace, found: Evaluation, llm: LLM, reference: LLM | None
) -> dict[str, Any]:
    from edgespec.environment import git_revision, hardware, peak_rss_mb, versions

    facts = {
        "bundle": str(llm.bundle.path),
        "bundle_hash": llm.bundle.digest,
        "precision": llm.bundle.target.precision.weights,
        "text": arguments.text.name,
        "tokens": found.tokens,
        "scored": found.scored,
        "window": found.window,
        "stride": found.stride,
        "engine": found.engine,
        "nats_per_token": found.nats.value,
        "perplexity": _finite(found.nats.perplexity),
        "perplexity_error": _finite(found.nats.perplexity_error),
        "against": None,
        "peak_rss_mb": peak_rss_mb(),
        "hardware": hardware(),
        "versions": versions(),
        "git_revision": git_revision(),
    }
    if found.against is not None and reference is not None:
        facts["against"] = {
            "bundle": str(reference.bundle.path),
            "bundle_hash": reference.bundle.digest,
            "precision": reference.bundle.target.precision.weights,
            "engine": found.against.engine,
            "nats_per_token": found.against.nats.value,
            "perplexity": _finite(found.against.nats.perplexity),
            "mean_kl": found.against.kl.value,
            "mean_kl_error": found.against.kl.error,
            "argmax_agreement": found.against.agreement,
        }
    return facts


def _finite(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return value if math.isfinite(value) else None


def _lines(found: Evaluation) -> list[str]:
    from edgespec.perplexity import exponential

    lines = [
        f"{found.scored} of {found.tokens} tokens, windows of {found.window}, "
        f"stride {found.stride}, on {found.engine}",
        f"perplexity {found.nats.perplexity:.6g} ± {found.nats.perplexity_error:.2g}",
    ]
    if found.against is not None:
        kl, nats = found.against.kl, found.against.nats
        more = exponential(found.nats.value - nats.value) - 1
        lines += [
            f"reference {nats.perplexity:.6g}, so {more:+.2%}",
            f"mean KL {kl.value:.4g} ± {kl.error:.2g} nats",
            f"same likeliest token {found.against.agreement:.2%}",
        ]
    return lines
