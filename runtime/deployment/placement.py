"""Parses the placement of a target's layers, and finds the device of each stage from it.

An example is `0-7=onnxruntime:cpu,8-=openvino:cpu`: inclusive ranges of layers that together
contain every layer once. A range without an end goes to the model's first or last layer. The
embedding runs with the first layer, the head with the last. The device can change only where a
stage ends.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import groupby

from edgespec.bundle import Role
from edgespec.errors import InputError

GPU = "gpu"
"""The device name that `--gpu-layers` and the proposals of `edgespec plan` use."""

_PART = re.compile(
    r"(?:(?P<layer>\d{1,9})|(?P<first>\d{0,9})-(?P<last>\d{0,9}))=(?P<device>[^=\s]+)"
)


def parse(text: str, layers: int) -> tuple[str, ...]:
    """Parses a placement and returns the device of each layer.

    Args:
        text: the placement, see this module's docstring; blanks are ignored.
        layers: number of layers of the model.

    Raises:
        InputError: the text is not a placement, or a layer does not exist, is placed twice or is
            not placed.
    """
    found: list[str | None] = [None] * layers
    for part in "".join(text.split()).split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(
                f"place {text!r}: {part!r} is not LAYERS=DEVICE: write it as 0-7=cpu or 8-=gpu, "
                "with commas between"
            )
        first = int(match["layer"] or match["first"] or 0)
        last = int(match["layer"] or match["last"] or layers - 1)
        if max(first, last) >= layers:
            raise InputError(
                f"place {text!r}: there is no layer {max(first, last)}, the model has layers 0 to "
                f"{layers - 1}"
            )
        if first > last:
            raise InputError(f"place {text!r}: {part!r} ends before it starts: swap its ends")
        for layer in range(first, last + 1):
            if found[layer] is not None:
                raise InputError(f"place {text!r}: layer {layer} is placed twice: place it once")
            found[layer] = match["device"]
    placed = tuple(device for device in found if device is not None)
    if len(placed) < layers:
        raise InputError(
            f"place {text!r}: layer {found.index(None)} is not placed: cover 0 to {layers - 1}, "
            "each layer once"
        )
    return placed


def on_gpu(count: int, layers: int, rest: str) -> tuple[str, ...]:
    """Returns the device of each layer: GPU for the last `count` layers, `rest` for the others."""
    others = max(layers - count, 0)
    return (rest,) * others + (GPU,) * (layers - others)


def borders(role: Role) -> tuple[int, ...]:
    """Returns the layers, ascending, before which a stage ends and the device can change."""
    layout, starts = role.layout, (stage.start for stage in role.stages)
    between = (start for start in starts if 0 < start < layout.head)
    return tuple(layout.layer_of(start) for start in between if layout.starts_layer(start))


def stage_devices(role: Role, devices: Sequence[str]) -> tuple[str, ...]:
    """Returns the device of each stage, given the device of each layer.

    Raises:
        InputError: the device changes where no stage ends; the message lists where it could.
    """
    wanted = [layer for layer in range(1, role.layers) if devices[layer] != devices[layer - 1]]
    have = borders(role)
    missing = [layer for layer in wanted if layer not in have]
    if missing:
        cuts = f"only before layers {_listed(have)}" if have else "nowhere"
        raise InputError(
            f"the device cannot change before layer {_listed(missing)}: the bundle is cut {cuts}: "
            f"export it again with `--cut-layers {_listed(wanted, ',')}`"
        )
    # A stage that holds only the head runs on the device of the last layer.
    return tuple(devices[role.layout.layer_of(stage.start)] for stage in role.stages)


def describe(devices: Sequence[str]) -> str:
    """Returns the shortest placement text for the given device of each layer."""
    parts, first = [], 0
    for device, run in groupby(devices):
        end = first + len(list(run))
        last = "" if end == len(devices) else end - 1
        layers = first if last == first else f"{first}-{last}"
        parts.append(f"{layers}={device}")
        first = end
    return ",".join(parts)


def describe_stages(role: Role, devices: Sequence[str]) -> str:
    """Returns the placement text for the given device of each stage.

    A layer's device is that of its first sublayer.
    """
    starts, first = [stage.start for stage in role.stages], role.layout.first
    return describe([devices[bisect(starts, first(layer)) - 1] for layer in range(role.layers)])


def _listed(layers: Sequence[int], comma: str = ", ") -> str:
    return comma.join(map(str, layers))
