"""Which experts the rows of a trained mixture choose, and what foretells them.

    python benchmarks/small_mixture.py -o mixture --minutes 8
    python benchmarks/expert_routing.py mixture

Rows follow each other in held-out files of Python's library, or are random tokens. Guesses of what
a row will choose are what the same token chose last, what the row before chose, and what most rows
chose. Any mixture that transformers reads will do. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from small_mixture import library_tokens
from transformers import AutoModelForCausalLM

Experts = NDArray[np.bool_]
"""[layers, experts], or with more axes between: which experts rows choose."""

TEXTS, LENGTH = 24, 512
FIRST = 8
"""Number of texts that only teach which experts tokens choose."""
_ROWS = (1, 2, 4, 8, 16)


class Mixture:
    """A mixture of experts in transformers."""

    def __init__(self, path: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.top_k = int(self.model.config.num_experts_per_tok)

    def read(self, texts: list[list[int]]) -> tuple[NDArray[np.int64], Experts]:
        """Returns the likeliest next tokens [B, T] and the experts [layers, B, T, experts]."""
        with torch.inference_mode():
            found = self.model(input_ids=torch.tensor(texts), output_router_logits=True)
        scores = torch.stack(found.router_logits)
        scores = scores.view(len(scores), len(texts), -1, scores.shape[-1])
        chosen = torch.zeros_like(scores, dtype=torch.bool)
        chosen.scatter_(-1, scores.topk(self.top_k, -1).indices, True)
        return found.logits.argmax(-1).numpy(), chosen.numpy()


def held_out(path: Path) -> list[list[int]]:
    """Returns texts of held-out files, as the mixture in that folder reads them."""
    tokens = library_tokens(path, held_out=True)[: TEXTS * LENGTH]
    return [tokens[at : at + LENGTH] for at in range(0, len(tokens), LENGTH)]


def sharing(mixture: Mixture, chosen: Experts) -> dict[str, Any]:
    """Returns how many different experts rows choose in a layer, of texts and of random tokens."""
    random = np.random.default_rng(0).integers(mixture.model.config.vocab_size, size=(TEXTS, 64))
    noise = mixture.read(random.tolist())[1]
    count = chosen.shape[-1]
    found: dict[str, Any] = {}
    for rows in _ROWS:
        for name, which, first in (("texts", chosen, 100), ("random tokens", noise, 32)):
            parts = range(first, which.shape[2] - rows + 1, max(rows, 8))
            shares = [which[:, :, at : at + rows].any(2).sum(-1).mean() for at in parts]
            found.setdefault(name, {})[rows] = round(float(np.mean(shares)), 2)
        even = count * (1 - (1 - mixture.top_k / count) ** rows)
        found.setdefault("independent rows", {})[rows] = round(even, 2)
    return found


def foretold(texts: list[list[int]], chosen: Experts) -> dict[str, float]:
    """Returns what share of a row's experts different guesses name."""
    right: dict[str, list[float]] = {"by token": [], "by the row before": [], "most chosen": []}
    layers, _, length, count = chosen.shape
    top_k = int(chosen[0, 0, 0].sum())
    last, often = dict[int, Experts](), np.zeros((layers, count))
    for number, text in enumerate(texts):
        for at in range(1, length):
            row = chosen[:, number, at]
            popular = np.zeros_like(row)
            np.put_along_axis(popular, np.argsort(-often, axis=1)[:, :top_k], True, axis=1)
            guesses = last.get(text[at], popular), chosen[:, number, at - 1], popular
            if number >= FIRST:
                for known, guess in zip(right.values(), guesses, strict=True):
                    known.append(float((guess & row).sum() / row.sum()))
            last[text[at]] = row
            often += row
    shares = {name: round(float(np.mean(known)), 3) for name, known in right.items()}
    return {**shares, "chance": round(top_k / count, 3)}


def main() -> None:
    """Counts experts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mixture", type=Path)
    path = parser.parse_args().mixture
    mixture, texts = Mixture(path), held_out(path)
    chosen = mixture.read(texts)[1]
    results = {"different": sharing(mixture, chosen), "foretold": foretold(texts, chosen)}
    for name, by_rows in results["different"].items():
        print(f"different experts a layer by rows, {name}: {by_rows}")
    print(f"share of a row's experts that is foretold: {results['foretold']}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
