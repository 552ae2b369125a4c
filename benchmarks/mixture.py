"""What a mixture's passes cost by rows, against the same model with all of its experts chosen.

    python benchmarks/random_mixture.py -o few --chosen 4
    python benchmarks/random_mixture.py -o all --chosen 64
    edgespec export few -o few-bundle --precision int4-small --no-calibration
    edgespec export all -o all-bundle --precision int4-small --no-calibration
    python benchmarks/mixture.py few-bundle all-bundle

Rows are a chain behind a text: with different tokens, and all with the same one, which chooses
nearly the same experts, most of all in a model made with --by-token. Numbers of rows take turns;
each figure is a median. It is processor time, of one thread by default, on which other programs
have little influence. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np

from edgespec import bundle as bundles
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner

_ROWS, _TURNS, _READ = (1, 2, 4, 8, 16), 4, 32


def measured(path: Path, device: str, threads: int) -> dict[str, dict[int, float]]:
    """Returns milliseconds by rows, for rows with different tokens and with equal ones."""
    bundle = bundles.load(path)
    runner = Runner(Model.load(bundle, bundles.TARGET, engine(device), threads))
    random = np.random.default_rng(0).integers(0, bundle.target.vocab_size, _READ + _ROWS[-1])
    tokens = random.tolist()
    runner.prefill(tokens[:_READ])
    kinds = {"different": tokens[_READ:], "equal": [tokens[_READ]] * _ROWS[-1]}
    found: dict[str, dict[int, list[float]]] = {k: {n: [] for n in _ROWS} for k in kinds}
    for turn in range(_TURNS + 1):
        for kind, chain in kinds.items():
            for count in _ROWS:
                for _ in range(2):  # the first call includes the change of shape
                    begin = time.process_time()
                    runner.verify(Rows.chain(chain[:count]))
                    seconds = time.process_time() - begin
                if turn:
                    found[kind][count].append(seconds)
    return {
        kind: {n: round(1e3 * median(times), 2) for n, times in by_rows.items()}
        for kind, by_rows in found.items()
    }


def main() -> None:
    """Measures each bundle on each engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--devices", nargs="+", default=["onnxruntime:cpu", "openvino:cpu"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    results = {}
    for device in arguments.devices:
        for path in arguments.bundles:
            by_kind = measured(path, device, arguments.threads)
            for kind, times in by_kind.items():
                line = "  ".join(f"{n}: {ms:.1f}" for n, ms in times.items())
                print(f"{device} {path.name} {kind} tokens, ms by rows: {line}", flush=True)
            results[f"{device} {path.name}"] = by_kind
    print(json.dumps(results))


if __name__ == "__main__":
    main()
