"""Train the embedded model pair: corpus and tokenizer, target, draft, measurements.

Every command works in one folder (``--work``) and continues where an interrupted call stopped::

    python models/training/train.py tokenizer --work runs/pair
    python models/training/train.py target --work runs/pair
    python models/training/train.py draft --work runs/pair
    python models/training/train.py evaluate --work runs/pair

Checkpoint folders appear as ``runs/pair/final/python-7m`` and ``runs/pair/final/python-1m``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import cycle
from pathlib import Path

import corpus
import data
import measures
import torch
from loop import Run, report, train
from losses import Losses
from network import (
    DRAFT,
    TARGET,
    arithmetic,
    generate,
    hidden_of,
    new,
    pieces,
    read_folder,
    write_folder,
)
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

TARGET_FOLDER, DRAFT_FOLDER = "final/python-7m", "final/python-1m"


PROMPT = 128
OWN_EVERY = 4
PER_CALL = 128
"""Tokens of code before the target's own text in a row of samples, the number of steps per step
that uses a batch of these rows, and the rows that are made at once."""

TEMPERATURES = (0.8, 0.0)
"""The target's own text is sampled and greedy in turns, since drafts are used for both."""


def tokenizer_command(args: argparse.Namespace) -> None:
    """Gather the corpus, train the tokenizer and write the tokens of both sides."""
    gathered = corpus.collect(
        args.corpus, args.heldout, args.seen, packages=not args.stdlib_only, limit=args.files
    )
    report({"dropped": dict(gathered.dropped)})
    if args.init is None:
        tokenizer = data.train_tokenizer(gathered.train, TARGET.vocab_size)
    else:
        tokenizer = Tokenizer.from_file(str(args.init / "tokenizer.json"))
    report(dict(data.write(args.work, gathered, tokenizer)))


def target_command(args: argparse.Namespace) -> None:
    """Train the target on the next token and write its checkpoint folder."""
    model = started(args, TARGET)
    losses = Losses(args.compile)
    ids = data.load(args.work, "train")
    judged = measures.rows_of(data.load(args.work, "heldout")[:40_000], args.length)

    def loss_of(batch: Tensor) -> Tensor:
        hidden = hidden_of(model, batch[:, :-1]).flatten(0, 1)
        return losses.next_token(hidden, model.lm_head.weight, batch[:, 1:].flatten())

    def batches(done: int) -> Iterator[Tensor]:
        return data.windows(ids, args.length, args.batch, args.seed, skip=done)

    def judge() -> dict[str, float]:
        return {"heldout_loss": measures.loss(model, judged)}

    train(model, loss_of, batches, judge, run_of(args, "target.pt"))
    finish(args.work, model, TARGET_FOLDER)


def draft_command(args: argparse.Namespace) -> None:
    """Distil the draft from the target, on code and on the target's own text."""
    target = read_folder(args.work / TARGET_FOLDER).requires_grad_(False)
    draft = started(args, DRAFT)
    ids = data.load(args.work, "train")
    heldout = data.load(args.work, "heldout")
    own = own_text(args, target, ids)
    judged = measures.rows_of(heldout[:20_000], args.length)
    if args.compile:
        target.model.compile(dynamic=False)
    losses = Losses(args.compile)

    def loss_of(batch: Tensor) -> Tensor:
        inputs = batch[:, :-1]
        with torch.no_grad():
            taught = hidden_of(target, inputs).flatten(0, 1)
        given = hidden_of(draft, inputs).flatten(0, 1)
        weights = draft.lm_head.weight, taught, target.lm_head.weight
        return losses.distillation(given, *weights, args.hard)

    def batches(done: int) -> Iterator[Tensor]:
        code = data.windows(ids, args.length, args.batch, args.seed + 1000, skip=done)
        texts = cycle(torch.split(own, args.batch)[: len(own) // args.batch])
        for step in range(done, 1 << 62):
            yield next(texts) if step % OWN_EVERY == OWN_EVERY - 1 else next(code)

    def judge() -> dict[str, float]:
        return {f"heldout_{k}": v for k, v in measures.compare(draft, target, judged).items()}

    train(draft, loss_of, batches, judge, run_of(args, "draft.pt"))
    finish(args.work, draft, DRAFT_FOLDER)


def own_text(args: argparse.Namespace, target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """The target's own text (rows, length + 1), made once and kept beside the tokens."""
    path = args.work / "own_text.pt"
    parts = list[Tensor]()
    if path.exists():
        kept: Tensor = torch.load(path, weights_only=True)
        return kept
    for first in range(0, args.own_rows, PER_CALL):
        seed = args.seed + first
        heat = TEMPERATURES[len(parts) % len(TEMPERATURES)]
        prompts = pieces(ids, min(PER_CALL, args.own_rows - first), PROMPT, seed)
        with arithmetic():
            parts.append(generate(target, prompts, args.length + 1 - PROMPT, heat, seed))
        report({"own_rows": first + len(prompts)})
    text = torch.cat(parts)
    torch.save(text, path)
    return text


def evaluate_command(args: argparse.Namespace) -> None:
    """Measure the finished pair."""
    target = args.target or args.work / TARGET_FOLDER
    draft = args.draft or args.work / DRAFT_FOLDER
    measures.evaluate(args.work, target, draft, args.length, args.tokens)


def started(args: argparse.Namespace, config: LlamaConfig) -> LlamaForCausalLM:
    """A model to begin with, compiled if asked for, which needs a C++ compiler."""
    torch.manual_seed(args.seed)
    model = new(config) if args.init is None else read_folder(args.init)
    if args.compile:
        model.model.compile(dynamic=False)
    return model


def run_of(args: argparse.Namespace, state: str) -> Run:
    """The length, sizes and rates of the command line."""
    given = {each.name: getattr(args, each.name, None) for each in fields(Run)}
    known = {name: value for name, value in given.items() if value is not None}
    return Run(**known | {"state": args.work / state})


def finish(work: Path, model: LlamaForCausalLM, name: str) -> None:
    """Write a trained model with the run's tokenizer."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    write_folder(model, tokenizer, work / name)
    report({"written": str(work / name)})


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(description="Train the embedded model pair.")
    main.add_argument("--threads", type=int, default=2, help="CPU threads")
    commands = main.add_subparsers(required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__)
        command.add_argument("--work", type=Path, required=True, help="folder of the run")
        command.set_defaults(run=run)
        return command

    tokens = add("tokenizer", tokenizer_command)
    tokens.add_argument(
        "--corpus", type=Path, action="append", default=[], help="further source folder"
    )
    tokens.add_argument("--heldout", type=float, default=0.015, help="share of files held out")
    tokens.add_argument("--stdlib-only", action="store_true", help="leave out installed packages")
    tokens.add_argument("--files", type=int, help="maximum number of files, for a trial run")
    tokens.add_argument("--init", type=Path, help="take the tokenizer of this checkpoint folder")
    tokens.add_argument(
        "--seen",
        action="append",
        default=[],
        help="root that is never held out, such as stdlib, since initial weights may have seen it",
    )

    target = add("target", target_command)
    draft = add("draft", draft_command)
    for command, muon, adamw, count in ((target, 0.015, 3e-3, 22e6), (draft, 0.02, 5e-3, 12e6)):
        command.add_argument("--tokens", type=int, default=int(count), help="tokens to train on")
        command.add_argument("--minutes", type=float, default=1e9, help="maximum minutes")
        command.add_argument("--batch", type=int, default=8, help="windows per step")
        command.add_argument("--length", type=int, default=512, help="tokens per window")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--muon-rate", type=float, default=muon, help="peak rate of matrices")
        command.add_argument(
            "--adamw-rate", type=float, default=adamw, help="peak rate of other weights"
        )
        command.add_argument("--warmup", type=int, default=300_000, help="tokens of warm-up")
        command.add_argument("--decay", type=float, default=0.5, help="share of the run with decay")
        command.add_argument("--init", type=Path, help="checkpoint folder to start from")
        command.add_argument("--no-compile", dest="compile", action="store_false")
    draft.add_argument("--own-rows", type=int, default=1536, help="rows of the target's own text")
    draft.add_argument("--hard", type=float, default=0.2, help="share moved to the arg-max")

    measure = add("evaluate", evaluate_command)
    measure.add_argument("--length", type=int, default=512, help="tokens per window")
    measure.add_argument("--tokens", type=int, default=256, help="tokens per prompt")
    measure.add_argument("--target", type=Path, help="another target's checkpoint folder")
    measure.add_argument("--draft", type=Path, help="another draft's checkpoint folder")
    return main


if __name__ == "__main__":
    arguments = parser().parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.run(arguments)
