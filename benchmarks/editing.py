"""Compares the speeds of editing a file with and without the old file as a prediction.

    python benchmarks/editing.py BUNDLE

The model is asked for a whole file of about 300 lines with a function renamed, and with a parameter
added. Its greedy answers are made by plain decoding, with `auto`, and with `auto` and the old file
as a prediction. All three are made at the same time: whichever has fewest tokens makes the next
round, so that whatever else the machine does falls on all alike. Speeds are tokens per second of
rounds after the first token, and texts are compared token by token. How well the model does what it
was asked is told, too, since what it changes besides costs drafts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, names, print_result, print_table
from texts import facts_of

from edgespec import LLM
from edgespec.measuring.equality import Judge, tally, worst
from edgespec.runtime.shapes import FINE_SHAPES
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgespec.api.generation import GenerationStream
    from edgespec.api.keywords import GenerationKeywords
    from edgespec.api.result import GenerationResult
    from edgespec.runtime.decoding.generate import Round

_FILE = Path(__file__).with_name("arbitration.py")
_PLAIN, _AUTO, _PREDICTION = "plain", "auto", "prediction"
_WANTED = 3.0  # times plain decoding's speed
_WARM_UP = 128  # tokens
_SPARE = 64  # tokens that an answer may be longer than five quarters of the file
_FENCED = re.compile(r"```\w*\n(.*?)(?:```|$)", re.DOTALL)


@dataclass(frozen=True)
class Edit:
    """An edit that the model is asked for.

    Attributes:
        name: name in tables.
        ask: what the model is told.
        old: text of the file that is to change, as a regular expression.
        new: what it is to become.
    """

    name: str
    ask: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Returns the file as it should become."""
        return re.sub(self.old, self.new, source)


_EDITS = (
    Edit(
        "rename", "Rename the function `_rate` to `_tokens_per_second` everywhere.",
        r"\b_rate\b", "_tokens_per_second",
    ),
    Edit(
        "parameter", "Add a parameter `engine: str | None = None` to the function `_auto`.",
        r"def _auto\(results: Results\)", "def _auto(results: Results, engine: str | None = None)",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """An answer with the rounds that made it."""

    edit: str
    result: GenerationResult
    rounds: Sequence[Round]

    @property
    def tokens(self) -> int:
        """Number of tokens after the first."""
        return sum(len(step.tokens) for step in self.rounds)

    @property
    def seconds(self) -> float:
        """Duration of the rounds that made them."""
        return sum(step.seconds for step in self.rounds)


def main() -> None:
    arguments = _parse_arguments()
    lines = _FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    source = "".join(lines[-arguments.lines :])
    edits = [edit for edit in _EDITS if edit.name in arguments.edits]
    tokenizer = Tokenizer.from_folder(arguments.bundle)
    length = len(tokenizer.encode(source))
    most = length * 5 // 4 + _SPARE
    answers: dict[str, list[Answer]] = defaultdict(list)
    settings: dict[str, GenerationKeywords] = {
        _PLAIN: {"draft_source": "none"},
        _AUTO: {},
        _PREDICTION: {"prediction": source},
    }
    with ExitStack() as stack:
        # Each has a model of its own: texts of the same would share passes.
        models = {
            name: stack.enter_context(
                LLM(
                    arguments.bundle, device=arguments.device, threads=arguments.threads,
                    context=2 * most + length, draft="auto",
                )
            )
            for name in settings
        }  # fmt: skip
        llm = models[_PLAIN]
        prompts = {edit.name: llm.chat_tokens(_messages(source, edit)) for edit in edits}

        def make(edit: Edit, tokens: int) -> dict[str, Answer]:
            streams = {}
            for name, options in settings.items():
                models[name].forget()
                asked: GenerationKeywords = {**options, "max_new_tokens": tokens}
                streams[name] = models[name].stream(prompts[edit.name], **asked)
            return _answers(edit.name, streams)

        make(edits[0], _WARM_UP)
        for _ in range(arguments.repeat):
            for edit in edits:
                for name, answer in make(edit, most).items():
                    answers[name].append(answer)
        device = llm.target.device
        judge = Judge(llm.target, llm.tokenizer)
        verdicts = {
            name: [
                judge.verdict(prompts[plain.edit], plain.result.tokens, answer.result.tokens)
                for plain, answer in zip(answers[_PLAIN], made, strict=True)
            ]
            for name, made in answers.items()
        }
    rows = [
        _row(setting, edit.name, answers, verdicts[setting])
        for edit in edits
        for setting in settings
    ]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    likenesses = {edit.name: _likeness(edit, source, answers[_PLAIN]) for edit in edits}
    print("\nlines of the answers that are as they should be:", likenesses)
    passes = _passes([step for made in answers.values() for each in made for step in each.rounds])
    print("median ms of a pass, by its rows:", passes)
    ratios = {
        name: round(_speed(made) / _speed(answers[_PLAIN]), 2) for name, made in answers.items()
    }
    print("tokens per second, to plain decoding:", ratios)
    print_result(
        "editing",
        {
            **facts_of(arguments.bundle),
            "file": {"name": _FILE.name, "lines": source.count("\n"), "tokens": length},
            "device": device,
            "threads": arguments.threads,
            "repeats": arguments.repeat,
            "settings": rows,
            "ratios": ratios,
            "wanted_ratio": _WANTED,
            "equal": worst(verdict for each in verdicts.values() for verdict in each),
            "lines_as_asked": likenesses,
            "pass_ms": passes,
        },
    )


def _messages(source: str, edit: Edit) -> list[dict[str, str]]:
    """Returns the conversation; the file comes first, so that both edits share its rows."""
    asked = (
        f"This is a Python file:\n\n```python\n{source}```\n\n{edit.ask} Change nothing else. "
        "Answer with the whole file in one code block, from its first line to its last."
    )
    return [{"role": "user", "content": asked}]


def _answers(edit: str, streams: Mapping[str, GenerationStream]) -> dict[str, Answer]:
    """Makes all texts side by side."""
    going = {name: iter(stream) for name, stream in streams.items()}
    while going:
        name = min(going, key=lambda each: sum(len(s.tokens) for s in streams[each].rounds))
        if next(going[name], None) is None:
            del going[name]
    return {name: Answer(edit, stream.result, stream.rounds) for name, stream in streams.items()}


def _row(
    setting: str, edit: str, answers: Mapping[str, Sequence[Answer]], verdicts: Sequence[str]
) -> dict[str, object]:
    """Returns the figures of an edit with a setting, by the headers of the table."""
    made = [each for each in answers[setting] if each.edit == edit]
    plain = [each for each in answers[_PLAIN] if each.edit == edit]
    results = [each.result for each in made]
    own = [
        verdict
        for answer, verdict in zip(answers[setting], verdicts, strict=True)
        if answer.edit == edit
    ]
    rounds = sum(result.rounds for result in results)
    drafted = sum(result.drafted for result in results)
    accepted = sum(result.accepted for result in results)
    came = [result.accepted_prediction_tokens for result in results]
    return {
        "edit": edit,
        "setting": setting,
        "tokens": results[0].new_tokens,
        "tokens/s": round(_speed(made), 2),
        "to plain": round(_speed(made) / _speed(plain), 2),
        "tokens a round": round(sum(each.tokens for each in made) / rounds, 2),
        "nodes a round": round(drafted / rounds, 2),
        "accepted": round(accepted / drafted, 3) if drafted else None,
        "predicted tokens": came[0],
        "finish": results[0].finish_reason,
        "equal": tally(own),
    }


def _speed(answers: Sequence[Answer]) -> float:
    return sum(each.tokens for each in answers) / sum(each.seconds for each in answers)


def _likeness(edit: Edit, source: str, answers: Sequence[Answer]) -> float:
    """Returns the share of lines that are as asked, of the first plain answer."""
    text = next(each.result.text for each in answers if each.edit == edit.name)
    fenced = _FENCED.search(text)
    lines = (text if fenced is None else fenced[1]).splitlines()
    wanted = edit.applied(source).splitlines()
    return round(SequenceMatcher(None, wanted, lines, autojunk=False).ratio(), 4)


def _passes(rounds: Sequence[Round]) -> dict[int, float]:
    """Returns the median milliseconds of a verification by the rows that it was rounded up to."""
    times: dict[int, list[float]] = defaultdict(list)
    for step in rounds:
        times[FINE_SHAPES.row_bucket(step.drafted + 1)].append(step.verify_seconds * 1e3)
    return {rows: round(median(times[rows]), 1) for rows in sorted(times)}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Editing a file with it as a prediction.")
    parser.add_argument("bundle", type=Path, help="folder of a bundle with a chat template")
    parser.add_argument(
        "--lines", type=count, default=sys.maxsize,
        help="last lines of the file, for a machine that is short of time (default all)",
    )  # fmt: skip
    known = [edit.name for edit in _EDITS]
    parser.add_argument(
        "--edits", type=lambda text: names(text, known), default=known,
        help=f"of {','.join(known)} (default all)",
    )  # fmt: skip
    parser.add_argument(
        "--repeat", type=count, default=1, help="answers to each edit and setting (default 1)"
    )
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
