"""The text on which skip sets are tried, as pieces of tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.textfiles import read_utf8

PIECE = 128
"""Tokens of a piece at most: what one call reads."""

WARM_UP = 16
"""First tokens of a piece that are not judged, since they lack what came before them."""

GREEDY, SAMPLED = 0.0, 0.8
"""Temperatures of the kinds of text on which sets are tried."""

_FEWEST = 64  # tokens that are worth anything
# Shares from which on a text is not what the tokenizer was made for: tokens a byte, and unknown
# tokens a token.
_BYTEWISE, _UNKNOWN, _MOSTLY_UNKNOWN = 0.9, 0.05, 0.5

_log = logging.getLogger(__name__)


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        InputError: if it is empty or not UTF-8.
        OSError: if it cannot be read.
    """
    text = read_utf8(path, "the calibration text")
    if not text.strip():
        raise InputError(f"{path}: no text in it: give a calibration text of some hundred words")
    return text


@dataclass(frozen=True)
class Piece:
    """Text of one kind, or of any.

    Attributes:
        tokens: of the text.
        temperature: at which the model makes it; None: others wrote it, and it says something of
            either kind.
    """

    tokens: Sequence[int]
    temperature: float | None = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        """At which drafts are judged on it."""
        return (GREEDY, SAMPLED) if self.temperature is None else (self.temperature,)


def pieces_of(text: str, tokenizer: Tokenizer, count: int, source: str) -> list[Piece]:
    """Pieces from all over a text.

    Args:
        text: at least `_FEWEST` tokens.
        tokenizer: the target's.
        count: pieces at most.
        source: what the text is called in messages.

    Returns:
        As many pieces as the text has room for, at least one; each begins as a text does.

    Raises:
        InputError: if it is too short or the tokenizer does not know it.
    """
    beginning = tokenizer.encode("")
    tokens = tokenizer.encode(text, add_special=False)
    if len(tokens) < _FEWEST:
        raise InputError(
            f"{source}: {len(tokens)} tokens: {_FEWEST} are needed and some thousand wanted"
        )
    unknown = sum(token == tokenizer.unknown_id for token in tokens) / len(tokens)
    if unknown > _MOSTLY_UNKNOWN:
        raise InputError(
            f"{source}: {unknown:.0%} of its tokens are unknown to the model: give a text in a "
            "language it was made for"
        )
    bytewise = len(tokens) / len(text.encode("utf-8"))
    if unknown > _UNKNOWN:
        _log.warning("%s: %.0f %% of its tokens are unknown to the model", source, 100 * unknown)
    elif bytewise > _BYTEWISE:
        _log.warning(
            "%s: %.2f tokens a byte, so the tokenizer was not made for such text: the model will "
            "hardly be used on it", source, bytewise,
        )  # fmt: skip
    length = PIECE - len(beginning)
    fitting = max(min(count, len(tokens) // length), 1)
    room = max(len(tokens) - fitting * length, 0) // fitting
    starts = [piece * (length + room) for piece in range(fitting)]
    return [Piece(beginning + tokens[start : start + length]) for start in starts]


def openings(tokenizer: Tokenizer, length: int, count: int) -> list[Piece]:
    """Beginnings of so many tokens from our passages in turns, no two of them alike.

    Two by two they are to be continued greedily and sampled: most texts will be made in one of
    these ways, and greedy ones are easier to draft.
    """
    found = []
    for number in range(count):
        turn, place = divmod(number, len(PASSAGES))
        tokens = tokenizer.encode(PASSAGES[place])
        found.append(Piece(tokens[:length], (GREEDY, SAMPLED)[(place // 2 + turn) % 2]))
    return found


PASSAGES = (
    """The harbour was empty when the last boat came in. Two men tied it to the pier without a word,
carried the nets up the stone steps and spread them over the wall to dry. In the morning the
wind would turn to the north, and then nobody would go out for at least three days. The older
one looked at the clouds above the lighthouse and counted on his fingers what was left of the
month: nine days of fishing, perhaps ten if the weather held. It was not enough to pay for the
new engine, but it was more than they had earned in the whole of the previous spring.
""",
    '''import csv
from collections import defaultdict
from pathlib import Path


def read_totals(path):
    """Sum up the amounts of each account in a file of bookings."""
    totals = defaultdict(float)
    with Path(path).open(newline="") as file:
        for row in csv.DictReader(file):
            totals[row["account"]] += float(row["amount"])
    return dict(totals)


def report(totals, limit=0.0):
    for account, total in sorted(totals.items()):
        if abs(total) > limit:
            print(f"{account:20} {total:12.2f}")


if __name__ == "__main__":
    report(read_totals("bookings.csv"), limit=0.005)
''',
    """Question: Why does bread rise when it is baked, and why does it stop after a while?

Answer: Yeast feeds on the sugar in the dough and gives off carbon dioxide. The gas is caught in
small bubbles, because the proteins of the flour form an elastic net when they are kneaded with
water. In the oven the bubbles grow for two reasons: the yeast works faster at first, and every
gas takes up more room as it becomes warmer. At about sixty degrees the yeast dies, the starch
takes up the water and the net becomes stiff. From then on the loaf keeps its shape, and only
its crust goes on changing its colour.
""",
    '''class Stack:
    """A last-in, first-out container with a fixed capacity."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []

    def push(self, item):
        if len(self.items) == self.capacity:
            raise OverflowError("the stack is full")
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def __len__(self):
        return len(self.items)


def reverse(values):
    stack = Stack(len(values))
    for value in values:
        stack.push(value)
    return [stack.pop() for _ in range(len(stack))]
''',
    """The council met on Tuesday to discuss the plans for the old railway station. The
building, which was finished in 1894, has stood empty since the line was closed twelve years ago.
According to a report presented at the meeting, the roof must be repaired before next winter, at
a cost of about two hundred thousand. Several members asked whether the town could afford it. The
mayor said that a part of the money would come from the region, and that a decision was needed by
the end of June. The vote was put off until the architect has answered all of the questions.
""",
    '''def binary_search(values, wanted):
    """Index of `wanted` in a sorted list, or -1."""
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1


def test_binary_search():
    values = [1, 3, 4, 7, 9, 12]
    for index, value in enumerate(values):
        assert binary_search(values, value) == index
    assert binary_search(values, 5) == -1
    assert binary_search([], 1) == -1
''',
    """To set up the program, first make a folder for its data and note where it is. Then open the
settings and choose "Storage". Enter the path of the folder, and press "Check" to see whether
the program can write to it. If the check fails, look at the permissions of the folder: the
account under which the program runs must own it. Next, choose how often a copy is to be made.
Once a day is enough for most people; whoever changes many files should choose once an hour.
Finally, press "Save" and start the program again. The first copy takes a few minutes, later
ones only seconds.
""",
    """#include <stdio.h>
#include <stdlib.h>

struct node {
    int value;
    struct node *next;
};

static struct node *prepend(struct node *head, int value)
{
    struct node *node = malloc(sizeof(*node));
    if (node == NULL) {
        fprintf(stderr, "out of memory\\n");
        exit(1);
    }
    node->value = value;
    node->next = head;
    return node;
}

int main(void)
{
    struct node *head = NULL;
    for (int i = 0; i < 10; i++)
        head = prepend(head, i * i);
    for (struct node *node = head; node != NULL; node = node->next)
        printf("%d\\n", node->value);
    return 0;
}
""",
)
"""Prose and code for models that nothing else is known about."""
