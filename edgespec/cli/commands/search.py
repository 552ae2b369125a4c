"""`edgespec search`: models by name, and what each of them would take here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgespec.cli.terminal import tell
from edgespec.cli.waiting import waiting
from edgespec.store.catalogue import CHAT, Catalogue, CatalogueEntry, ModelFile

if TYPE_CHECKING:
    from edgespec.store.choosing import ModelChooser

_MOST = 10  # repositories of the Hub


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "word",
        nargs="?",
        metavar="WORD",
        help="what a model's name or repository has, or a kind: chat, embeddings or rankings; the "
        "Hub is searched for it, too (default: the whole catalogue is listed)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the entries of the catalogue for a word, and what the Hub has for it."""
    from edgespec.export import search_hub  # loads the onnx package
    from edgespec.store.choosing import ModelChooser

    word = arguments.word
    catalogue = Catalogue.read()
    chooser = ModelChooser(catalogue)
    entries = [each for each in catalogue.models.values() if word is None or _has(each, word)]
    with waiting("memory is read"):
        found = [_facts(each, chooser) for each in entries]
    with waiting("the Hub is asked"):
        repositories = None if word is None else search_hub(word, _MOST)
    hub = [
        {
            "name": each.name,
            "parameters": each.parameters,
            "licence": each.licence,
            "downloads": each.downloads,
            "readable": each.readable,
        }
        for each in repositories or ()
    ]
    if arguments.json:
        tell(json.dumps({"catalogue": found, "hub": hub, "hub_answers": repositories is not None}))
        return 0
    _show(found, hub)
    for each in () if word is None else found:
        if each["heads"]:
            tell(f"heads for {each['name']}, to name behind --draft: {', '.join(each['heads'])}")
    if word is not None and repositories is None:
        tell("the Hub does not answer, so its repositories are not listed")
    elif not found and not hub:
        tell(f"there is no model for {word!r}: `edgespec search` without a word lists all names")
    return 0


def _has(entry: CatalogueEntry, word: str) -> bool:
    fields = (entry.name, entry.repository, entry.kind, entry.family)
    return any(word.lower() in each.lower() for each in fields)


def _facts(entry: CatalogueEntry, chooser: ModelChooser) -> dict[str, Any]:
    """Returns what a model would take here, by the file that fits or else by the usual one."""
    choice = chooser.fitting(entry)
    file = entry.files[0] if choice is None else choice.file
    draft = None if choice is None or choice.draft is None else choice.draft.entry.name
    return {
        "name": _name(entry, file),
        "kind": entry.kind,
        "repository": entry.repository,
        "file": file.file,
        "precision": file.precision,
        "size": file.size + entry.tower if choice is None else choice.size,
        "memory": chooser.memory(entry, file) if choice is None else choice.memory,
        "fits": choice is not None,
        "tokens_per_second": round(chooser.rate(entry, file), 1) if entry.kind == CHAT else None,
        "licence": entry.licence,
        "head": entry.head,
        "heads": entry.heads,
        "draft": draft,
    }


def _name(entry: CatalogueEntry, file: ModelFile) -> str:
    """Returns the name of an entry's file, which tells the precision if that is not the usual."""
    usual = file == entry.files[0]
    return entry.name if usual else f"{entry.name}-{file.precision.lower()}"


def _show(found: Sequence[dict[str, Any]], hub: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    from edgespec.cli.consoles import HarmlessConsole
    from edgespec.store.choosing import CONTEXT, gigabytes

    console = HarmlessConsole()
    if found:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("name", no_wrap=True)
        for column in ("size", "memory", "tokens/s"):
            table.add_column(column, justify="right", no_wrap=True)
        # Most are "Apache-2.0", and few models have a draft with a name: those rows are folded.
        table.add_column("licence", overflow="fold", min_width=10)
        table.add_column("draft, or kind", overflow="fold")
        for each in found:
            rate = each["tokens_per_second"]
            table.add_row(
                each["name"],
                gigabytes(each["size"]),
                gigabytes(each["memory"]) if each["fits"] else "too much",
                f"{rate:.0f}" if rate is not None and each["fits"] else "",
                each["licence"],
                each["draft"] or each["head"] or each["kind"].replace(CHAT, ""),
            )
        console.print(table)
        tell(f"memory with {CONTEXT:,} tokens of context; tokens/s estimated, without drafts")
    if hub:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("on the Hub", no_wrap=True)
        table.add_column("parameters", justify="right")
        table.add_column("downloads", justify="right")
        table.add_column("licence", overflow="fold")
        for each in hub:
            weights = f"{each['parameters'] / 1e9:.1f} B" if each["parameters"] else ""
            name = each["name"] if each["readable"] else f"{each['name']} (not read)"
            table.add_row(name, weights, f"{each['downloads']:,}", each["licence"])
        console.print(table)
