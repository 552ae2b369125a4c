"""Describes a draft head that reads its target's own keys and values (Gemma 4: Google, 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import DEFAULT_ROPE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Linear, Shapes
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention


@dataclass(frozen=True)
class Clusters:
    """Tokens in clusters of equal size, of which a row scores only those of the likeliest ones.

    Attributes:
        centroids: [hidden] to [clusters], how likely each is.
        chosen: number of clusters whose tokens are scored.
        ordering: [vocab_size] int64, tokens, cluster after cluster.
    """

    centroids: Linear
    chosen: int
    ordering: NDArray[np.int64]


@dataclass(frozen=True)
class Assistant:
    """A draft head of several layers that has no keys and values: it reads those of its target.

    All of its rows stand at the same position, behind what the target has read, and see all of
    that. A row reads the embedding of a token and, side by side, the row of the target's last norm
    that predicted it; deeper in a draft, what the head itself gave in its place.

    Attributes:
        architecture: name of its form, gemma4_assistant.
        taps: number of the target's layers alone: the rows that enter its last norm.
        decoder: its layers, whose attentions name the target's layer that they read as `source`,
            its last norm and its output projection; of clusters, the projection's rows are in
            their order.
        before: [2 * width of the target] to [hidden].
        after: [hidden] to [width of the target], of what its last norm gives: what deeper rows
            read.
        clusters: which tokens are scored; None: all.
    """

    architecture: str
    taps: tuple[int, ...]
    decoder: Decoder
    before: Linear
    after: Linear
    clusters: Clusters | None

    @property
    def depth(self) -> int:
        """Number of its layers."""
        return len(self.decoder.layers)

    @property
    def attention(self) -> Attention:
        """The attention of its first layer."""
        return self.decoder.attentions[0]

    @property
    def lm_head(self) -> Linear:
        """Its output projection."""
        return self.decoder.lm_head

    @property
    def hidden_size(self) -> int:
        """Size of the rows of its layers."""
        return self.decoder.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of the target's tokens."""
        return self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Number of positions that it was trained for."""
        return self.decoder.context_length

    @property
    def rope(self) -> Rope:
        """The rotation table of its layers with a window; `decoder` has the other one."""
        return self.decoder.ropes[DEFAULT_ROPE]

    def tensors(self) -> Shapes:
        """Returns names and shapes of all tensors."""
        parts = [self.before, self.after]
        if self.clusters is not None:
            parts.append(self.clusters.centroids)
        own: Shapes = {name: shape for part in parts for name, shape in part.tensors().items()}
        return own | self.decoder.tensors()
