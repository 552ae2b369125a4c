"""`edgespec devices`: the usable devices of this machine, and why others cannot be used."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING

from rich.table import Table

from edgespec.cli.consoles import HarmlessConsole
from edgespec.cli.terminal import tell

if TYPE_CHECKING:
    from rich.console import Console

    from edgespec.runtime.engines.portable import Device


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the devices."""
    from edgespec.runtime.kernels import kernel_name, lacking, missing_kernels

    console = HarmlessConsole()
    kernels = kernel_name()
    lacks = lacking()
    if not arguments.json:  # before libraries of devices are loaded
        used = lacks or "it lacks nothing that there are kernels for"
        _say(console, missing_kernels() or f"the cpu computes with kernels for {kernels}: {used}")

    from edgespec.runtime.engines.portable import best_gpu, find_devices

    found = find_devices()
    gpu = best_gpu()
    if arguments.json:
        devices = [asdict(device) for device in found]
        facts = {"devices": devices, "gpu": gpu, "kernels": kernels, "lacking": lacks}
        tell(json.dumps(facts))
    else:
        _show(console, found, gpu)
    return 0


def _show(console: Console, found: list[Device], gpu: str | None) -> None:
    table = Table()
    table.add_column("device", no_wrap=True)
    table.add_column("hardware")  # may wrap, since some names are long
    table.add_column("library")
    table.add_column("free memory", justify="right", no_wrap=True)
    for each in found:
        if each.reason is None:
            own = each.own_bytes
            free = "the host's" if own is None else f"{own >> 20:,} MiB"
            hardware = f"{each.hardware}{' (experimental)' * each.experimental}"
            table.add_row(each.name, hardware, each.version, free)
    console.print(table)
    _say(
        console,
        f"--device gpu runs on {gpu}"
        if gpu
        else "no GPU can be used: --device gpu runs on the CPU",
    )
    for each in found:
        if each.halves:
            _say(console, f"{each.name} computes in half precision where a model allows it")
        if each.layerwise:
            _say(console, f"{each.name} reads prompts with --gpu-layers, where that is faster")
        if each.reason is not None:
            _say(console, f"{each.name} cannot be used: {each.reason}")


def _say(console: Console, line: str) -> None:
    if console.is_terminal:  # words of a command are not broken
        line = fill(
            line,
            console.width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    console.print(line, highlight=False, soft_wrap=True)
    sys.stdout.flush()
