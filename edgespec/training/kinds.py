"""The kinds of draft heads that can be trained, by the options of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from edgespec.bundle import Role
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.training.dflash import BlockShape, DFlash
from edgespec.training.drafting import HeadModule
from edgespec.training.dspark import DSpark
from edgespec.training.eagle3 import Eagle3, Eagle3Shape
from edgespec.training.mtp import Mtp, MtpShape
from edgespec.training.options import DFLASH, DSPARK, GATED, MTP, PEAGLE, TrainingOptions
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
        "theta": rope_theta(role.inv_freq),
        "context": role.context_length,
    }
    if options.at_once:
        sizes |= {"layers": _LAYERS, "mask_token": _mask_token(role, tokenizer)}
    if options.kind == DFLASH:
        sizes |= {"block": options.depths + DFlash.first}
    if options.kind == DSPARK:
        sizes |= {"block": options.depths + DSpark.first, "markov_rank": _MARKOV_RANK}
    if options.kind == GATED:
        sizes |= {"gated": True}
    return module_of(options, sizes, graph)


def module_of(options: TrainingOptions, sizes: Mapping[str, Any], graph: TargetGraph) -> HeadModule:
    """Returns a head of the kind that the options name.

    Args:
        options: the options.
        sizes: the fields of its shape.
        graph: the target's graph.
    """
    if options.kind == MTP:
        return Mtp(MtpShape(**sizes), options.depths, torch.from_numpy(graph.norm))
    if not options.at_once:
        return Eagle3(Eagle3Shape(**sizes), options.depths)
    mask = torch.from_numpy(graph.embedding.rows([sizes["mask_token"]])[0])
    if options.kind == PEAGLE:
        return PEagle(PEagleShape(**sizes), options.depths, mask)
    kind = DSpark if options.kind == DSPARK else DFlash
    return kind(BlockShape(**sizes), mask)


def _mask_token(role: Role, tokenizer: Tokenizer) -> int:
    """Returns the last of the special tokens that end no text, or else the last token."""
    ends = {*role.eos_ids, tokenizer.eos_id, tokenizer.bos_id}
    return max(tokenizer.special_ids - ends, default=tokenizer.vocab_size - 1)
