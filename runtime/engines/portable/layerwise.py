"""Layers of a target that lie on the host, computed on a GPU one after the other.

A prompt's rows are worth the copy of a layer's weights, as they are in llama.cpp. Keys and values
of the rows come back to the host's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.portable.device import DeviceRunner, Gpu
from edgespec.runtime.engines.portable.file import GraphFile
from edgespec.runtime.engines.portable.graph import PortableGraph
from edgespec.runtime.engines.portable.pools import caches_of

_ENTERING, _LEAVING = "entering.0", "entering.1"
_POOLS = ("pool.", "scales.")
_LEVELS = 127  # of a cache of 8 bits, on both sides of 0
_LEAST = 1e-30  # a head's row of smaller numbers is zeros there

Feeds = Mapping[str, Array]
"""Inputs of a native graph by name, among them the pools."""


class OneLayerGraph(PortableGraph):
    """The graph of layers that are alike, whose weights are inputs.

    Args:
        device: see `PortableGraph`.
        file: likewise; of one layer, with its weights apart.
        runner: likewise.
        rows: likewise.

    Raises:
        DeviceError: if the layer has no pool of keys and values, several, or states.
    """

    def __init__(
        self, device: str, file: GraphFile, runner: DeviceRunner, rows: Sequence[int]
    ) -> None:
        super().__init__(device, file, runner, rows)
        if len(file.pools) != 1 or file.recurrent:
            raise DeviceError(f"{file.path}: a layer has states, or no keys of its own")
        [(self._name, self._pool)] = file.pools.items()
        self._arrays: dict[str, Any] = {}
        self._slots = 0
        self._weights: Mapping[str, Any] = {}

    def computed(
        self, weights: Mapping[str, Any], held: Array, feeds: Feeds
    ) -> tuple[Floats, Array]:
        """Computes a layer.

        Args:
            weights: its weights, tensors on the device.
            held: [2, kv_heads, P, dim], the keys and values that rows may see.
            feeds: inputs of the native graph, with these in the first slots and the rows' behind.

        Returns:
            The rows behind the layer [S, hidden_size], and their keys and values
            [2, kv_heads, S, dim].
        """
        first = held.shape[2]
        slots = [*range(first + len(feeds["write"]))]
        self._make_slots(len(slots))
        for each in caches_of(self._arrays):
            each.places.free(np.arange(self._slots))
        if first:
            rows = held.astype(self._pool.dtype, copy=False)
            self.write(self._arrays, slots[:first], 2, {self._name: rows})
        self._weights = weights
        found = self({**feeds, **self._arrays})
        return found[_LEAVING], self.read(self._arrays, slots[first:], 2)[self._name]

    def _make_slots(self, count: int) -> None:
        """Makes room for the rows of a layer."""
        if count > self._slots:
            slots = self.capacity(self._slots, count)
            shape = 2, self._pool.heads, slots, self._pool.dim
            self.resize(self._arrays, {self._name: (shape, self._pool.dtype.type)})
            self._slots = slots

    def _pools(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """See `PortableGraph`: weights are bound as pools are, to where they lie."""
        return super()._pools(feeds) | dict(self._weights)


@dataclass(frozen=True, eq=False)
class HostLayer:
    """A layer whose weights and pool lie on the host.

    Attributes:
        number: its number.
        graph: that of layers like it.
        weights: what the graph is given of it, by name.
        key_scale: [kv_heads, head_dim], what keys are multiplied by in a pool of 8 bits; None:
            nothing.
    """

    number: int
    graph: OneLayerGraph
    weights: Mapping[str, Array]
    key_scale: Array | None

    def held(self, feeds: Feeds) -> Array:
        """Returns keys and values of the slots that a call's rows may see."""
        slots = feeds["context"]
        rows: Array = feeds[f"pool.{self.number}"][:, :, slots]
        scales = feeds.get(f"scales.{self.number}")
        if scales is None:
            return rows
        rows = rows * scales[:, :, slots, None]
        if self.key_scale is not None:
            rows[0, :, :, : self.key_scale.shape[1]] /= self.key_scale[:, None]
        return rows

    def keep(self, feeds: Feeds, rows: Array) -> None:
        """Writes keys and values of a call's rows to their slots, as `TreeAttention` does."""
        slots = feeds["write"]
        pool = feeds[f"pool.{self.number}"]
        scales = feeds.get(f"scales.{self.number}")
        if scales is None:
            pool[:, :, slots] = rows
            return
        rows = rows.astype(np.float32)
        if self.key_scale is not None:
            rows[0, :, :, : self.key_scale.shape[1]] *= self.key_scale[:, None]
        largest = abs(rows).max(-1)
        some = largest >= _LEAST
        scales[:, :, slots] = np.where(some, largest / _LEVELS, 0)
        inverse = np.divide(_LEVELS, largest, out=np.zeros_like(largest), where=some)
        pool[:, :, slots] = np.rint(rows * inverse[..., None])


class LayerwiseGraph:
    """A target's first layers on a GPU, called like the native graph of them.

    Args:
        gpu: the device.
        entering: gives the rows that enter the first layer, as `entering.0`.
        layers: the layers, the first one first.
        told: names of the rows that are returned, `entering.L`.
    """

    def __init__(
        self,
        gpu: Gpu,
        entering: Callable[[Feeds], Mapping[str, Floats]],
        layers: Sequence[HostLayer],
        told: Collection[str],
    ) -> None:
        self._gpu = gpu
        self._entering = entering
        self._layers = layers
        self._told = told
        self._tensors: dict[tuple[object, ...], Any] = {}

    def __call__(self, feeds: Feeds) -> dict[str, Floats]:
        """Makes these layers' part of a pass, and writes to their pools.

        Raises:
            DeviceError: if the device fails.
        """
        held = len(feeds["context"])
        end = held + len(feeds["write"])
        there = {name: each for name, each in feeds.items() if not name.startswith(_POOLS)}
        there["context"] = np.arange(held, dtype=np.int32)
        there["write"] = np.arange(held, end, dtype=np.int32)
        rows = self._entering(feeds)[_ENTERING]
        found = {_ENTERING: rows} if _ENTERING in self._told else {}
        for each in self._layers:
            weights = self._gpu.call(self._copied, each.weights)
            there[_ENTERING] = rows
            rows, new = each.graph.computed(weights, each.held(feeds), there)
            each.keep(feeds, new)
            if (name := f"entering.{each.number + 1}") in self._told:
                found[name] = rows
        return found

    def _copied(self, weights: Mapping[str, Array]) -> dict[str, Any]:
        """Copies a layer's weights to where those of the layer before lay, if they fit there."""
        found = dict[str, Any]()
        for name, array in weights.items():
            key = name, array.shape, array.dtype
            if key not in self._tensors:
                self._tensors[key] = self._gpu.empty(array.shape, array.dtype)
            found[name] = self._tensors[key]
            found[name].update_inplace(np.asarray(array))
        return found
