"""Simulated machines, described by numbers with sources; `engines/simulated.py` uses them."""

from __future__ import annotations

from edgespec.runtime.simulation.clock import Clock
from edgespec.runtime.simulation.machine import HOST, Machine, laptops, load
from edgespec.runtime.simulation.stated import StatedModel, as_stated

__all__ = ["HOST", "Clock", "Machine", "StatedModel", "as_stated", "laptops", "load"]
