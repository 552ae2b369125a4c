"""What integer activations cost: quality and time, by engine and by size of OpenVINO's groups.

    python benchmarks/activations.py qwen-int8 qwen-int4 --against qwen-fp32 --groups 32,64,128

CPU engines multiply quantized weights by activations that they round to 8 bits as they run. This
separates what that costs from what the weights' own rounding does:

* `all` is KL(reference || as it runs), in nats a token; the reference is a bundle in fp32.
* `activations` is KL(the same weights, float activations || as it runs).
* The line `floats` is OpenVINO with float activations, whose `all` is the weights' part.

A group is the number of activations that share a scale; `openvino:cpu` is as users get it. Groups
larger than the smallest blocks of weights make OpenVINO multiply in floats. The first tokens of the
texts of `edgespec eval --suite` are read. T(n) are milliseconds of a call of n rows in processor
time, which other load moves less, in turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, counts, exit_code, print_result, print_table
from turns import Turns

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.measuring.perplexity import Scores
from edgespec.measuring.suite import TEXTS, read
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.engines import StageFile
from edgespec.runtime.engines.cpu.openvino import OpenVinoCpu
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.bundle import Bundle
    from edgespec.runtime.arrays import Floats
    from edgespec.runtime.engines import Engine

_CONTEXT = 200  # rows in the cache of timed calls


class Grouped(OpenVinoCpu):
    """OpenVINO with activations in groups of a given size; 0: floats."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.name = f"openvino:cpu, groups of {size}" if size else "floats"

    def _config(self, stage: StageFile, threads: int) -> dict[str, str]:
        group = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": str(self.size)}
        return super()._config(stage, threads) | group


@dataclass(frozen=True)
class Line:
    """What an engine makes of a bundle; divergences are means in nats, with standard errors."""

    bundle: str
    engine: str
    all: float
    all_error: float
    activations: float
    activations_error: float
    agreement: float
    ms: dict[int, float]


def main() -> None:
    arguments = _parse_arguments()
    reference = _logits(_loaded(arguments.against, Grouped(0), arguments), arguments)
    lines: list[Line] = []
    for path in arguments.bundles:
        lines += _lines(path, reference, arguments)
    print_table(
        ["bundle", "engine", "all", "±", "activations", "±", "same arg-max",
         *(f"T({n}) ms" for n in arguments.rows)],
        [
            [each.bundle, each.engine, round(each.all, 5), round(each.all_error, 5),
             round(each.activations, 5), round(each.activations_error, 5),
             round(each.agreement, 3), *each.ms.values()]
            for each in lines
        ],
    )  # fmt: skip
    settings = {"tokens": arguments.tokens, "threads": arguments.threads}
    print_result("activations", {**settings, "lines": list(map(asdict, lines))})


def _lines(path: Path, reference: Floats, arguments: argparse.Namespace) -> list[Line]:
    engines: list[Engine] = [Grouped(0), *cpu_engines(), *map(Grouped, arguments.groups)]
    loaded = [_loaded(path, each, arguments) for each in engines]
    floats = _logits(loaded[0], arguments)
    runners = [Runner(model) for _, model in loaded]
    for runner in runners:
        runner.skip(_CONTEXT)
    turns = Turns(runners, arguments.rows, arguments.rounds, time.process_time)
    lines = []
    for number, (engine, each) in enumerate(zip(engines, loaded, strict=True)):
        own = floats if number == 0 else _logits(each, arguments)
        total, activations = _scored(reference, own), _scored(floats, own)
        lines.append(
            Line(
                path.name, engine.name, total.kl.value, total.kl.error, activations.kl.value,
                activations.kl.error, total.agreement,
                {rows: turns.ms(rows, number) for rows in arguments.rows},
            )
        )  # fmt: skip
    return lines


def _loaded(path: Path, engine: Engine, arguments: argparse.Namespace) -> tuple[Bundle, Model]:
    bundle = bundles.load(path)
    return bundle, Model.load(bundle, TARGET, engine, arguments.threads)


def _logits(loaded: tuple[Bundle, Model], arguments: argparse.Namespace) -> Floats:
    """Returns the logits of all tokens that are read, [tokens, V]."""
    bundle, model = loaded
    tokenizer = Tokenizer.from_folder(bundle.path)
    found: list[Floats] = []
    for kind in TEXTS:
        tokens = tokenizer.encode(read(kind))[: arguments.tokens]
        parts = Runner(model).score(tokens, 64)
        found.extend(results["logits"][:, : tokenizer.vocab_size].copy() for results in parts)
    return np.concatenate(found)


def _scored(reference: Floats, own: Sequence[Floats] | Floats) -> Scores:
    scores = Scores(models=2)
    for one, other in zip(own, reference, strict=True):
        scores.add(0, one, other)
    return scores


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument(
        "--against", type=Path, required=True, metavar="BUNDLE", help="the same model in fp32"
    )
    parser.add_argument("--groups", type=counts, default=[], help="such as 32,64,128")
    parser.add_argument(
        "--tokens", type=count, default=150, help="of each of the four texts (default 150)"
    )
    parser.add_argument("--rows", type=counts, default=[1, 8, 64], help="of timed calls")
    parser.add_argument("--rounds", type=count, default=9)
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
