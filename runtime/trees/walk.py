"""The verification walk: one rule for greedy and sampled text, all trees and all draft sources.

The target's choice after a branch depends on that branch alone (arg-max, or arg-max under noise
keyed by seed and position), never on what was drafted. So following the tree while it holds the
target's own choice yields exactly the tokens of plain decoding, and the first choice that the tree
does not hold is an extra token at no cost. Walking a tree this way for greedy text: Miao et al.,
SpecInfer, 2023; position-keyed noise makes the same walk exact for sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.runtime.trees.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        nodes: The accepted nodes, from the root's child down.
        tokens: The new tokens: those of `nodes`, then the target's extra token. If an accepted node
            is a stop token, the text ends there without an extra token.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


def walk(
    tree: TokenTree, choose: Callable[[int, list[int]], int], stop_ids: frozenset[int]
) -> Verdict:
    """Follow the target's own choices down the tree.

    Args:
        tree: The draft; may be empty.
        choose: `choose(row, branch)` returns the target's choice after `row` of the verification
            pass (0 is the root, i + 1 node i); `branch` holds the tokens below the root that lead
            there. Called only along the walk, so rows that it does not reach cost nothing.
        stop_ids: Tokens that end the text. The one that ends it is the last of the verdict.

    Returns:
        At least one token, and exactly those that plain decoding gives.
    """
    node, nodes, tokens = ROOT, list[int](), list[int]()
    while True:
        token = choose(node + 1, tokens.copy())
        tokens.append(token)
        child = tree.find_child(node, token)
        if child is not None:
            nodes.append(child)
            node = child
        if child is None or token in stop_ids:
            return Verdict(tuple(nodes), tuple(tokens))
