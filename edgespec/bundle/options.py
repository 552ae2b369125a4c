"""The options with which a bundle is made, and a graph of it for a device."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.system.options import Options, explained, option

INT4 = "int4"
INT4_SMALL = "int4-small"
SOURCE = "source"
PRECISIONS = (INT4, INT4_SMALL, SOURCE, "int8", "fp16", "fp32")
STORED = (INT4, "int6", "int8", "fp16", "fp32")
"""The precisions in which a single matrix can be stored."""
KV_PRECISIONS = ("fp32", "fp16", "int8")


@explained
@dataclass(frozen=True)
class ExportOptions(Options):
    """The options of an export.

    Raises:
        InputError: if a value is not one of its choices.
    """

    precision: str | None = option(
        None,
        "precision of the target's weights; int4: 4 bits, and 6 for the vocabulary and for "
        "the matrices that need them most (of rows that are no multiple of 256 weights 5 and 8); "
        "int4-small: 4 bits for all, faster and less accurate; int8: close to the original, twice "
        "the size; source: quantized matrices as the checkpoint holds them, others in 8 bits",
        none="source if the checkpoint is quantized, else int4",
        choices=PRECISIONS,
        usual=True,
    )
    draft_precision: str | None = option(
        None,
        "precision of the draft's weights",
        none="the target's, or int4-small if that is int4 or source, but what a file has in up "
        "to 6 bits stays as it is; int8 for a head",
        choices=PRECISIONS,
    )
    lm_head_precision: str | None = option(
        None,
        "precision of the output projections and embeddings",
        none="that of the weights, int6 if that is int4, but for embeddings apart from the "
        "projection, or int8 if that is source",
        choices=STORED,
    )
    kv_precision: str | None = option(
        None,
        "precision of the KV caches",
        none="fp16, or fp32 if that is the weights'",
        choices=KV_PRECISIONS,
    )
    skip_sets: tuple[str, ...] = option(
        (),
        "sublayers of the target that each layer-skip draft leaves out, written as 4-6 for "
        "layers, 4a or 4m for an attention or MLP, with commas between them",
    )
    overwrite: bool = option(False, "replace an existing bundle or empty folder")

    def __post_init__(self) -> None:
        super().__post_init__()


@dataclass(frozen=True)
class GraphForm:
    """What a portable graph is made of, by what its device computes; see docs/graph.md.

    Attributes:
        accuracy: `accuracy_level` of products in blocks: 4, which rounds activations to 8 bits, is
            by far the fastest on CPUs; 0 is for GPUs.
        half: True: all weights are rounded to half precision, in plain products, as NPUs want it;
            None: floats are in half precision where that is exact; False: nothing is, nor caches,
            since the device has no such numbers.
        fused: None: standard operators and products in blocks alone. Else several of them are one
            of ONNX Runtime's own, as far as the device computes them: `float16` and `float32`,
            caches of these numbers; `norms` of queries and keys, `sinks`, and `soft_cap`, which
            attention does besides; `recurrence`, layers with states; `halves`, all, and fast, in
            half precision: the graph has that form, too, if `half` is None and it can.
    """

    accuracy: int
    half: bool | None = None
    fused: frozenset[str] | None = None

    def fuses(self, *parts: str) -> bool:
        """Whether fused operators do all of these."""
        return self.fused is not None and self.fused.issuperset(parts)
