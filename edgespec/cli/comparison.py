"""Output of `edgespec plan --compare`: a comparison of ways to run a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from edgespec.api.loading import LoadOptions

if TYPE_CHECKING:
    from edgespec.runtime.deployment.comparing import Strategy
    from edgespec.runtime.deployment.demands import Demand

_SHOWN = ("device", "place", "draft", "draft_device", "pipeline")
_DEFAULTS = LoadOptions()


def device_facts(demand: Demand) -> dict[str, Any]:
    """Returns the memory that a device needs, in MiB, as JSON values."""
    from edgespec.runtime.deployment.demands import MIB

    terms = {f"{term}_mb": round(size / MIB, 1) for term, size in demand.terms.items()}
    return {
        "device": demand.device,
        **terms,
        "total_mb": round(sum(terms.values()), 1),
        "limit_mb": round(demand.limit / MIB, 1),
        "mapped_mb": round(demand.mapped / MIB, 1),
    }


def facts(ways: Sequence[Strategy]) -> list[dict[str, Any]]:
    """Returns the ways to run a bundle as JSON values."""
    from edgespec.runtime.deployment.comparing import best

    return [
        {
            "way": way.name,
            "target": _target(way),
            "draft": _draft(way),
            "engines": dict(way.engines),
            "fits": way.deployment.fits,
            "devices": [device_facts(demand) for demand in way.deployment.devices],
            "slowdown": way.slowdown,
            "tokens_per_second": {str(share): round(v, 3) for share, v in way.rates.items()},
            "refusal": way.refusal,
            "options": _words(way.options),
            "best": way is best(ways),
        }
        for way in ways
    ]


def show(ways: Sequence[Strategy]) -> None:
    """Prints a table, the reasons why ways are impossible, and the options of the best way."""
    from edgespec.runtime.deployment.comparing import ACCEPTANCES, best
    from edgespec.runtime.deployment.throughput import USUAL_ACCEPTANCE

    console = Console()
    console.print(_table(ways, ACCEPTANCES))
    lines = [f"{_called(way)}: {way.refusal}" for way in ways if way.refusal is not None]
    chosen = best(ways)
    if chosen is not None:
        words = _words(chosen.options)
        lines.append(f"{_called(chosen)} is fastest at {USUAL_ACCEPTANCE}: run it with {words}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(ways: Sequence[Strategy], acceptances: Sequence[float]) -> Table:
    devices = sorted({device for way in ways for device in _memory(way)})
    table = Table(
        title="expected tokens/s by the share of drafted tokens that are accepted, "
        f"with a context of {ways[0].deployment.context:,}",
        title_justify="left", box=box.SIMPLE, pad_edge=False,
    )  # fmt: skip
    for name in ("way", "target on", "draft on"):
        table.add_column(name)
    for name in (*(f"MiB\n{device}" for device in devices), *map(str, acceptances)):
        table.add_column(name, justify="right", vertical="bottom")
    for way in ways:
        memory, rates = _memory(way), way.rates
        table.add_row(
            way.name, _target(way).replace(",", "\n"), _draft(way) or "-",
            *(memory.get(device, "-") for device in devices),
            *(f"{rates[share]:.1f}" if share in rates else "-" for share in acceptances),
        )  # fmt: skip
    return table


def _called(way: Strategy) -> str:
    """Returns a name that tells a way from the others."""
    draft = _draft(way)
    return way.name if draft is None else f"{way.name} with the draft on {draft}"


def _target(way: Strategy) -> str:
    """Returns the target's device or placement, as in the options."""
    return way.options.place or way.options.device


def _draft(way: Strategy) -> str | None:
    return None if way.options.draft == "none" else way.options.draft_device


def _memory(way: Strategy) -> dict[str, str]:
    """Returns the memory that each device needs, in MiB."""
    taken = map(device_facts, way.deployment.devices)
    return {each["device"]: f"{each['total_mb']:,.0f}" for each in taken}


def _words(options: LoadOptions) -> str:
    """Returns the options of `run` for this way; values with commas are quoted for the shell."""
    words = []
    for name in _SHOWN:
        value = getattr(options, name)
        if value != getattr(_DEFAULTS, name):
            shown = f'"{value}"' if "," in value else value
            words.append(f"--{name.replace('_', '-')} {shown}")
    return " ".join(words)
