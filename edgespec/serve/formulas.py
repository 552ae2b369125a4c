r"""Formulas in Markdown, in TeX between `\(…\)`, `\[…\]`, `$…$` or `$$…$$`, as MathML."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

_LONGEST = 4000  # characters of a formula that is converted
_CLOSERS = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
# What a formula may consist of: `href`, `style` and the like would come from a model's words.
_NAMES = (
    "math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub "
    "msubsup msup mtable mtd mtext mtr munder munderover"
)
_GIVEN = (
    "accent accentunder columnalign columnlines depth display displaystyle fence form height "
    "largeop linethickness lspace mathvariant maxsize minsize movablelimits notation rspace "
    "scriptlevel separator stretchy voffset width"
)
_ELEMENTS, _ATTRIBUTES = frozenset(_NAMES.split()), frozenset(_GIVEN.split())
# Environments that the converter knows by another name.
_ENVIRONMENTS = {
    **dict.fromkeys(("align", "align*", "aligned", "alignedat", "eqnarray", "eqnarray*"), "split"),
    **dict.fromkeys(("gather", "gather*", "gathered", "multline", "multline*"), "matrix"),
}
_NUMBER = re.compile(r"[\d.,]+[A-Za-z]?")
_SHORT = re.compile(r"[\w\s^'(){}\[\],.:;+*/=<>|!-]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z]{3}")
_GROUP = re.compile(r"\{[^{}]*\}")


def add_formulas(parser: MarkdownIt) -> None:
    """Has a parser find formulas, as tokens `formula` whose `meta` says how they are shown."""
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before(
        "fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )


def mathml(source: str, display: bool) -> str | None:
    """Returns a formula in TeX as MathML; None if it is none.

    Args:
        source: the formula.
        display: whether it stands in lines of its own.
    """
    if len(source) > _LONGEST:
        return None
    source = source.replace(r"\operatorname*", r"\operatorname")
    source = re.sub(r"\\(begin|end)\{equation\*?\}", "", source)
    source = re.sub(r"\\(begin|end)\{([a-z]+\*?)\}", _known, source)
    try:
        element = Converter(display="block" if display else "inline").convert_to_element(source)
        return _written(element)
    except Exception:  # of many kinds, which share no base, and of too deep a nesting
        return None


def _known(found: re.Match[str]) -> str:
    return rf"\{found[1]}{{{_ENVIRONMENTS.get(found[2], found[2])}}}"


def _written(element: Element) -> str:
    """Returns an element as HTML; of one that is not known only what it holds."""
    # The converter writes characters as references, and would have them go into a page as they are.
    inside = escapeHtml(unescape(element.text or "")) + "".join(map(_written, element))
    if element.tag not in _ELEMENTS:
        return inside
    given = "".join(
        f' {name}="{escapeHtml(text)}"'
        for name, text in element.attrib.items()
        if name in _ATTRIBUTES
    )
    return f"<{element.tag}{given}>{inside}</{element.tag}>"


def _inline(state: StateInline, silent: bool) -> bool:
    """Finds a formula in a line of text."""
    opener = state.src[state.pos : state.pos + 2]
    if opener in _CLOSERS:
        begin = state.pos + 2
        end = state.src.find(_CLOSERS[opener], begin, state.posMax)
        after = end + 2
    elif opener[:1] == "$":
        begin = state.pos + 1
        end = _dollar(state.src, begin, state.posMax)
        after = end + 1
    else:
        return False
    source = state.src[begin:end].strip() if end > begin else ""
    if not source:
        return False
    if not silent:
        _push(state, source, state.src[state.pos : after], opener in ("$$", r"\["))
    state.pos = after
    return True


def _dollar(text: str, begin: int, most: int) -> int:
    """Returns where a formula in single dollars ends; -1 if these are prices, or anything else."""
    before = text[begin - 2 : begin - 1]
    if before.isalnum() or before == "$" or text[begin : begin + 1].isspace():
        return -1
    end = text.find("$", begin, most)
    while end > 0 and text[end - 1] == "\\":
        end = text.find("$", end + 1, most)
    after = text[end + 1 : end + 2]
    if end <= begin or text[end - 1].isspace() or after.isalnum() or after == "$":
        return -1
    return end if _is_formula(text[begin:end]) else -1


def _is_formula(source: str) -> bool:
    if "\n" in source:
        return False
    if "\\" in source:
        return True
    if source[0].isdigit() and not set("^_=").intersection(source):
        return _NUMBER.fullmatch(source) is not None
    return _SHORT.fullmatch(source) is not None and not _WORD.search(_GROUP.sub("", source))


def _block(state: StateBlock, start: int, last: int, silent: bool) -> bool:
    """Finds a formula in lines of its own, or what may still become one at the end of a text."""
    begin = state.bMarks[start] + state.tShift[start]
    opener = state.src[begin : begin + 2]
    if opener not in (r"\[", "$$") or state.is_code_block(start):
        return False
    closer = _CLOSERS[opener]
    whole = False
    line = start
    lines = list[str]()
    while line < last and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
        place = text.find(closer, 2 if line == start else 0)
        if place >= 0 and text[place + 2 :]:
            return False
        lines.append(text)
        line += 1
        if place >= 0:
            whole = True
            break
    if not whole and line < last:  # TeX allows no empty line in a formula
        return False
    if silent:
        return True
    source = "\n".join(lines)
    token = _push(state, source[2:-2].strip() if whole else "", source, True)
    token.block = True
    token.map = [start, line]
    state.line = line
    return True


def _push(state: Any, source: str, written: str, display: bool) -> Any:
    token = state.push("formula", "", 0)
    token.content = source
    token.meta = {"display": display, "written": written}
    return token
