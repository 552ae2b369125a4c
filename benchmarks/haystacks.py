"""Long texts of numbered notes, and questions whose answers are hidden in them.

Everything is drawn from a seed, so that the same arguments give the same texts. Notes are made up,
or sentences of given texts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Count = Callable[[str], int]
"""Returns the number of tokens of a text."""

COPIED_NOTES = 2
"""Number of consecutive notes that a question asks to copy."""

_WORDS = range(8, 41)  # of a sentence that becomes a note

_PLACES = (
    "archive", "bakery", "boathouse", "bridge", "brewery", "chapel", "cinema", "dairy", "embassy",
    "ferry", "foundry", "gallery", "garage", "greenhouse", "harbour", "hotel", "kennel", "laundry",
    "library", "lighthouse", "market", "mill", "museum", "nursery", "observatory", "orchard",
    "pharmacy", "prison", "quarry", "school", "shipyard", "stable", "stadium", "surgery", "tannery",
    "theatre", "tower", "tunnel", "vineyard", "workshop",
)  # fmt: skip
_PEOPLE = ("Adam", "Beth", "Carl", "Dora", "Emil", "Fay", "Gus", "Hilda", "Ivan", "Judith", "Karl")
_DID = ("repaired", "painted", "sold", "measured", "cleaned", "borrowed", "counted", "moved")
_THINGS = ("barrels", "bicycles", "candles", "chairs", "clocks", "ladders", "lamps", "ropes")
_LOOKS = ("broken", "empty", "green", "heavy", "old", "red", "rusty", "small", "wooden")
_WHEN = ("before breakfast", "during the storm", "on Friday", "after the meeting", "at midnight")
_THEN = ("wrote a letter about it", "told nobody", "was paid in coins", "missed the last bus")


@dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
        kind: `needle`, which asks for a fact, or `copy`, which asks for notes word for word.
        text: what is asked.
        wanted: parts that a right answer has, in this order.
    """

    kind: str
    text: str
    wanted: tuple[str, ...]

    def holds(self, answer: str) -> bool:
        """Returns whether an answer has all that is wanted, however its words are spaced."""
        rest = " ".join(answer.split())
        for part in self.wanted:
            if part not in rest:
                return False
            rest = rest.split(part, 1)[1]
        return True


@dataclass(frozen=True)
class Haystack:
    """A text, and the questions about it."""

    text: str
    questions: tuple[Question, ...]


def haystacks(
    count: int, tokens: int, size: Count, asked: int, texts: Sequence[str] = ()
) -> list[Haystack]:
    """Makes texts with questions, half of each kind, at places drawn at random.

    Args:
        count: number of texts.
        tokens: number of tokens of each text, up to the length of its last note.
        size: counts tokens.
        asked: number of questions of each kind about a text.
        texts: texts whose sentences are the notes; none: notes are made up.

    Raises:
        ValueError: if there is too little to ask for, or `texts` have no sentences.
    """
    if asked > len(_PLACES):
        raise ValueError(f"{asked} questions of a kind: ask at most {len(_PLACES)}")
    found = []
    for number in range(count):
        draw = random.Random(number)
        sentences = _sentences(draw, texts) if texts else _made_up(draw)
        found.append(_haystack(draw, sentences, tokens, size, asked))
    return found


def _haystack(
    draw: random.Random, sentences: Iterator[str], tokens: int, size: Count, asked: int
) -> Haystack:
    codes = {place: str(draw.randrange(10_000, 100_000)) for place in draw.sample(_PLACES, asked)}
    facts = [f"The access code of the {place} is {code}." for place, code in codes.items()]
    notes = list[str]()
    held = sum(size(_line(99, fact)) for fact in facts)
    while held < tokens:
        notes.append(next(sentences))
        held += size(_line(len(notes) + asked, notes[-1]))
    if len(notes) <= COPIED_NOTES * asked:
        raise ValueError(f"{tokens} tokens have {len(notes)} notes: give more, or ask less")
    for fact in facts:
        notes.insert(draw.randrange(len(notes) + 1), fact)
    questions = [
        Question("needle", f"What is the access code of the {place}?", (code,))
        for place, code in codes.items()
    ]
    for first in draw.sample(range(len(notes) - COPIED_NOTES + 1), asked):
        copied = notes[first : first + COPIED_NOTES]
        text = f"Copy the notes {first + 1} to {first + COPIED_NOTES} word for word."
        questions.append(Question("copy", text, tuple(" ".join(note.split()) for note in copied)))
    lines = [_line(number, note) for number, note in enumerate(notes, 1)]
    return Haystack("\n".join(lines), tuple(questions))


def _line(number: int, note: str) -> str:
    return f"Note {number}: {note}"


def _made_up(draw: random.Random) -> Iterator[str]:
    while True:
        who, other = draw.sample(_PEOPLE, 2)
        things = f"{draw.randrange(3, 100)} {draw.choice(_LOOKS)} {draw.choice(_THINGS)}"
        yield (
            f"{who} {draw.choice(_DID)} {things} {draw.choice(_WHEN)}, and {other} "
            f"{draw.choice(_THEN)}."
        )


def _sentences(draw: random.Random, texts: Sequence[str]) -> Iterator[str]:
    """Yields sentences from a place drawn at random on, and from the beginning again."""
    found = [
        sentence
        for text in texts
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", " ".join(text.split()))
        if len(sentence.split()) in _WORDS
    ]
    if not found:
        raise ValueError(f"no sentence has {_WORDS[0]} to {_WORDS[-1]} words: give other texts")
    start = draw.randrange(len(found))
    while True:
        yield from found[start:]
        yield from found[:start]
