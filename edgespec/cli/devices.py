"""`edgespec devices`: what this machine can run models on, and what is missing for the rest."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from edgespec.runtime.devices import Device


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Print the devices.

    Raises:
        DeviceError: if there are two distributions of ONNX Runtime, so that neither can be trusted.
    """
    from edgespec.runtime.devices import find_devices
    from edgespec.runtime.engines import best_gpu, require_one_distribution

    require_one_distribution()
    found, gpu = find_devices(), best_gpu()
    if arguments.json:
        print(json.dumps({"devices": [asdict(device) for device in found], "gpu": gpu}))
    else:
        _show(found, gpu)
    return 0


def _show(found: list[Device], gpu: str | None) -> None:
    table = Table("device", "hardware", "memory")
    table.add_column("free", justify="right")
    for each in found:
        if each.free_bytes is not None:
            size = f"{each.free_bytes >> 20:,} MiB"
            table.add_row(each.name, each.hardware, each.memory, size)
    console = Console()
    console.print(table)
    console.print(f"gpu is {gpu or 'the cpu, as no GPU can be used'}", highlight=False)
    for each in found:
        if each.reason is not None:  # a line each, so that its command can be copied
            line = f"{each.name} cannot be used: {each.reason}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
