"""What a role is made of, as its manifest tells: the sizes that its memory depends on."""

from __future__ import annotations

import math

import numpy as np

from edgespec.bundle import Bundle
from edgespec.runtime.engines import StageSizes

# No known decoder's MLP is wider than this many hidden sizes.
_WIDEST_MLP = 8


def stage_sizes(bundle: Bundle, name: str) -> StageSizes:
    """What a role is made of, from its manifest."""
    role = bundle.manifest.roles[name]
    data = sum(bundle.manifest.files[stage.data].size for stage in role.stages)
    embedding = role.vocab_size * role.hidden_size
    attention = 2 * role.hidden_size * role.head_dim * (role.heads + role.kv_heads)
    per_layer = (role.parameters - embedding) // role.layers - attention
    intermediate = max(per_layer // (3 * role.hidden_size), 1)
    # The manifest does not say it, but a projection of its own leaves a trace.
    tied = "lm_head.weight" not in role.quantization_error and (
        intermediate <= _WIDEST_MLP * role.hidden_size
    )
    if not tied:
        intermediate = max(intermediate - role.vocab_size // (3 * role.layers), 1)
    embedding_bytes = data * embedding // role.parameters
    return StageSizes(
        matmul_bytes=data if tied else data - embedding_bytes,
        embedding_bytes=embedding_bytes,
        tied=tied,
        precision=role.precision.weights,
        block_size=role.precision.block_size,
        layers=role.layers,
        hidden=role.hidden_size,
        intermediate=intermediate,
        heads=role.heads,
        kv_width=role.kv_heads * role.head_dim,
        kv_bytes={"fp16": 2, "fp32": 4}[role.precision.kv],
        vocab=role.vocab_size,
        result_bytes=sum(
            np.dtype(output.dtype).itemsize * math.prod(map(int, output.shape[1:]))
            for output in role.stages[-1].results
        ),
    )
