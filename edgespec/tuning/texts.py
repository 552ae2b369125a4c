"""Text for calibration and trials, as pieces of tokens."""

from __future__ import annotations

import logging
from pathlib import Path

from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.files import read_utf8

PIECE = 128
"""Maximum number of tokens in a piece, which one call reads."""

WARM_UP = 16
"""Number of first tokens of a piece that are not scored, since they have little context."""

_FEWEST = 64  # fewest useful tokens
# Limits above which a text does not suit the tokenizer: tokens per byte, and the share of unknown
# tokens for a warning and for an error.
_BYTEWISE, _UNKNOWN, _MOSTLY_UNKNOWN = 0.9, 0.05, 0.5

_log = logging.getLogger(__name__)


def read_text(path: Path) -> str:
    """Reads a calibration text from a file.

    Raises:
        InputError: if the file is empty or not UTF-8.
        OSError: if the file cannot be read.
    """
    text = read_utf8(path, "the calibration text")
    if not text.strip():
        raise InputError(f"{path} is empty: give a calibration text of a few hundred words")
    return text


def calibration_text(path: Path | None) -> tuple[str, str]:
    """Returns a calibration text, and its name in messages.

    Args:
        path: file with the text; None for the built-in passages in English and Python.

    Raises:
        InputError: if the file is empty or not UTF-8.
        OSError: if the file cannot be read.
    """
    if path is None:
        return "\n\n".join(PASSAGES), "the built-in text"
    return read_text(path), str(path)


def pieces_of(text: str, tokenizer: Tokenizer, count: int, source: str) -> list[list[int]]:
    """Cuts pieces of token ids from all parts of a text.

    Args:
        text: text of at least `_FEWEST` tokens.
        tokenizer: tokenizer of the target.
        count: maximum number of pieces.
        source: name of the text in messages.

    Returns:
        As many pieces as the text allows, at least one; each starts with the tokens that a text
        starts with.

    Raises:
        InputError: if the text is too short or the tokenizer does not know it.
    """
    beginning = tokenizer.encode("")
    tokens = tokenizer.encode(text, add_special=False)
    if len(tokens) < _FEWEST:
        raise InputError(
            f"{source}: it has {len(tokens)} tokens: give at least {_FEWEST}, better a few thousand"
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
            "%s: %.2f tokens per byte: the tokenizer was not made for such text, so give one like "
            "those that the model will read", source, bytewise,
        )  # fmt: skip
    length = PIECE - len(beginning)
    fitting = max(min(count, len(tokens) // length), 1)
    room = max(len(tokens) - fitting * length, 0) // fitting
    starts = [piece * (length + room) for piece in range(fitting)]
    return [beginning + tokens[start : start + length] for start in starts]


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
"""Built-in prose and code, for calibration and trials without a text from the user."""
