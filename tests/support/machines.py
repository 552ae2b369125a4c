"""Machines to simulate, as small and fast as tests want them."""

from __future__ import annotations

import json
from copy import deepcopy


def figure(value):
    return {"value": value, "source": "made up for a test"}


def curve(**ms):
    """Milliseconds by rows, as `curve(r1=2, r8=3)`."""
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
    """What the JSON of a machine says.

    Args:
        cpu: curves of its roles.
        others: the same of further devices, by name; a `gpu` has memory of its own.
        shared: slowdown of all devices by one another.
        layers: of the target and the draft.
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
    """The JSON file's path, as text."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(contents), encoding="utf-8")
    return str(file)
