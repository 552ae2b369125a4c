"""The kinds of draft heads that can be trained, by the options of a training."""

from __future__ import annotations

from typing import Any

import torch

from edgespec.bundle import Role
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.training.dflash import BlockShape, DFlash
from edgespec.training.drafting import HeadModule
from edgespec.training.dspark import DSpark
from edgespec.training.eagle3 import Eagle3, Eagle3Shape
from edgespec.training.options import DSPARK, GATED, PEAGLE, TrainingOptions
from edgespec.training.peagle import PEagle, PEagleShape
from edgespec.training.shape import rope_theta
from edgespec.training.target_graph import TargetGraph

_LAYERS, _MARKOV_RANK = 3, 128


def new_head(
    options: TrainingOptions, role: Role, tokenizer: Tokenizer, graph: TargetGraph, size: int
) -> HeadModule:
    """Returns a head that was not trained yet.

    Args:
        options: the options, with taps.
        role: the target.
        tokenizer: its tokenizer.
        graph: its graph.
        size: number of tokens that the head may propose.
    """
    sizes: dict[str, Any] = {
        "hidden": role.hidden_size,
        "intermediate": options.intermediate_size or 2 * role.hidden_size,
        "heads": role.heads,
        "kv_heads": role.kv_heads,
        "head_dim": role.head_dim,
        "taps": options.taps or (),
        "vocabulary": role.vocab_size,
        "draft_vocabulary": size,
        "eps": graph.eps,
        "theta": rope_theta(role),
        "context": role.context_length,
    }
    if not options.at_once:
        return Eagle3(Eagle3Shape(**sizes, gated=options.kind == GATED), options.depths)
    mask = _mask_token(role, tokenizer)
    embedded = torch.from_numpy(graph.embedding.rows([mask])[0])
    sizes |= {"layers": _LAYERS, "mask_token": mask}
    if options.kind == PEAGLE:
        return PEagle(PEagleShape(**sizes), options.depths, embedded)
    kind, rank = (DSpark, _MARKOV_RANK) if options.kind == DSPARK else (DFlash, 0)
    shape = BlockShape(**sizes, block=options.depths + kind.first, markov_rank=rank)
    return kind(shape, embedded)


def _mask_token(role: Role, tokenizer: Tokenizer) -> int:
    """Returns the last of the special tokens that end no text, or else the last token."""
    ends = {*role.eos_ids, tokenizer.eos_id, tokenizer.bos_id}
    return max(tokenizer.special_ids - ends, default=tokenizer.vocab_size - 1)
