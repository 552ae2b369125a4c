"""A draft head on disk: its files, its description, and what it must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.formats.safetensors_folder import SafetensorsFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edgespec.bundle import PoolShape
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.heads.assistant import Assistant
    from edgespec.models.heads.block_head import BlockHead
    from edgespec.models.heads.head import Head


@dataclass(frozen=True)
class TargetSizes:
    """What a head must agree with.

    Attributes:
        layers: number of the target's layers.
        hidden_size: size of its hidden rows.
        vocab_size: number of rows of its embedding.
        tokens: number of its tokenizer's ids, without padding.
        inv_freq: [head_dim / 2] its rotation, in radians per position; see `Rope`.
        pools: its layers with keys and values of their own.
        weights: finds the name of its weights, see `export/heads/identity.py`; None: nobody knows.
    """

    layers: int
    hidden_size: int
    vocab_size: int
    tokens: int
    inv_freq: tuple[float, ...]
    pools: tuple[PoolShape, ...] = ()
    weights: Callable[[], str] | None = None


@dataclass(frozen=True)
class HeadFiles:
    """Where a head of its own lies.

    Attributes:
        path: The folder, or the GGUF file.
        fields: The config.
        gguf: The tensors of a GGUF file; None: they are those of the folder.
    """

    path: Path
    fields: ConfigFields
    gguf: TensorSource | None = None

    def tensors(self, named: Callable[[str], str] = str) -> TensorSource:
        """Returns the tensors, those of a folder under other names."""
        return SafetensorsFolder(self.path, named) if self.gguf is None else self.gguf


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head's description and its weights, which stay on disk until they are read.

    Attributes:
        path: the folder.
        head: the description; every tensor that it names exists in its shape.
        tensors: the weights.
        ids: [tokens that it can propose] int64, the target's id of each output.
        model: the config of the model that its layer is like; None: it has one of its own.
    """

    path: Path
    head: Head | BlockHead | Assistant
    tensors: TensorSource
    ids: NDArray[np.int64]
    model: ConfigFields | None = None


def check_parts(
    tensors: TensorSource, names: Iterable[str], head: str, remedy: str = "use one without it"
) -> None:
    """Refuses tensors that are no part of a head.

    Args:
        tensors: All tensors, for messages.
        names: Those that are none.
        head: What kind of head it is, for messages.
        remedy: What to do about it.

    Raises:
        UnsupportedModelError: There are some.
    """
    for name in sorted(names):
        raise UnsupportedModelError(
            f"{tensors.place(name)}: {name} belongs to no part of {head} that is implemented: "
            f"{remedy}"
        )


def check_weights(fields: ConfigFields, target: TargetSizes) -> None:
    """Checks that a head that says what it was trained for was trained for this target.

    Raises:
        CheckpointError: It was trained for another one.
    """
    wanted = fields.group("edgespec").get("weights")
    if wanted is None or target.weights is None:
        return
    found = target.weights()
    if wanted != found:
        base = fields.group("edgespec").get("base_model")
        raise CheckpointError(
            f"{fields.source}: the head was trained for {base}, whose weights are {wanted}, and "
            f"this target's are {found}: use a head of this model, or train one by `edgespec "
            "train-draft`"
        )


def check_agrees(fields: ConfigFields, sizes: Mapping[str, int]) -> None:
    """Checks that fields, where they are given, have the target's values.

    Raises:
        CheckpointError: One has another.
    """
    for name, size in sizes.items():
        if fields.get(name) not in (None, size):
            raise fields.invalid(name, f"must be the target's, {size}: it is another's")
