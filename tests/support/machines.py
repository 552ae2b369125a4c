"""Small and fast machines to simulate."""

from __future__ import annotations

import json
from copy import deepcopy


def figure(value):
    return {"value": value, "source": "made up for a test"}


def curve(**ms):
    """Milliseconds by rows, as in `curve(r1=2, r8=3)`."""
    return {"ms": {rows[1:]: each for rows, each in ms.items()}, "source": "made up for a test"}


def model(layers, **sizes):
    usual = {
        "name": f"a model of {layers} layers", "layers": layers, "hidden": 512,
        "intermediate": 2048, "heads": 8, "kv_heads": 2, "head_dim": 64, "vocab": 32000,
        "tied": False, "source": "made up for a test",
    }  # fmt: skip
    return usual | sizes


def device(**more):
    return {"chip": "made up", "overhead_us": figure(100)} | more


def machine(cpu, others=(), shared=1.0, layers=(8, 2)):
    """Returns the JSON content of a machine.

    Args:
        cpu: curves of the roles on the CPU.
        others: curves of further devices, by name; a `gpu` has memory of its own.
        shared: factor by which all devices slow each other down.
        layers: number of layers of the target and of the draft.
    """
    devices = {"cpu": device(gib=figure(8), curves=deepcopy(cpu))}
    for name, curves in dict(others).items():
        own = {"gib": figure(0.5)} if name == "gpu" else {}
        devices[name] = device(curves=deepcopy(curves), **own)
    return {
        "description": "a machine for tests",
        "models": {"target": model(layers[0]), "draft": model(layers[1])},
        "devices": devices,
        "shared": [{"devices": list(devices), "slowdown": figure(shared)}],
    }


def saved(folder, contents, name="machine"):
    """Save a machine; returns the file's path as text."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(contents), encoding="utf-8")
    return str(file)
