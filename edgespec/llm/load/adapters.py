"""Adapters that are loaded beside a model, and which of them add to a text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle import Bundle
from edgespec.errors import CheckpointError, InputError, did_you_mean
from edgespec.llm.load.adapter_files import AdapterFile
from edgespec.runtime.arrays import Floats

if TYPE_CHECKING:
    from edgespec.models.adapters.updates import LowRankUpdate
    from edgespec.runtime.engines.adapted import AdaptableMatrix, AdaptedMatrix
    from edgespec.runtime.sequences.adapters import Adapters


@dataclass(frozen=True)
class AdapterSet:
    """The adapters of a model.

    Attributes:
        files: what was loaded, by the numbers that graphs know adapters by.
        digests: hashes of what each adds.
        matrices: what they add, see `adapted`.
    """

    files: Sequence[AdapterFile] = ()
    digests: Sequence[str] = ()
    matrices: Mapping[str, AdaptedMatrix] = field(default_factory=dict)

    @classmethod
    def load(cls, bundle: Bundle, files: Sequence[AdapterFile]) -> AdapterSet:
        """Loads adapters of a bundle's target.

        Raises:
            CheckpointError: if an adapter is damaged, not supported, or not one of the model.
            InputError: if two have one name.
        """
        if not files:
            return cls()
        from edgespec.models.adapters.opening import arranged, open_adapter
        from edgespec.runtime.engines.adapted import adaptable  # loads the onnx package

        names = [each.name for each in files]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two adapters have the name {twice!r}: rename one")
        places = adaptable(bundle.path / bundle.target.native.graph)
        columns = {name: each.columns for name, each in places.items()}
        opened = [open_adapter(each.path) for each in files]
        updates = [arranged(each, bundle.target, columns) for each in opened]
        for each, own in zip(files, updates, strict=True):
            _require_widths(each, own, places)
        matrices = {
            name: _matrix([each.get(name) for each in updates], places[name].factor)
            for name in sorted(set().union(*updates))
        }
        return cls(files, [*map(_digest, updates)], matrices)

    def chosen(self, asked: Mapping[str, float] | None) -> Adapters:
        """Returns the adapters of a text.

        Args:
            asked: scales by name; None: those that the adapters were loaded with.

        Raises:
            InputError: if there is no adapter of such a name.
        """
        names = [each.name for each in self.files]
        for name in asked or {}:
            if name not in names:
                raise InputError(
                    f"adapter {name!r} is not loaded{did_you_mean(name, names)}: "
                    + (f"use {' or '.join(names)}" if names else "load the model with it (lora)")
                )
        scales = [each.scale if asked is None else asked.get(each.name, 0.0) for each in self.files]
        return tuple((number, scale) for number, scale in enumerate(scales) if scale)

    def key(self, adapters: Adapters) -> str:
        """Returns what tells texts with other adapters, or other scales, apart; empty: of none."""
        if not adapters:
            return ""
        told = "".join(f"{self.digests[number]}*{scale!r}+" for number, scale in adapters)
        return f"lora-{hashlib.sha256(told.encode()).hexdigest()}"


def _matrix(updates: Sequence[LowRankUpdate | None], factor: float) -> AdaptedMatrix:
    """Returns what all adapters add to a matrix; to the products of those that are None, zeros."""
    from edgespec.export.formats.tiles import tiles_of_floats
    from edgespec.runtime.engines.adapted import AdaptedMatrix

    some = next(each for each in updates if each is not None)
    rank = max(len(each.a) for each in updates if each is not None)
    a = np.zeros((len(updates), rank, some.a.shape[1]), np.float32)
    b = np.zeros((len(updates), len(some.b), rank), np.float32)
    for own_a, own_b, each in zip(a, b, updates, strict=True):
        if each is not None:
            own_a[: len(each.a)] = each.a
            own_b[:, : len(each.a)] = each.b * np.float32(factor)
    formats = _exact_format(a), _exact_format(b)
    tiles = [
        np.concatenate([tiles_of_floats(own, kind).reshape(-1) for own in values])
        for values, kind in zip((a, b), formats, strict=True)
    ]
    return AdaptedMatrix(rank, formats, (tiles[0], tiles[1]))


def _exact_format(values: Floats) -> str:
    """Returns the smallest format of floats that has these numbers."""
    words = values.view(np.uint32)
    if not (words & 0xFFFF).any():
        return "bf16"
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16).astype(np.float32)
    return "f16" if np.array_equal(halves, values) else "f32"


def _require_widths(
    file: AdapterFile, updates: Mapping[str, LowRankUpdate], places: Mapping[str, AdaptableMatrix]
) -> None:
    """Checks that an adapter reads rows as wide as the model's matrices do."""
    from edgespec.export.formats.tile_formats import TILE_FORMATS

    for name, each in updates.items():
        place = places[name]
        width = each.a.shape[1]
        kind = TILE_FORMATS[place.format]
        if -(-width // kind.unit) * kind.unit_bytes != place.tile_bytes:
            raise CheckpointError(
                f"{file.path}: {name} reads rows of {width}, and the model has others there: use "
                "an adapter of this model"
            )


def _digest(updates: Mapping[str, LowRankUpdate]) -> str:
    """Returns a hash of all that an adapter adds."""
    told = hashlib.sha256()
    for name, each in sorted(updates.items()):
        told.update(f"{name} {each.a.shape} {each.b.shape} ".encode())
        for matrix in (each.a, each.b):
            told.update(np.ascontiguousarray(matrix).data)
    return told.hexdigest()
