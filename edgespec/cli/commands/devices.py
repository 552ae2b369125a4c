"""`edgespec devices`: what this machine can run models on, and what is missing for the rest."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from edgespec.runtime.deployment.devices import Device


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Print the devices.

    Raises:
        DeviceError: if there are two distributions of ONNX Runtime, so that neither can be trusted.
    """
    from edgespec.runtime.deployment.devices import find_devices
    from edgespec.runtime.engines import best_gpu, require_one_distribution

    require_one_distribution()
    found, gpu = find_devices(), best_gpu()
    if arguments.json:
        devices = [asdict(device) | {"experimental": device.experimental} for device in found]
        print(json.dumps({"devices": devices, "gpu": gpu}))
    else:
        _show(found, gpu)
    return 0


def _show(found: list[Device], gpu: str | None) -> None:
    table = Table()
    table.add_column("device", no_wrap=True)
    table.add_column("hardware")  # of which some have long names
    table.add_column("memory", no_wrap=True)
    table.add_column("free", justify="right", no_wrap=True)
    for each in found:
        if each.free_bytes is not None:
            size = f"{each.free_bytes >> 20:,} MiB"
            name = f"{each.name} (experimental)" if each.experimental else each.name
            table.add_row(name, each.hardware, each.memory, size)
    console = Console()
    console.print(table)
    console.print(f"gpu is {gpu or 'the cpu, as no GPU can be used'}", highlight=False)
    for each in found:
        if each.reason is not None:
            line = f"{each.name} cannot be used: {each.reason}"
            if console.is_terminal:  # no word of a command is broken
                line = fill(
                    line, console.width, subsequent_indent="  ", break_long_words=False,
                    break_on_hyphens=False,
                )  # fmt: skip
            console.print(line, markup=False, highlight=False, soft_wrap=True)
