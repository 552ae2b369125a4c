"""What makes rows of pictures in Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.layers.elements import Norm
from edgespec.models.vision.grid import Merger, PatchWindows
from edgespec.models.vision.qwen_vl import EPS, MOST_SIDE, Qwen3VlTower, layer_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.vision.tower import TowerLayer


class Qwen25VlTower(Qwen3VlTower):
    """Describes the tower of Qwen2.5-VL (Bai et al., 2025).

    It has gated MLPs, windows in most layers, rotations alone for places, and RMS norms.
    """

    activation = "silu"
    sections = (16, 24, 24)
    in_blocks = True
    sizes: ClassVar[Mapping[str, object]] = {
        "depth": 32,
        "hidden_size": 3584,
        "hidden_act": activation,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
    }

    def bias(self) -> None:
        """Returns no name."""

    def places(self) -> None:
        """Returns nothing, since rotations tell places."""

    def windows(self, patch: int) -> PatchWindows:
        """Returns where patches of so many pixels a side do not see all others."""
        side = self.own.integer("window_size", most=MOST_SIDE) // (patch * self.factor)
        if not side:
            raise self.own.invalid(
                "window_size", f"must be {patch * self.factor} or more, the pixels of a row"
            )
        return PatchWindows(side, layer_numbers(self.own, "fullatt_block_indexes", [7, 15, 23, 31]))

    def layer(self, number: int) -> TowerLayer:
        """Returns a layer."""
        name = f"blocks.{number}"
        gate, up = (
            self.linear(f"{name}.mlp.{each}_proj", self.width, self.inner)
            for each in ("gate", "up")
        )
        down = self.linear(f"{name}.mlp.down_proj", self.inner, self.width)
        return replace(self.attending(name, up, down), gate=gate)

    def merger(self) -> Merger:
        """Returns what makes rows of patches behind the last layer."""
        norm = self.norm("merger.ln_q", self.width)
        return self.merging("merger", norm, "mlp.0", "mlp.2")

    def behind(self) -> tuple[int, ...]:
        """Returns no layers."""
        return ()

    def norm(self, name: str, size: int) -> Norm:
        """Returns a norm."""
        return Norm(f"{self.name}{name}.weight", size, EPS)
