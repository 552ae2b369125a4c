"""Measures real models as users see them: speed, equality of texts, and quality.

    python benchmarks/real.py checkpoints --cache work
    python benchmarks/real.py checkpoints --cache work --models smollm2-135m --parts speed --texts 2

Every folder below the given one that contains a checkpoint is a model; some have another one as
their draft (see the source). `llama.cpp-gguf` reads the file of the same name with .gguf beside it.
Bundles and the peers' own formats are created below --cache and kept, as by `compare.py`. Only
peers that --peers names, or whose environments exist already, take part.

All texts are greedy, of code and of questions in the model's chat template. All settings of a model
are loaded at the same time and take turns text by text. `again` compares the first two repeats of
the same setting, between which nothing is cached.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, names, print_result, print_table
from kinds import print_samenesses, print_speeds, samenesses, speeds
from peers import PEERS, peer
from peers.base import AUTO, DRAFT, LOOKUP, PLAIN, Checkpoints, Loading, PeerError, Request
from peers.lines import failures_lines
from peers.measure import Job, measure
from peers.setup import converted, installed
from prompts import CHAT
from reading import evaluated, weight_bytes

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.errors import InputError
from edgespec.measuring.prompts import read_prompts
from edgespec.models import load_checkpoint
from edgespec.runtime.deployment.deployment import deploy, with_costs
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import MIB
from edgespec.tuning.texts import PASSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DRAFTS = {"qwen-coder-1.5b": "qwen-coder-0.5b"}
_SETTINGS = (PLAIN, LOOKUP, DRAFT, AUTO)
_OURS = {peer(name).precision: name for name in PEERS if peer(name).home == "edgespec"}
_OTHERS = [name for name in PEERS if name not in _OURS.values()]
_REFERENCE = "fp32"
_ENGINES, _SPEED, _EQUAL, _QUALITY = "engines", "speed", "equal", "quality"
_PARTS = (_ENGINES, _SPEED, _EQUAL, _QUALITY)
_ROWS = (1, 8)  # of a decoding step, and of one that verifies a draft


@dataclass(frozen=True)
class Cost:
    """Costs of a role's calls on an engine; the chosen engine of a role comes first."""

    weights: str
    role: str
    engine: str
    chosen: bool
    ms: dict[int, float]


@dataclass(frozen=True)
class Quality:
    """See `edgespec eval`; `mean_kl` is in nats, from the checkpoint in fp32."""

    weights: str
    engine: str
    mib: float
    perplexity: float
    perplexity_error: float
    reference_perplexity: float
    mean_kl: float
    argmax_agreement: float


def main() -> None:
    arguments = _parse_arguments()
    results = {}
    for name in arguments.models:
        print(f"\n# {name}")
        results[name] = _model(arguments, name)
    print_result(
        "real",
        {
            "threads": arguments.threads,
            "texts": arguments.texts,
            "new_tokens": arguments.tokens,
            "repeats": arguments.repeat,
            "models": results,
        },
    )


def _model(arguments: argparse.Namespace, name: str) -> dict[str, object]:
    """Measures a model; returns its tables, and the same data for the JSON line."""
    draft = arguments.folder / _DRAFTS.get(name, "")
    pair = Checkpoints(
        arguments.folder / name, draft if name in _DRAFTS and _is_checkpoint(draft) else None
    )
    found: dict[str, object] = {"draft": pair.draft and pair.draft.name}
    if _ENGINES in arguments.parts:
        costs = [cost for each in arguments.precision for cost in _costs(arguments, pair, each)]
        _print_costs(costs)
        found[_ENGINES] = list(map(asdict, costs))
    if {_SPEED, _EQUAL} & {*arguments.parts}:
        found |= _texts(arguments, pair)
    if _QUALITY in arguments.parts:
        qualities = [_quality(arguments, pair, each) for each in arguments.precision]
        _print_qualities(qualities)
        found[_QUALITY] = list(map(asdict, qualities))
    return found


def _bundle(arguments: argparse.Namespace, pair: Checkpoints, precision: str) -> Path:
    """Returns the bundle, and exports it if it is missing."""
    try:
        made = converted(_OURS[precision], Path(sys.executable), pair, arguments.cache)
    except PeerError as error:
        raise InputError(f"{pair.target.name} in {precision}: {error}") from error
    return made / "bundle"


def _costs(arguments: argparse.Namespace, pair: Checkpoints, precision: str) -> Iterator[Cost]:
    bundle = bundles.load(_bundle(arguments, pair, precision))
    options = LoadOptions(draft="auto", threads=arguments.threads)
    for role, placed in with_costs(deploy(bundle, options), always=True).roles.items():
        for number, candidate in enumerate(placed.candidates):
            if candidate.profile is not None and candidate.profile.refusal is None:
                seconds = min(candidate.profile.seconds.items())[1]  # at the least capacity
                ms = {rows: round(seconds[rows] * 1e3, 2) for rows in _ROWS}
                yield Cost(precision, role, candidate.device, number == 0, ms)


def _print_costs(costs: Sequence[Cost]) -> None:
    print("\nEngines of each role, the chosen one first\n")
    print_table(
        ["weights", "role", "engine", *(f"T({rows}) ms" for rows in _ROWS)],
        [[each.weights, each.role, each.engine, *each.ms.values()] for each in costs],
    )


def _texts(arguments: argparse.Namespace, pair: Checkpoints) -> dict[str, object]:
    """Generates all texts; returns the tables of speed and equality."""
    requests, kinds = _requests(arguments, pair.target)
    settings = [setting for setting in _SETTINGS if setting != DRAFT or pair.draft is not None]
    job = Job(
        checkpoints=pair,
        settings={
            **{_OURS[precision]: settings for precision in arguments.precision},
            **dict.fromkeys(arguments.peers, settings),
        },
        requests=requests,
        repeats=arguments.repeat,
        loading=Loading(
            setting="",
            folder=arguments.cache,
            threads=arguments.threads,
            context=max(len(each.prompt) + each.new_tokens for _, each in requests),
            eos_ids=load_checkpoint(pair.target).config.eos_ids,
        ),
        cache=arguments.cache,
    )
    made = measure(job)
    found: dict[str, object] = {"peer_versions": made.versions, "failures": made.failures}
    if _SPEED in arguments.parts:
        print("\nSpeed\n")
        fast = speeds(kinds, made)
        print_speeds(fast)
        found[_SPEED] = list(map(asdict, fast))
    if _EQUAL in arguments.parts:
        print("\nTexts that are the same, and the first places where others differ\n")
        same = samenesses(kinds, made)
        print_samenesses(same)
        found[_EQUAL] = list(map(asdict, same))
    left_out = {
        name: "not asked for" if installed(name, arguments.cache) else "not installed"
        for name in _OTHERS
        if name not in arguments.peers
    }
    print()
    for line in failures_lines(left_out | made.failures):
        print(line)
    return found


def _requests(
    arguments: argparse.Namespace, target: Path
) -> tuple[list[tuple[int, Request]], dict[str, range]]:
    """Returns all requests, and the range of indices of each kind."""
    tokenizer = Tokenizer.from_folder(target)
    prompts = list(map(tokenizer.encode, read_prompts(arguments.prompts, arguments.texts)))
    kinds = {"code": range(len(prompts))}
    if tokenizer.has_chat_template:
        asked = (
            read_prompts(arguments.chat_prompts, arguments.texts)
            if arguments.chat_prompts
            else CHAT[: arguments.texts]
        )
        kinds["chat"] = range(len(prompts), len(prompts) + len(asked))
        for text in asked:
            chat = tokenizer.chat([{"role": "user", "content": text}])
            prompts.append(tokenizer.encode(chat, add_special=False))
    else:
        print(f"\n{target.name} has no chat template: code alone")
    return [
        (number, Request(tuple(prompt), arguments.tokens, 0.0, 0))
        for number, prompt in enumerate(prompts)
    ], kinds


def _quality(arguments: argparse.Namespace, pair: Checkpoints, precision: str) -> Quality:
    bundle = _bundle(arguments, pair, precision)
    reference = _bundle(arguments, Checkpoints(pair.target, None), _REFERENCE)
    text = arguments.text
    if text is None:
        text = arguments.cache / "prose.txt"
        text.write_text("\n".join(PASSAGES[::2]), encoding="utf-8")  # between them is code
    found = evaluated(bundle, reference, text, threads=arguments.threads)
    against = found["against"]
    return Quality(
        precision, found["engine"], round(weight_bytes(bundle) / MIB, 1), found["perplexity"],
        found["perplexity_error"], against["perplexity"], against["mean_kl"],
        against["argmax_agreement"],
    )  # fmt: skip


def _print_qualities(qualities: Sequence[Quality]) -> None:
    print(f"\nProse, against the checkpoint in {_REFERENCE}\n")
    print_table(
        ["weights", "engine", "MiB", "perplexity", "±", _REFERENCE, "KL, nats", "same arg-max"],
        [
            [q.weights, q.engine, q.mib, round(q.perplexity, 3), round(q.perplexity_error, 3),
             round(q.reference_perplexity, 3), round(q.mean_kl, 5), round(q.argmax_agreement, 4)]
            for q in qualities
        ],
    )  # fmt: skip


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a person with a real model sees.")
    parser.add_argument("folder", type=Path, help="a folder of checkpoints' folders")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for all files, which are kept"
    )
    parser.add_argument(
        "--models", metavar="NAMES", help="names of models in the folder (default all)"
    )
    parser.add_argument(
        "--precision", type=lambda text: names(text, tuple(_OURS)), default=["int4"],
        help=f"of {','.join(_OURS)} (default int4)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", type=lambda text: names(text, _OTHERS) if text else [],
        help=f"of {','.join(_OTHERS)}; installed where they are missing (default: those that are "
        "installed below --cache; '': none)",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=(), help="JSON lines of code to go on with"
    )
    parser.add_argument(
        "--chat-prompts", type=Path, nargs="+", default=(), help="JSON lines of questions"
    )
    parser.add_argument("--texts", type=count, default=8, help="texts of each kind (default 8)")
    parser.add_argument("--tokens", type=count, default=64, help="tokens of each text (default 64)")
    parser.add_argument(
        "--repeat", type=count, default=3, help="repeats; the median is reported (default 3)"
    )
    parser.add_argument(
        "--parts", type=lambda text: names(text, _PARTS), default=list(_PARTS),
        help=f"of {','.join(_PARTS)} (default all)",
    )  # fmt: skip
    parser.add_argument("--text", type=Path, help="for quality, UTF-8 (default: prose of ours)")
    add_threads(parser)
    arguments = parser.parse_args()
    if _EQUAL in arguments.parts and arguments.repeat < 2:
        parser.error("--repeat 1: whether a text comes again takes two, or leave out equal")
    arguments.folder, arguments.cache = arguments.folder.absolute(), arguments.cache.absolute()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    there = sorted(path.name for path in arguments.folder.glob("*") if _is_checkpoint(path))
    if not there:
        parser.error(f"{arguments.folder} has no folders with checkpoints: give another")
    try:
        arguments.models = there if arguments.models is None else names(arguments.models, there)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--models: {error}")
    if arguments.peers is None:
        arguments.peers = [name for name in _OTHERS if installed(name, arguments.cache)]
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
