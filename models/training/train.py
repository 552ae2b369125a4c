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
from pathlib import Path

import corpus
import data
import measures
import torch
from checkpoint import check_folder, load_folder, write_folder
from distill import Recipe, distill
from evaluate import evaluate
from loop import Run, report, train
from losses import Losses
from network import DRAFT, TARGET, Decoder
from optimizer import Rates
from tokenizers import Tokenizer
from torch import Tensor

TARGET_FOLDER, DRAFT_FOLDER = "final/python-7m", "final/python-1m"


def tokenizer_command(args: argparse.Namespace) -> None:
    """Gather the corpus, train the tokenizer and write the tokens of both sides."""
    gathered = corpus.collect(
        args.corpus, args.heldout, args.seen, packages=not args.stdlib_only, limit=args.files
    )
    report({"dropped": dict(gathered.dropped)})
    if args.init is None:
        tokenizer = data.train_tokenizer(gathered.train, TARGET.vocab)
    else:
        tokenizer = Tokenizer.from_file(str(args.init / "tokenizer.json"))
    report(dict(data.write(args.work, gathered, tokenizer)))


def target_command(args: argparse.Namespace) -> None:
    """Train the target on the next token and write its checkpoint folder."""
    torch.manual_seed(args.seed)
    model = Decoder(TARGET)
    if args.init is not None:
        load_folder(model, args.init)
    compiled = torch.compile(model, dynamic=False) if args.compile else model
    losses = Losses(args.compile)
    ids, heldout = data.load(args.work, "train"), data.load(args.work, "heldout")
    judged = measures.rows_of(heldout[:40_000], args.length)

    def loss_of(batch: Tensor) -> Tensor:
        hidden = compiled(batch[:, :-1]).flatten(0, 1)
        return losses.next_token(hidden, model.embed_tokens.weight, batch[:, 1:].flatten())

    def batches(done: int) -> Iterator[Tensor]:
        return data.windows(ids, args.length, args.batch, args.seed, skip=done)

    def judge() -> dict[str, float]:
        return {"heldout_loss": measures.loss(model, judged)}

    run = run_of(args, "target.pt")
    train(model, loss_of, batches, judge, rates_of(args), run)
    finish(args.work, model, TARGET_FOLDER)


def draft_command(args: argparse.Namespace) -> None:
    """Distil the draft from the target and write its checkpoint folder."""
    recipe = Recipe(
        work=args.work,
        target=args.work / TARGET_FOLDER,
        init=args.init,
        own_rows=args.own_rows,
        hard=args.hard,
        compiled=args.compile,
    )
    run = run_of(args, "draft.pt")
    torch.manual_seed(args.seed)
    model = Decoder(DRAFT)
    distill(recipe, model, rates_of(args), run)
    finish(args.work, model, DRAFT_FOLDER)


def evaluate_command(args: argparse.Namespace) -> None:
    """Measure the finished pair."""
    target = args.target or args.work / TARGET_FOLDER
    draft = args.draft or args.work / DRAFT_FOLDER
    for folder in (target, draft):
        report({"folder": folder.name, "logit_difference_to_transformers": check_folder(folder)})
    evaluate(args.work, target, draft, args.length, args.tokens)


def rates_of(args: argparse.Namespace) -> Rates:
    """The learning rates and the schedule of the command line."""
    return Rates(args.muon_rate, args.adamw_rate, args.warmup, args.decay)


def run_of(args: argparse.Namespace, state: str) -> Run:
    """The length and the sizes of the command line."""
    return Run(
        state=args.work / state,
        tokens=args.tokens,
        minutes=args.minutes,
        batch=args.batch,
        length=args.length,
        seed=args.seed,
    )


def finish(work: Path, model: Decoder, name: str) -> None:
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

    target, draft = add("target", target_command), add("draft", draft_command)
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
