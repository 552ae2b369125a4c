"""What a page of Markdown says to type, and what it says is shown then."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(\w*)\n((?:.*\n)*?)```$|(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)", re.M)
_SHELLS = ("sh", "bash", "shell")
_NUMBER = r"\d+(?:[.,]\d+)*"
_FIGURE = re.compile(r"\d ?(?:s|ms|%|tokens/s|[kMGT]i?B)(?!\w)")


@dataclass(frozen=True)
class Step:
    """What is typed at once.

    Attributes:
        text: a line for the shell, or a program.
        program: whether it is a program in Python.
        shown: what is shown then, as the page has it; empty: it doesn't say.
    """

    text: str
    program: bool = False
    shown: str = ""


def steps(page: str) -> list[Step]:
    """Returns what a page says to type, in order.

    Indented blocks and those of a shell are commands, a line each unless it ends in a backslash.
    Blocks of Python are programs. A block of `text` is what the step before it shows.
    """
    found = list[Step]()
    for language, fenced, indented in _BLOCK.findall(page):
        if language == "python":
            found.append(Step(fenced, program=True))
        elif language == "text" and found:
            last = found.pop()
            found.append(Step(last.text, last.program, fenced))
        elif language in _SHELLS or indented:
            lines = re.sub(r"\\\n\s*", "", fenced or indented).splitlines()
            commands = [line.strip() for line in lines]
            found += [Step(each) for each in commands if each and not each.startswith("#")]
    return found


def missing(shown: str, output: str) -> str | None:
    """Returns the first line of what a page shows that an output lacks; None if it has all.

    Lines must come one behind the other. A line of `...` stands for any lines, `...` in a line for
    anything in it. Where a line has a figure with a unit of time, speed, size or share, each of its
    numbers stands for any number.
    """
    pattern = ""
    for line in shown.rstrip().splitlines():
        pattern += r"(?:.*\n)*?" if line.strip() == "..." else f"{_pattern(line.rstrip())} *\n"
        if re.search(f"^{pattern}", f"{output}\n", re.M) is None:
            return line
    return None


def _pattern(line: str) -> str:
    """Returns the regular expression of a line as it may be shown."""
    any_number = _FIGURE.search(line) is not None
    pattern = ""
    for part in re.split(rf"(\.\.\.|{_NUMBER})", line):
        if part == "...":
            pattern += ".*"
        elif any_number and part[:1].isdecimal():
            pattern += _NUMBER
        else:
            pattern += re.escape(part)
    return pattern
