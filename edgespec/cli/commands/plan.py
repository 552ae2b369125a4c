"""`edgespec plan`: what memory a bundle takes and what of it fits, and which way to run it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.cli import ways
from edgespec.cli.arguments import (
    LOAD_DEFAULTS,
    add_bundle,
    add_device_options,
    add_draft,
    given,
)
from edgespec.runtime.deployment.options import LoadOptions

if TYPE_CHECKING:
    from edgespec.runtime.deployment.plans import FixedShape, Plan


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, which are those of `run`."""
    add_bundle(parser)
    add_draft(parser)
    add_device_options(parser)
    parser.add_argument(
        "--compare", action="store_true",
        help="also compare ways to decode by tokens per second, on measured costs: plain, partly "
        "on the GPU, with the draft model before the target's passes or beside them",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, in MiB")


def execute(arguments: argparse.Namespace) -> int:
    """Print the plan, and ways to run the bundle, which may fit where the plan does not.

    Raises:
        MemoryLimitError: after printing, if nothing fits.
    """
    options = LoadOptions(**given(arguments, LOAD_DEFAULTS))
    bundle = bundles.load(arguments.bundle)

    from edgespec.runtime.deployment.fitting import described, fit, place_to_use

    plan = fit(bundle, options)
    place = place_to_use(bundle, options)
    subject = described(bundle, options)
    found = None
    if arguments.compare:
        from edgespec.runtime.deployment.comparing import compare

        found = compare(bundle, replace(options, context=plan.context), cache(_say_measuring))
    if arguments.json:
        compared = {"ways": found and ways.facts(found)}
        print(json.dumps({"simulated": options.machine, **_facts(plan, place), **compared}))
    else:
        if plan.fits:
            _show(plan, subject)
        if found is not None and any(way.refusal is None for way in found):
            ways.show(found)
        elif plan.fits and place is not None:
            print(f'run it with --place "{place}"')
    plan.require_fit(subject)
    return 0


def _say_measuring() -> None:
    line = "edgespec: measuring what calls cost on this machine, once: this takes a while"
    print(line, file=sys.stderr, flush=True)


def _facts(plan: Plan, place: str | None) -> dict[str, Any]:
    return {
        "fits": plan.fits,
        "context": plan.context,
        "draft": plan.draft,
        "max_tree": plan.max_tree,
        "prefill_chunk": plan.prefill_chunk,
        "engines": _engines(plan),
        "place": place,
        "devices": [ways.device_facts(demand) for demand in plan.devices],
        "shapes": [_shape_facts(each) for each in plan.shapes],
    }


def _engines(plan: Plan) -> dict[str, str]:
    from edgespec.runtime.engines import joined

    return {role: joined(names) for role, names in plan.engines.items()}


def _show(plan: Plan, subject: str) -> None:
    """One column a device, so that eighty characters hold it."""
    table = Table()
    table.add_column("MiB")
    columns = [ways.device_facts(demand) for demand in plan.devices]
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
    engines = ", ".join(f"{role} on {engine}" for role, engine in _engines(plan).items())
    console = Console()
    console.print(subject, markup=False, highlight=False, style="italic", soft_wrap=True)
    console.print(table)
    console.print(
        f"context {plan.context:,}, draft {plan.draft}, trees of up to {plan.max_tree} nodes, "
        f"prompts read {plan.prefill_chunk} tokens at a time; {engines}",
        markup=False, highlight=False,
    )  # fmt: skip
    for each in map(_shape_facts, plan.shapes):
        console.print(
            f"{each['role']} on {each['device']}, {each['rows']}x{each['capacity']}: "
            f"{each['taken_mb']:,.1f} MiB, "
            + ("compiled ahead of time" if each["compiled"] else "compiled when it is loaded"),
            markup=False, highlight=False,
        )  # fmt: skip


def _shape_facts(fixed: FixedShape) -> dict[str, Any]:
    from edgespec.runtime.deployment.plans import MIB

    return {
        "role": fixed.role,
        "device": fixed.device,
        "rows": fixed.shape.rows,
        "capacity": fixed.shape.capacity,
        "taken_mb": round(fixed.bytes / MIB, 1),
        "compiled": fixed.ready,
    }
