"""Token trees: proposed by a draft, and verified by one pass of the target.

The root is the pending token (emitted, not yet cached). It is a row of every verification but not a
node, so a tree of n nodes costs n + 1 rows: row 0 is the root and row i + 1 is node i. A chain is a
tree without siblings. Verifying a tree in one pass under an ancestor mask: Miao et al., SpecInfer,
2023.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

ROOT = -1
"""Parent of the nodes directly below the pending token."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A set of continuations that share their beginnings.

    Attributes:
        tokens: [n] int64, the token of each node.
        parents: [n] int64, the node above each node, `ROOT` for children of the root. A parent
            comes before its children, and siblings have distinct tokens.
        depths: [n] int64, the number of tokens from the root: its children have depth 1.

    Raises:
        ValueError: On arrays of different lengths, a parent that does not come before its child,
            or two siblings with the same token.
    """

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int64]
    depths: npt.NDArray[np.int64] = field(init=False)
    _nodes: dict[tuple[int, int], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tokens = np.array(self.tokens, dtype=np.int64)
        parents = np.array(self.parents, dtype=np.int64)
        if tokens.ndim != 1 or tokens.shape != parents.shape:
            raise ValueError(f"tokens {tokens.shape} and parents {parents.shape} must be equal [n]")
        depths: list[int] = []
        nodes: dict[tuple[int, int], int] = {}
        edges = zip(parents.tolist(), tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(edges):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}, which does not come before it")
            if nodes.setdefault((parent, token), node) != node:
                raise ValueError(f"two children of node {parent} have token {token}")
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        for name, array in (
            ("tokens", tokens),
            ("parents", parents),
            ("depths", np.array(depths, dtype=np.int64)),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "_nodes", nodes)

    @classmethod
    @cache
    def empty(cls) -> TokenTree:
        """The tree without nodes: verifying it is plain decoding."""
        return cls.chain(())

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> TokenTree:
        """Returns the tree with a single branch."""
        line = np.array(list(tokens), dtype=np.int64)
        return cls(line, np.arange(line.size, dtype=np.int64) - 1)

    def __len__(self) -> int:
        return self.tokens.size

    def find_child(self, node: int, token: int) -> int | None:
        """Returns the child of `node` (`ROOT` for the root) with this token, or None."""
        return self._nodes.get((node, token))

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root's child down to `node`; empty for `ROOT`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def ancestor_mask(self) -> npt.NDArray[np.bool_]:
        """Returns which row may attend to which.

        Returns:
            [n + 1, n + 1] bool: row 0 is the root; row i + 1 sees the root, the ancestors of node
            i, and itself.
        """
        size = len(self) + 1
        rows = [1]  # one integer per row, bit j for row j: much faster than many small arrays
        for row, parent in enumerate(self.parents.tolist(), start=1):
            rows.append(rows[parent + 1] | 1 << row)
        packed = b"".join(bits.to_bytes(-(-size // 8), "little") for bits in rows)
        columns = np.frombuffer(packed, np.uint8).reshape(size, -1)
        mask = np.unpackbits(columns, axis=1, count=size, bitorder="little")
        return mask.view(np.bool_)
