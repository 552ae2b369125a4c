"""Tells targets apart by their weights, whatever precision and format these are stored in.

A head drafts well for the model that it was trained for and hardly at all for another of the same
sizes. Matrices differ by precision, and norms never: the last norm's weight is what tells.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from edgespec.bundle import LOGITS, Role
from edgespec.export.arrays import Floats
from edgespec.models import Checkpoint


def weights_name(norm: Floats) -> str:
    """Returns a name of a target's weights.

    Args:
        norm: [H] what the rows behind its last layer are multiplied by, once they are normalized.
    """
    return hashlib.sha256(norm.astype(np.float16).tobytes()).hexdigest()[:16]


def checkpoint_weights(checkpoint: Checkpoint) -> str:
    """Returns the name of a checkpoint's weights."""
    norm = checkpoint.decoder.norm
    values = checkpoint.tensors.read(norm.weight) if norm.weight else np.ones(norm.size, np.float32)
    weight: Floats = (values + np.float32(norm.offset)) * np.float32(norm.factor)
    return weights_name(weight)


def bundle_weights(target: Role, folder: Path) -> str:
    """Returns the name of the weights of a bundle's target."""
    graph = onnx.load(str(folder / target.native.graph), load_external_data=False).graph
    made = {name: node for node in graph.node for name in node.output}
    name = final_norm(made).input[1]
    return weights_name(
        next(numpy_helper.to_array(each) for each in graph.initializer if each.name == name)
    )


def final_norm(made: dict[str, NodeProto]) -> NodeProto:
    """Returns the last norm of a target's graph, by its nodes under the names of their outputs."""
    projection = made[made[LOGITS].input[0]]
    return made[projection.input[0]]
