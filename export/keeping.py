"""Which matrices of a quantized checkpoint are stored in the blocks of its file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgespec.bundle import Kept
from edgespec.export.formats.kept import Form, form_of
from edgespec.models import Decoder, TensorSource

_BITS = {"int4": 4, "int8": 8}


def kept_layers(tensors: TensorSource, names: Iterable[str], precision: str) -> tuple[Kept, ...]:
    """Returns the matrices of layers that their file holds in no more bits than were asked for.

    Args:
        tensors: the checkpoint's tensors.
        names: names of the matrices.
        precision: precision that was asked for; nothing is kept in other ones than int4 and int8.

    Raises:
        CheckpointError: if the file is damaged.
    """
    bits = _BITS.get(precision, 0)
    return _grouped("layers", {name: form_of(tensors, name, bits) for name in names})


def kept_vocabulary(tensors: TensorSource, decoder: Decoder, precision: str) -> tuple[Kept, ...]:
    """Returns the same for the output projection and the embedding, see `kept_layers`."""
    bits, head = _BITS.get(precision, 0), decoder.lm_head.weight
    found = _grouped("lm_head", {head: form_of(tensors, head, bits)})
    if decoder.tied:
        return found
    rows = decoder.embedding
    return found + _grouped("embedding", {rows: form_of(tensors, rows, bits)})


def _grouped(part: str, forms: dict[str, Form | None]) -> tuple[Kept, ...]:
    names: dict[Form, list[str]] = {}
    for name, form in forms.items():
        if form is not None:
            names.setdefault(form, []).append(name)
    return tuple(
        Kept(
            part,
            form.bits,
            form.block_size,
            "fp16" if form.scales is np.float16 else "fp32",
            form.zero_points,
            tuple(alike),
        )
        for form, alike in names.items()
    )
