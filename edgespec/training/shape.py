"""The sizes of a draft head, and the layout in which heads are stored."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from edgespec.errors import InputError
from edgespec.system.files import replaced

WEIGHTS, CONFIG = "model.safetensors", "config.json"

_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True)
class HeadShape(ABC):
    """The sizes of a head; a kind adds its own.

    Attributes:
        hidden: H, the target's hidden size.
        intermediate: width of the head's MLP.
        heads: number of attention heads.
        kv_heads: number of key and value heads.
        head_dim: width of a head.
        taps: layers of the target whose entering rows are the features; the number of layers means
            the rows that enter the final norm.
        vocabulary: number of tokens of the target.
        draft_vocabulary: number of tokens that the head may propose.
        eps: epsilon of its norms.
        theta: base of its rotary position embedding.
        context: longest text in tokens.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: tuple[int, ...]
    vocabulary: int
    draft_vocabulary: int
    eps: float
    theta: float
    context: int

    @property
    def features(self) -> int:
        """F, the width of the features."""
        return self.hidden * len(self.taps)

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated, the first ones."""
        return self.head_dim

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The number of weights that a call reads, without those of norms."""

    @abstractmethod
    def call_rows(self, tokens: int) -> list[int]:
        """Returns the rows of each call that drafting so many tokens takes."""

    @abstractmethod
    def layout(self, tokens: int, base: str) -> dict[str, Any]:
        """Returns the content of config.json.

        Args:
            tokens: tokens that it drafts at once.
            base: name of the target.
        """

    def sizes(self) -> dict[str, Any]:
        """Returns the fields of config.json that all kinds have."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "max_position_embeddings": self.context,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
        }


def speculator(kind: str, tokens: int, base: str) -> dict[str, Any]:
    """Returns the fields of config.json by which tools that read `speculators` know what to do.

    Args:
        kind: the kind of head.
        tokens: tokens that it drafts at once.
        base: name of the target.
    """
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": base, "architectures": []},
        },
    }


def check_taps(taps: tuple[int, ...], layers: int) -> None:
    """Checks the numbers of tapped layers.

    Raises:
        InputError: if they are not distinct, ascending and in range.
    """
    if not taps or list(taps) != sorted({tap for tap in taps if 0 <= tap <= layers}):
        raise InputError(
            f"taps are {','.join(map(str, taps))}: give ascending layer numbers from 0 to {layers}"
        )


def rope_theta(inv_freq: Sequence[float]) -> float:
    """Returns the base of a rotary position embedding, by its frequencies, without any scaling.

    The two highest frequencies are scaled alike, or not at all, by all known kinds of scaling.
    """
    if len(inv_freq) < 2 or inv_freq[1] <= 0:
        return _DEFAULT_THETA
    rotated = sum(frequency != 0 for frequency in inv_freq)
    return float((inv_freq[0] / inv_freq[1]) ** rotated)


def save_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    """Writes a head's folder; each of the two files is replaced as a whole.

    Raises:
        InputError: if it cannot be written.
    """
    with replaced(folder / WEIGHTS) as partial:
        save_file(dict(tensors), partial, metadata={"format": "pt"})
    with replaced(folder / CONFIG) as partial:
        partial.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
