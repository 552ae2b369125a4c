"""What token trees whose rows share experts would spare, by the routing of a trained mixture.

    python benchmarks/small_mixture.py -o mixture --minutes 8
    python benchmarks/expert_trees.py mixture models/embedded/checkpoints/python-1m

A draft model makes trees behind places of held-out files. Their nodes are chosen by value alone
(`naive`), or by value for the expected cost of their rows and new experts: with each row's experts
known before the pass (`known`), or foretold by what its token chose last (`by token`).

A pass costs `base + row * rows + expert * (different experts a layer)`, in passes of one row.
Values are calibrated on half of the places, and the rest is counted. Nothing is timed, so other
programs have no influence. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from expert_routing import FIRST, LENGTH, Experts, Mixture, held_out
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

Floats = NDArray[np.float64]

_SEEN, _DEPTH, _KEPT, _WIDTH, _NODES = 100, 5, 6, 4, 24
_PLACES = 24  # of each text
# As measured with a random model of 1.07 B, and where experts are half of a pass or nearly all.
_COSTS = ((0.74, 0.07, 0.047), (0.35, 0.1, 0.1375), (0.1, 0.05, 0.2125))
_PRIOR = 16.0  # weight of the draft's own word, in edges


@dataclass
class Place:
    """A place in a text, with a candidate tree behind it.

    Attributes:
        parents: parent of each node, -1 for the root.
        words: what the draft says of each node, given its parent.
        ranks: rank of each node among its siblings.
        values: probability that each node is accepted.
        known: [1 + nodes, layers, experts], 1 for each expert that the root and each node choose.
        foretold: the same, the probability that they choose it.
        accepted: the nodes on the target's path.
    """

    parents: list[int]
    words: list[float]
    ranks: list[int]
    values: list[float]
    known: Floats
    foretold: Floats
    accepted: frozenset[int]


@dataclass(frozen=True)
class Costs:
    """What a pass takes: `base + row * rows + expert * experts`, 1 for one row."""

    base: float
    row: float
    expert: float

    def of(self, rows: float, experts: float) -> float:
        """Returns what a pass takes."""
        return self.base + self.row * rows + self.expert * experts


class Routing:
    """Foretells a row's experts from its token.

    Args:
        layers: number of layers.
        experts: number of experts of each.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self._last: dict[int, Experts] = {}
        self._often, self._again = np.ones((layers, experts)), [1.0, 2.0]

    def learn(self, token: int, chosen: Experts) -> None:
        """Takes in what a row has chosen."""
        if token in self._last:
            self._again[0] += (self._last[token] & chosen).sum() / chosen.sum()
            self._again[1] += 1
        self._last[token] = chosen
        self._often += chosen

    def foretell(self, token: int) -> Floats:
        """Returns the probability that a row with this token chooses each expert."""
        count = next(iter(self._last.values()))[0].sum()
        usual: Floats = np.minimum(1, self._often * count / self._often.sum(1, keepdims=True))
        if token not in self._last:
            return usual
        again = self._again[0] / self._again[1]
        found: Floats = np.where(self._last[token], again, (1 - again) * usual)
        return found


def different(rows: Floats) -> float:
    """Returns the expected number of different experts of rows, in the mean of all layers."""
    return float((1 - (1 - rows).prod(axis=0)).sum(-1).mean())


def drafted(draft: Any, text: list[int]) -> tuple[list[int], list[list[int]], list[float]]:
    """Returns parents, paths and the draft's words of the likeliest nodes behind a text."""
    parents, paths = list[int](), list[list[int]]()
    words, values = list[float](), list[float]()
    level = [-1]
    for _ in range(_DEPTH):
        before = [[] if node < 0 else paths[node] for node in level]
        ids = torch.tensor([text[-_SEEN:] + path for path in before])
        with torch.inference_mode():
            shares = draft(ids, logits_to_keep=1).logits[:, -1].double().softmax(-1)
        top = shares.topk(_WIDTH, -1)
        for node, path, tokens, own in zip(
            level, before, top.indices.tolist(), top.values.tolist(), strict=True
        ):
            for token, word in zip(tokens, own, strict=True):
                parents.append(node)
                paths.append([*path, token])
                words.append(word)
                values.append(word * (1.0 if node < 0 else values[node]))
        newest = range(len(paths) - _WIDTH * len(level), len(paths))
        level = sorted(newest, key=lambda node: -values[node])[:_KEPT]
    kept = sorted(sorted(range(len(paths)), key=lambda node: -values[node])[:_NODES])
    number = {-1: -1} | {node: place for place, node in enumerate(kept)}
    return (
        [number[parents[node]] for node in kept],
        [paths[node] for node in kept],
        [words[node] for node in kept],
    )


def place_at(mixture: Mixture, draft: Any, text: list[int], routing: Routing) -> Place:
    """Drafts a tree behind a text and has the mixture read it, branch by branch."""
    parents, paths, words = drafted(draft, text)
    leaves = [path for node, path in enumerate(paths) if node not in parents]
    start = text[-2 * _SEEN :]
    likeliest, chosen = mixture.read([start + p + [0] * (_DEPTH - len(p)) for p in leaves])
    at = {
        tuple(path[:depth]): (branch, len(start) - 1 + depth)
        for branch, path in enumerate(leaves)
        for depth in range(len(path) + 1)
    }
    children = {
        (parent, path[-1]): node
        for node, (parent, path) in enumerate(zip(parents, paths, strict=True))
    }
    accepted, node = list[int](), -1
    while True:
        branch, row = at[tuple(paths[node]) if node >= 0 else ()]
        follower = children.get((node, int(likeliest[branch, row])))
        if follower is None:
            break
        accepted.append(follower)
        node = follower
    rows = [at[tuple(path)] for path in ([], *paths)]
    tokens = [text[-1], *(path[-1] for path in paths)]
    return Place(
        parents=parents,
        words=words,
        ranks=[parents[:number].count(parent) for number, parent in enumerate(parents)],
        values=[],
        known=np.stack([chosen[:, branch, row] for branch, row in rows]).astype(np.float64),
        foretold=np.stack([routing.foretell(token) for token in tokens]),
        accepted=frozenset(accepted),
    )


def calibrate(places: list[Place], learned: list[Place]) -> None:
    """Sets the values of nodes, by how often words came true at `learned` places."""
    counts: dict[tuple[int, int], list[int]] = {}
    for place in learned:
        for node, parent in enumerate(place.parents):
            if parent < 0 or parent in place.accepted:
                cell = counts.setdefault((int(10 * place.words[node]), place.ranks[node]), [0, 0])
                cell[0] += node in place.accepted
                cell[1] += 1
    for place in places:
        for node, parent in enumerate(place.parents):
            word = place.words[node]
            hits, seen = counts.get((int(10 * word), place.ranks[node]), (0, 0))
            above = 1.0 if parent < 0 else place.values[parent]
            place.values.append(above * (hits + _PRIOR * word) / (seen + _PRIOR))


def grown(place: Place, costs: Costs, believed: Floats) -> list[list[int]]:
    """Returns trees of 0 to all nodes, which take the best value for its expected cost first.

    Args:
        place: the place with its candidates.
        costs: what a pass takes.
        believed: `Place.known` or `Place.foretold`.
    """
    left, chosen = 1 - believed[0], list[int]()
    trees = [list[int]()]
    while len(chosen) < len(place.values):
        open_ = [
            node
            for node, parent in enumerate(place.parents)
            if node not in chosen and (parent < 0 or parent in chosen)
        ]
        new = (believed[1:][open_] * left).sum(-1).mean(-1)
        worth = np.array(place.values)[open_] / (costs.row + costs.expert * new)
        node = open_[int(worth.argmax())]
        left = left * (1 - believed[1 + node])
        chosen.append(node)
        trees.append(list(chosen))
    return trees


def outcome(place: Place, tree: list[int], costs: Costs) -> Floats:
    """Returns expected tokens, what the pass takes, its rows and its different experts."""
    experts = different(place.known[[0, *(1 + node for node in tree)]])
    tokens = 1 + sum(place.values[node] for node in tree)
    rows = len(tree) + 1
    return np.array([tokens, costs.of(rows, experts), rows, experts])


def best_sized(trees: list[list[int]], place: Place, costs: Costs, experts: Floats) -> list[int]:
    """Returns the tree that promises most tokens for its cost, given its experts by nodes."""
    tokens = [1 + sum(place.values[node] for node in tree) for tree in trees]
    rates = [t / costs.of(n + 1, experts[n]) for n, t in enumerate(tokens)]
    return trees[int(np.argmax(rates))]


def compared(places: list[Place], costs: Costs) -> dict[str, Any]:
    """Returns what each way to choose nodes gives, at eight rows and at the best size."""
    results: dict[str, Any] = {}
    for way in ("naive", "known", "by token"):
        believed = [each.foretold if way == "by token" else each.known for each in places]
        order = Costs(costs.base, costs.row, 0.0) if way == "naive" else costs
        trees = [grown(p, order, e) for p, e in zip(places, believed, strict=True)]
        experts = [
            np.array([different(e[[0, *(1 + node for node in tree)]]) for tree in own])
            for e, own in zip(believed, trees, strict=True)
        ]
        if way == "naive":  # which knows only how many there are in the mean
            experts = [np.mean(experts, axis=0)] * len(places)
        eight = [own[7] for own in trees]
        best = [
            best_sized(own, place, costs, counts)
            for own, place, counts in zip(trees, places, experts, strict=True)
        ]
        for size, chosen in (("8 rows", eight), ("best size", best)):
            sums = sum(outcome(p, tree, costs) for p, tree in zip(places, chosen, strict=True))
            tokens, cost, rows, found = (np.asarray(sums) / len(places)).round(3).tolist()
            results[f"{way}, {size}"] = {
                "tokens": tokens, "pass": cost, "rows": rows, "experts": found,
                "speedup": round(tokens / cost, 3),
            }  # fmt: skip
    return results


def places_in(mixture: Mixture, draft: Any, texts: list[list[int]]) -> list[Place]:
    """Returns calibrated places, drawn from all texts but the first."""
    rng, found = np.random.default_rng(1), list[Place]()
    chosen = mixture.read(texts)[1]
    routing = Routing(chosen.shape[0], chosen.shape[-1])
    for number, text in enumerate(texts):
        drawn = rng.choice(np.arange(2 * _SEEN, LENGTH - 1), _PLACES, replace=False)
        ends = frozenset(drawn.tolist()) if number >= FIRST else frozenset[int]()
        for row, token in enumerate(text):
            if row in ends:  # this row is pending, so what it chooses is not known yet
                found.append(place_at(mixture, draft, text[: row + 1], routing))
            routing.learn(token, chosen[:, number, row])
    calibrate(found, found[::2])
    return found[1::2]


def main() -> None:
    """Compares ways to choose the nodes of trees."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mixture", type=Path)
    parser.add_argument("draft", type=Path, help="a model with the same tokens")
    parser.add_argument(
        "--costs", type=float, nargs=3, action="append", metavar=("BASE", "ROW", "EXPERT")
    )
    arguments = parser.parse_args()
    draft = AutoModelForCausalLM.from_pretrained(arguments.draft, dtype=torch.float32).eval()
    places = places_in(Mixture(arguments.mixture), draft, held_out(arguments.mixture))
    results: dict[str, Any] = {}
    for costs in arguments.costs or _COSTS:
        results[str(costs)] = found = compared(places, Costs(*costs))
        print(f"a pass costs {costs[0]} + {costs[1]} a row + {costs[2]} an expert:")
        for way, facts in found.items():
            print(f"  {way}: {'  '.join(f'{name} {value}' for name, value in facts.items())}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
