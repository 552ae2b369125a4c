"""`edgespec plan`: how much memory a bundle needs, whether it fits, and how to run it."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.cli import comparison
from edgespec.cli.arguments import (
    LOAD_DEFAULTS,
    add_bundle,
    add_device_options,
    add_draft,
    add_option,
    given,
)

if TYPE_CHECKING:
    from edgespec.runtime.deployment.demands import FixedShape
    from edgespec.runtime.deployment.deployment import Deployment

_EXACT = {
    True: "yes, bit for bit",
    False: "yes, except where the two likeliest tokens are nearly tied",
    None: "unknown, the first load on this machine checks it",
}

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments, which are those of `run`."""
    add_bundle(parser)
    add_draft(parser)
    add_device_options(parser)
    add_option(
        parser, "sessions",
        "number of texts of full length to reserve cache memory for, as `serve` does", "--parallel",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="store_true",
        help="also compare the expected speed of ways to run the bundle, from measured costs: "
        "plain, partly on the GPU, and with a draft model that runs before or during verification",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, in MiB")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the plan, and other ways to run the bundle, which may fit if the plan does not.

    Raises:
        MemoryLimitError: after printing, if the plan does not fit.
    """
    options = LoadOptions(**given(arguments, LOAD_DEFAULTS))
    bundle = bundles.load(arguments.bundle)

    from edgespec.runtime.deployment.deployment import deploy, place_to_use

    found = deploy(bundle, options)
    for line in found.warnings:
        _log.warning("%s", line)
    place = place_to_use(bundle, options)
    compared = None
    if arguments.compare:
        from edgespec.runtime.deployment.comparing import compare

        compared = compare(bundle, replace(options, context=found.context), cache(_say_measuring))
    if arguments.json:
        facts = _facts(found, place) | {"ways": compared and comparison.facts(compared)}
        print(json.dumps(facts))
    else:
        if found.fits:
            _show(found)
        if compared is not None and any(way.refusal is None for way in compared):
            comparison.show(compared)
        elif found.fits and place is not None:
            print(f'run it with --place "{place}"')
    found.require_fit()
    return 0


def _say_measuring() -> None:
    line = "edgespec: measuring the speed of this machine once, which takes a while"
    print(line, file=sys.stderr, flush=True)


def _facts(found: Deployment, place: str | None) -> dict[str, Any]:
    return {
        "fits": found.fits,
        "context": found.context,
        "draft": found.draft,
        "max_tree": found.max_tree,
        "prefill_chunk": found.prefill_chunk,
        "engines": {name: role.device for name, role in found.roles.items()},
        "why": {name: role.why for name, role in found.roles.items()},
        "exact": found.exact,
        "place": place,
        "devices": [comparison.device_facts(demand) for demand in found.devices],
        "shapes": [_shape_facts(each) for each in found.shapes],
    }


def _show(found: Deployment) -> None:
    """Prints a table with one column per device, so that it fits eighty characters."""
    table = Table()
    table.add_column("MiB")
    columns = [comparison.device_facts(demand) for demand in found.devices]
    for column in columns:
        table.add_column(column["device"], justify="right")
    labels = {
        "baseline": "interpreter and libraries",
        "weights": "weights",
        "repacked": "repacked weights",
        "kv": "KV caches",
        "logits": "logits",
        "workspace": "workspace",
        "total": "total",
        "limit": "limit",
        "mapped": "file-backed, not counted",
    }
    for name, label in labels.items():
        table.add_row(
            label, *(f"{column[f'{name}_mb']:,.1f}" for column in columns),
            end_section=name in ("workspace", "limit"),
        )  # fmt: skip
    console = Console()
    console.print(
        str(found.bundle.path), markup=False, highlight=False, style="italic", soft_wrap=True
    )
    console.print(table)
    lines = [
        f"context of {found.context:,} tokens, draft {found.draft}, draft trees of up to "
        f"{found.max_tree} nodes, prompts read in chunks of {found.prefill_chunk} tokens",
        *(f"{name} on {role.device}: {role.why}" for name, role in found.roles.items()),
        f"same text with and without drafts: {_EXACT[found.exact]}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False)
    for each in map(_shape_facts, found.shapes):
        console.print(
            f"{each['role']} on {each['device']}, {each['rows']}x{each['capacity']}: "
            f"{each['taken_mb']:,.1f} MiB, "
            + ("compiled ahead of time" if each["compiled"] else "compiled when it is loaded"),
            markup=False, highlight=False,
        )  # fmt: skip


def _shape_facts(fixed: FixedShape) -> dict[str, Any]:
    from edgespec.runtime.deployment.demands import MIB

    return {
        "role": fixed.role,
        "device": fixed.device,
        "rows": fixed.shape.rows,
        "capacity": fixed.shape.capacity,
        "taken_mb": round(fixed.bytes / MIB, 1),
        "compiled": fixed.ready,
    }
