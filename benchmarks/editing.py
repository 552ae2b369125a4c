"""Compares the speeds of editing a file with and without the old file as a prediction.

    python benchmarks/editing.py BUNDLE

The model is asked for a whole file of about 300 lines with a function renamed, and with a parameter
added. Its greedy answers are made by plain decoding, with `auto`, and with `auto` and the old file
as a prediction. These take turns in one session, which has read the prompt. Speeds are tokens per
second after the first token, and texts are compared token by token. How well the model does what it
was asked is told, too, since what it changes besides costs drafts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table
from texts import facts_of, further

from edgespec import LLM
from edgespec.measuring.equality import Judge, tally, worst
from edgespec.runtime.shapes import FINE_SHAPES
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgespec.api.result import GenerationResult
    from edgespec.api.session import Session
    from edgespec.runtime.decoding.generate import Round

_FILE = Path(__file__).with_name("arbitration.py")
_PLAIN, _AUTO, _PREDICTION = "plain", "auto", "prediction"
_WANTED = 3.0  # times plain decoding's speed
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


def main() -> None:
    arguments = _parse_arguments()
    source = _FILE.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_folder(arguments.bundle)
    length = len(tokenizer.encode(source))
    most = length * 5 // 4 + _SPARE
    answers: dict[str, list[Answer]] = defaultdict(list)
    with LLM(
        arguments.bundle, threads=arguments.threads, context=2 * most + length, draft="auto"
    ) as llm:
        prompts = {edit.name: llm.chat_tokens(_messages(source, edit)) for edit in _EDITS}
        settings: dict[str, Mapping[str, object]] = {
            _PLAIN: {"draft_source": "none"},
            _AUTO: {},
            _PREDICTION: {"prediction": source},
        }
        with llm.session() as session:
            for options in settings.values():  # warms up
                _answer(session, _EDITS[0].name, prompts, {**options, "max_new_tokens": 128})
            for _ in range(arguments.repeat):
                for edit in _EDITS:
                    for name, options in settings.items():
                        asked = {**options, "max_new_tokens": most}
                        answers[name].append(_answer(session, edit.name, prompts, asked))
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
        for edit in _EDITS
        for setting in settings
    ]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    likenesses = {edit.name: _likeness(edit, source, answers[_PLAIN]) for edit in _EDITS}
    print("\nlines of the answers that are as they should be:", likenesses)
    passes = _passes([step for made in answers.values() for each in made for step in each.rounds])
    print("median ms of a pass, by its rows:", passes)
    ratios = {name: _ratio(name, answers) for name in settings}
    print("tokens per second, to plain decoding:", ratios)
    print_result(
        "editing",
        {
            **facts_of(arguments.bundle),
            "file": {"name": _FILE.name, "lines": source.count("\n"), "tokens": length},
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


def _answer(
    session: Session, edit: str, prompts: Mapping[str, list[int]], options: Mapping[str, object]
) -> Answer:
    stream = session.stream(prompts[edit], **options)  # type: ignore[arg-type]
    return Answer(edit, stream.finish(), stream.rounds)


def _row(
    setting: str, edit: str, answers: Mapping[str, Sequence[Answer]], verdicts: Sequence[str]
) -> dict[str, object]:
    """Returns the figures of an edit with a setting, by the headers of the table."""
    results = [each.result for each in answers[setting] if each.edit == edit]
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
        "tokens/s": _speed(results),
        "to plain": round(_speed(results) / _speed(_results(_PLAIN, answers, edit)), 2),
        "tokens a round": round(further(results)[0] / rounds, 2),
        "nodes a round": round(drafted / rounds, 2),
        "accepted": round(accepted / drafted, 3) if drafted else None,
        "predicted tokens": came[0],
        "finish": results[0].finish_reason,
        "equal": tally(own),
    }


def _results(
    setting: str, answers: Mapping[str, Sequence[Answer]], edit: str | None = None
) -> list[GenerationResult]:
    return [each.result for each in answers[setting] if edit in (None, each.edit)]


def _speed(results: Sequence[GenerationResult]) -> float:
    tokens, seconds = further(results)
    return round(tokens / seconds, 2)


def _ratio(setting: str, answers: Mapping[str, Sequence[Answer]]) -> float:
    return round(_speed(_results(setting, answers)) / _speed(_results(_PLAIN, answers)), 2)


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
        "--repeat", type=count, default=1, help="answers to each edit and setting (default 1)"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
