"""`edgespec models`: lists, names and removes the bundles that were made of models."""

from __future__ import annotations

import argparse
import json

from rich.filesize import decimal
from rich.table import Table

from edgespec.cli.consoles import HarmlessConsole
from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.store.store import BundleStore


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "name", "rm"),
        default="list",
        help="list: show them all; name OLD NEW: call one by another name; rm NAME...: remove them "
        "(default: list)",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names that the list shows")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Lists the models, or changes one.

    Raises:
        InputError: if there is no such model, or names are missing or too many.
    """
    store = BundleStore()
    names = arguments.names
    if arguments.action == "name":
        if len(names) != 2:
            raise InputError("`models name` takes two names: OLD NEW")
        store.rename(*names)
        tell("{} is called {} now".format(*names))
    elif arguments.action == "rm":
        if not names:
            raise InputError("`models rm` takes the names of the models to remove")
        store.remove(*names)
        tell(f"removed {' and '.join(names)}")
    elif names:
        raise InputError(f"`models list` takes no names, but {names[0]!r} is given")
    else:
        _show(store, arguments.json)
    return 0


def _show(store: BundleStore, as_json: bool) -> None:
    made = store.made()
    if as_json:
        tell(
            json.dumps(
                [
                    {
                        "name": name,
                        "size": each.size,
                        "path": str(each.path),
                        "target": each.record.target,
                        "draft": each.record.draft or None,
                        "called": each.record.called or None,
                    }
                    for name, each in made.items()
                ]
            )
        )
        return
    table = Table("name")
    table.add_column("size", justify="right")
    table.add_column("made from", overflow="fold")
    for name, each in made.items():
        record = each.record
        sources = filter(None, (record.called, record.target, record.draft))
        table.add_row(name, decimal(each.size), "\n".join(sources))
    console = HarmlessConsole()
    if made:
        console.print(table)
    total = sum(each.size for each in made.values())
    count = "1 model" if len(made) == 1 else f"{len(made)} models"
    console.print(f"{count}, {decimal(total)} in {store.folder}")
