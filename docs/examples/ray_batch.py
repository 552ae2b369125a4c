"""Answers a file of prompts on all machines of a cluster of Ray: pip install "ray[data]".

python ray_batch.py model.gguf prompts.jsonl answers/ --workers 4

Each line of the file is {"prompt": "..."}. Each worker has the model once and answers many prompts
at a time. The model must be found under its name on every machine, as one on the Hub is. Without a
cluster, the workers run on this machine, where a core must be left to read and write the files. For
one machine `edgespec batch` does the same and more.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import ray

from edgespec import LLM

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray tells its maker how it is used
AT_ONCE = 8  # texts that share the passes of a worker's model


class Worker:
    """A model in a process of its own."""

    def __init__(self, model: str, max_tokens: int, threads: int) -> None:
        self.llm = LLM(model, sessions=AT_ONCE, threads=threads)
        self.max_tokens = max_tokens

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Adds a column of answers to a batch of lines."""
        questions = [[{"role": "user", "content": prompt}] for prompt in batch["prompt"]]
        prompts = [self.llm.chat_tokens(question) for question in questions]
        results = self.llm.generate(prompts, max_tokens=self.max_tokens)
        answers = np.array([result.text for result in results], dtype=object)
        return {**batch, "answer": answers}


def main() -> None:
    """Reads prompts, and writes files of JSON Lines to a folder."""
    parser = argparse.ArgumentParser(description="Answers a file of prompts with Ray.")
    parser.add_argument("model", help="a GGUF file, a checkpoint's folder or a name on the Hub")
    parser.add_argument("prompts")
    parser.add_argument("answers")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="processor cores of each worker")
    parser.add_argument("--max-tokens", type=int, default=256)
    given = parser.parse_args()
    answered = ray.data.read_json(given.prompts, lines=True).map_batches(
        Worker,
        fn_constructor_args=(given.model, given.max_tokens, given.threads),
        batch_size=4 * AT_ONCE,
        compute=ray.data.ActorPoolStrategy(size=given.workers),
        num_cpus=given.threads,
    )
    answered.write_json(given.answers)


if __name__ == "__main__":
    main()
