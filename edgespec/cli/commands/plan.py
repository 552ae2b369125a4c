"""`edgespec plan`: where a bundle's models would run, and how much memory that needs."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT
from edgespec.cli.arguments import MACHINE, add_model, add_options, given
from edgespec.cli.models import chosen
from edgespec.cli.terminal import tell
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.plan import HOST, LONG_CALL
from edgespec.system import records

if TYPE_CHECKING:
    from edgespec.runtime.plan import MemoryPlan, Placement

_PARTS = {
    "baseline": "interpreter and libraries",
    "weights": "weights",
    "kv": "KV caches",
    "workspace": "workspace",
    "total": "total",
    "limit": "may be used",
    "mapped": "weights in mapped files, besides",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    add_options(parser, LoadOptions, "draft", *MACHINE, "sessions")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, in bytes")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the plan; nothing is loaded or measured.

    Raises:
        MemoryLimitError: if there is no memory for what was asked for.
    """
    from edgespec.llm.load.place import plan_memory

    bundle = bundles.load(chosen(arguments, fetch=False))
    found = plan_memory(bundle, LoadOptions(**given(arguments, LoadOptions)))
    if arguments.json:
        tell(json.dumps(records.encode(found)))
    else:
        _show(str(bundle.path), found)
    return 0


def _why(name: str, placed: Placement) -> str:
    """Returns why a role runs where it does; no library of devices is asked for that."""
    if placed.device != HOST or placed.behind is not None:
        return "as it was asked for: `edgespec doctor MODEL` times it on the CPU, too"
    option = "--draft-device" if name == DRAFT else "--device"
    return f"since {option} names no other: `edgespec doctor MODEL` times it on a GPU, too"


def _prompts(placed: Placement) -> str:
    """Returns where the prompts of a target on two devices are read."""
    if not placed.prompts:
        return f"and layers before that read prompts on {placed.device}"
    return (
        f"which reads prompts of {LONG_CALL} tokens and more through all layers, where a trial "
        "at the first load finds that faster"
    )


def _show(title: str, plan: MemoryPlan) -> None:
    """Prints a table with one column per memory, and a line for each role."""
    from rich.table import Table

    from edgespec.cli.consoles import HarmlessConsole

    table = Table("MiB")
    for each in plan.demands:
        table.add_column(each.memory, justify="right")
    for part, label in _PARTS.items():
        sizes = (f"{getattr(each, part) / (1 << 20):,.1f}" for each in plan.demands)
        table.add_row(label, *sizes, end_section=part in ("workspace", "limit"))
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    console.print(title, style="italic")
    console.print(table)
    console.print(f"context of {plan.context:,} tokens")
    for name, placed in plan.roles.items():
        graph = "native" if placed.native else "portable"
        slots = f"{plan.slots[name]:,} slots of keys and values"
        console.print(f"{name} on {placed.device}, by its {graph} graph, with {slots}")
        console.print(f"  {_why(name, placed)}")
        if placed.behind is not None:
            first, there = placed.behind
            console.print(f"  from layer {first} on it is on {there.device}, {_prompts(placed)}")
