"""`edgespec serve`: a local server that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from typing import TYPE_CHECKING

from edgespec.cli.arguments import (
    LOAD_DEFAULTS,
    add_bundle,
    add_device_options,
    add_draft_source,
    given,
)
from edgespec.cli.interrupts import endings_unheard
from edgespec.errors import InputError
from edgespec.runtime.deployment.options import parse_size

if TYPE_CHECKING:
    from edgespec.bundle import Bundle

KEY_VARIABLE = "EDGESPEC_API_KEY"
_PORTS = range(1 << 16)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; those of the model are the API's, with its defaults."""
    add_bundle(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="0: any (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", default=os.environ.get(KEY_VARIABLE),
        help=f"what clients must send; other users see it here, and not in {KEY_VARIABLE}",
    )  # fmt: skip
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="another site whose pages may ask here, as http://localhost:3000; *: all; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--model-name", metavar="NAME", help="what clients call the model (default: its folder)"
    )
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--parallel", type=int, default=1, metavar="N",
        help="texts at once, which share the speed (default: %(default)s)",
    )  # fmt: skip
    texts.add_argument(
        "--queue", type=int, default=64, metavar="N",
        help="requests that may wait; others are told to come later (default: %(default)s)",
    )  # fmt: skip
    texts.add_argument(
        "--max-body", type=parse_size, default="4MiB", metavar="SIZE",
        help="of a request at most (default: %(default)s)",
    )  # fmt: skip
    texts.add_argument(
        "--sessions", type=int, metavar="N",
        help="texts of full length to have memory for (default: as many as --parallel)",
    )  # fmt: skip
    texts.add_argument(
        "--prefix-reuse", action=argparse.BooleanOptionalAction, default=True,
        help="go on from what earlier texts have left; where rows are not exact, a near-tie may "
        "then fall otherwise (default: on)",
    )  # fmt: skip
    add_draft_source(parser.add_argument_group("drafting (never changes the text)"))
    add_device_options(parser.add_argument_group("machine"))


def execute(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Returns:
        0.
    """
    _check(arguments)
    try:
        from edgespec.server.endpoint import Served
        from edgespec.server.running import Server, is_local, listen
        from edgespec.server.service import Desk
    except ModuleNotFoundError as error:
        raise InputError(
            f'the server needs the package {error.name}: pip install "edgespec[serve]"'
        ) from error
    from edgespec.api.llm import LLM

    with listen(arguments.host, arguments.port) as sock:
        if not is_local(sock) and arguments.api_key is None:
            _log.warning("whoever can reach %s may use the model: give --api-key", arguments.host)
        options = given(arguments, LOAD_DEFAULTS)
        options["sessions"] = arguments.sessions or arguments.parallel
        with LLM(arguments.bundle, **options) as llm:
            desk = Desk(llm, arguments.parallel, arguments.queue)
            name = arguments.model_name or _name(llm.bundle)
            served = Served(desk, name, arguments.max_body)
            place = f"http://{_shown(sock.getsockname()[:2])}"

            def ready() -> None:
                print(f"{name} is served on {place}: Ctrl-C stops it", file=sys.stderr, flush=True)

            with endings_unheard():
                Server(served, arguments.api_key, sock, ready, arguments.allow_origin).serve_here()
            if arguments.draft_memory is not None:
                llm.save_draft_memory(arguments.draft_memory)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Before a large model is loaded in vain."""
    for name, least in (("parallel", 1), ("queue", 0), ("sessions", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise InputError(f"--{name} is {value}: give a whole number of at least {least}")
    if arguments.port not in _PORTS:
        raise InputError(f"--port is {arguments.port}: give a number up to {_PORTS[-1]}")
    for origin in arguments.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise InputError(
                f"--allow-origin is {origin!r}: give it as http://localhost:3000, without a path, "
                "or * for all"
            )
    key = arguments.api_key
    if key == "":
        raise InputError("the API key is empty: give one, or leave it out")
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InputError(
            "the API key has what headers cannot have: use ASCII alone, in one line and without "
            "spaces around it"
        )


def _name(bundle: Bundle) -> str:
    """The folder's; the embedded pair's says nothing."""
    from edgespec.models.embedded import BUNDLE

    if bundle.path.resolve() == BUNDLE.resolve():
        return bundle.manifest.provenance["target"]
    return bundle.path.resolve().name


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
