"""`edgespec doctor`: how near this machine and a model are to their limit, and what would help."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.arguments import add_options, given
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import waiting
from edgespec.llm.load.options import LoadOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS = 1.0  # in which memory is read by all threads, again by one, and integers are multiplied
_BUSY = 0.5  # load average a processor with which other programs disturb
_ONE_MODULE = 28e9  # bytes a second; more comes of two channels of DDR4
_NEAR, _FAR = 0.77, 0.55  # of memory's speed
_MOST_BITS = 6.6  # of a weight in int4, with a vocabulary in 8 bits
_POWER = Path("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="model whose passes are timed, named as for `edgespec run` (default: the machine "
        "alone is looked at)",
    )
    add_options(parser, LoadOptions, "threads")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Measures memory, and the passes of a model if one is given; prints what would help."""
    facts = _machine(arguments)
    if arguments.model is not None:
        facts |= _passes(arguments, facts)
        facts |= _places(arguments, facts)
    facts["advice"] = list(_advice(facts))
    if arguments.json:
        tell(json.dumps(facts))
        return 0
    tell(
        f"{facts['cpu']}: {facts['threads']} threads of {facts['cores']} cores, "
        f"kernels for {facts['kernels'] or 'no instruction set'}"
    )
    tell(
        f"memory is read with {facts['bandwidth'] / 1e9:.1f} GB/s by all threads, "
        f"{facts['bandwidth_of_one'] / 1e9:.1f} GB/s by one"
    )
    if facts["integer_rate"]:
        tell(f"integers are multiplied and added with {facts['integer_rate'] / 1e9:.0f} G/s")
    if "passes_ms" in facts:
        one = facts["passes_ms"][1]
        times = facts["passes_ms"]
        tell(
            f"a token takes {one:.1f} ms: its {facts['row_bytes'] / 1e9:.2f} GB alone take "
            f"{one * facts['memory_share']:.1f} ms from memory ({facts['memory_share']:.2f} of its "
            "speed)"
        )
        rows = ", ".join(f"{n} rows {each / one:.2f}" for n, each in times.items() if n > 1)
        tell(f"drafts are verified in passes over several rows, in times of one row: {rows}")
        if facts["prompt_share"]:
            tell(
                f"a prompt of {facts['prompt_rows']} tokens takes {facts['prompt_seconds']:.2f} s: "
                f"{facts['prompt_share']:.2f} of what the processor can multiply"
            )
        for line in _told_places(facts):
            tell(line)
    tell("what would make it faster:" if facts["advice"] else "nothing is known to be amiss")
    for line in facts["advice"]:
        tell(f"* {line}")
    return 0


def _machine(arguments: argparse.Namespace) -> dict[str, Any]:
    from edgespec.measuring.passes import integer_rate
    from edgespec.runtime.kernels import kernel_name, lacking, missing_kernels
    from edgespec.system.bandwidth import bandwidth
    from edgespec.system.environment import hardware
    from edgespec.system.machine import default_threads

    found = hardware()
    cores = default_threads()
    threads = LoadOptions(threads=arguments.threads).threads or cores
    with waiting("memory is read"):
        all_of_them = bandwidth(threads, _SECONDS)
        one = bandwidth(1, _SECONDS)
    kernels = kernel_name()
    return {
        **found,
        "threads": threads,
        "cores": cores,
        "kernels": kernels,
        "missing_kernels": missing_kernels(),
        "lacking": lacking(),
        "bandwidth": max(all_of_them, one),
        "bandwidth_of_one": one,
        "integer_rate": integer_rate(threads, _SECONDS) if kernels else None,
    }


def _passes(arguments: argparse.Namespace, machine: Mapping[str, Any]) -> dict[str, Any]:
    from edgespec.cli.models import chosen
    from edgespec.llm.llm import LLM, inside
    from edgespec.measuring.passes import (
        pass_seconds,
        prompt_products,
        prompt_seconds,
        row_bytes,
    )

    path = chosen(arguments)
    with (
        waiting("passes are timed"),
        LLM(path, draft="none", **given(arguments, LoadOptions)) as llm,
    ):
        model = inside(llm).engine.target
        passes = pass_seconds(model)
        rows, seconds = prompt_seconds(model)
        size = row_bytes(llm.bundle)
        target = llm.bundle.target
        rate = machine["integer_rate"]
        share = rows * prompt_products(target) / seconds / rate if rate else None
        return {
            "model": str(path),
            "passes_ms": {rows: round(1e3 * each, 2) for rows, each in passes.items()},
            "row_bytes": size,
            "memory_share": round(size / passes[1] / machine["bandwidth"], 3),
            "prompt_rows": rows,
            "prompt_seconds": round(seconds, 3),
            "prompt_share": None if share is None else round(share, 3),
            "bits": 8 * llm.bundle.role_size("target") / target.parameters,
            "has_draft": llm.bundle.draft is not None,
            "writes": target.writes,
        }


def _places(arguments: argparse.Namespace, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Times the models on the GPU, if there is one, and on the CPU beside it."""
    from edgespec.runtime.engines.portable import best_gpu

    if best_gpu() is None or not facts["writes"]:
        return {}
    from edgespec import bundle as bundles
    from edgespec.measuring.places import RoleTiming, expectations, timed_places

    threads = LoadOptions(**given(arguments, LoadOptions)).threads
    with waiting("passes are timed on the GPU"):
        found = [*timed_places(bundles.load(Path(facts["model"])), threads)]
    timed = [each for each in found if isinstance(each, RoleTiming)]
    return {
        "places": [asdict(each) for each in timed],
        "places_refused": [each for each in found if isinstance(each, str)],
        "expected": [asdict(each) for each in expectations(timed)],
    }


def _told_places(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields what would run where, and why."""
    from edgespec.measuring.places import RIGHT

    yield from facts.get("places_refused", ())
    for each in facts.get("places", ()):
        times = each["seconds"]
        rows = ", ".join(f"{rows} rows {1e3 * times[rows]:.1f}" for rows in times if rows > 1)
        line = f"the {each['role']} on {each['device']}: a token {1e3 * times[1]:.2f} ms"
        if each["queued"] is not None:
            line += f", and {1e3 * each['queued']:.2f} ms each that is queued behind it"
        yield f"{line}, {rows} ms" if rows else line
    for number, each in enumerate(facts.get("expected", ())):
        drafts = f"and the draft on {each['draft']}" if each["draft"] else "and no draft"
        best = "best: " if number == 0 else ""
        yield f"{best}the target on {each['target']} {drafts}: {each['rate']:.1f} tokens/s"
    if facts.get("expected"):
        yield f"if a draft's best token is right in {RIGHT:.0%} of all places; texts decide anew"


def _advice(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields what would make passes faster, what disturbs the measurement first."""
    if busy := facts["load_average"] > _BUSY * facts["usable_cpus"]:
        yield (
            f"other programs are busy (load {facts['load_average']} on {facts['usable_cpus']} "
            "processors): close them, and ask again; times here say little"
        )
    if power := _power():
        yield power
    if facts["missing_kernels"]:
        yield facts["missing_kernels"]
    elif facts["lacking"]:
        yield f"kernels for {facts['kernels']} are the best for this processor: {facts['lacking']}"
    if facts["threads"] < facts["cores"]:
        yield f"use all {facts['cores']} cores: leave --threads out"
    elif facts["usable_cpus"] < (facts["logical_cpus"] or 0):
        yield (
            f"this process may use {facts['usable_cpus']} of {facts['logical_cpus']} processors: "
            "allow it more, in the container's or the virtual machine's settings"
        )
    if facts["bandwidth"] < _ONE_MODULE and not busy:
        yield (
            "memory is slow: if it is one module, a second of the same size, in a slot of another "
            "channel, makes it twice as fast"
        )
    if "passes_ms" in facts:
        yield from _advice_on_model(facts, busy)


def _advice_on_model(facts: Mapping[str, Any], busy: bool) -> Iterator[str]:
    if facts["bits"] > _MOST_BITS:
        yield (
            f"its weights have {facts['bits']:.1f} bits: `edgespec export MODEL` (int4), or a "
            "GGUF file in Q4_K_M, reads fewer bytes a token"
        )
    if facts["memory_share"] < _FAR and not busy:
        yield "passes wait for arithmetic, not for memory: more cores or newer kernels would help"
    elif facts["memory_share"] > _NEAR and not busy:
        yield "a token alone is near the limit of memory: only drafts, or fewer bits, go beyond it"
    if not facts["has_draft"] and facts["writes"]:
        yield (
            "there is no draft model: `--draft MODEL`, a smaller one of the same family, is most "
            "of what drafts gain on new text"
        )


def _power() -> str | None:
    """Returns what saves power here at the cost of speed; None: nothing is known to."""
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is not None and battery.power_plugged is False:
        return "the computer runs on its battery: plug it in"
    try:
        preference = _POWER.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if preference in ("power", "balance_power"):
        return f"the power plan is {preference}: choose a faster one"
    return None
