"""`edgespec serve`: a local server with OpenAI's API."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.arguments import (
    CACHES,
    MACHINE,
    MODEL_HELP,
    add_options,
    given,
    require_least,
)
from edgespec.cli.interrupts import ignoring_termination
from edgespec.cli.mcp_servers import toolbox_of
from edgespec.cli.models import chosen, warm_up_aside
from edgespec.cli.parsing import Rare
from edgespec.cli.terminal import tell
from edgespec.cli.waiting import waiting
from edgespec.errors import InputError, installing
from edgespec.llm.at_once import TEXTS_AT_ONCE
from edgespec.llm.load.options import LoadOptions, parse_size
from edgespec.system.durations import parse_duration

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from edgespec.bundle import Bundle
    from edgespec.mcp.toolbox import Toolbox
    from edgespec.serve.access import Certificate
    from edgespec.serve.served_model import ServedModel

KEY_VARIABLE = "EDGESPEC_API_KEY"
_LONGEST_AT_ONCE = 4  # texts as long as the context that memory is planned for, if it has room
# bytes of a request's body at most
_BODY = 4 << 20
_BODY_WITH_IMAGES = 64 << 20
_PORTS = range(1 << 16)
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_PREFIX = re.compile(r"(/[\w.~-]+)+/?")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")

_log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments; those of the model have the API's defaults."""
    _add_models(parser)
    _add_network(parser)
    _add_access(parser)
    _add_tools(parser)
    texts = parser.add_argument_group("texts")
    _add_texts(texts)
    add_options(texts, LoadOptions, "context_shift", *CACHES, sessions=None)
    add_options(parser.add_argument_group("machine"), LoadOptions, "draft", *MACHINE)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--max-models",
        type=int,
        metavar="N",
        help=Rare(
            "number of models that are loaded at once; the one that was not used for longest "
            "gives way to the next (default: as many as memory has room for)"
        ),
    )
    parser.add_argument(
        "--idle-unload",
        type=parse_duration,
        default=math.inf,
        metavar="TIME",
        help=Rare(
            "unload a model that nobody has used for this long, such as 5m; the next request loads "
            "it again (default: only where another one needs its room)"
        ),
    )
    parser.add_argument(
        "--any-model",
        action="store_true",
        help=Rare("let the first model also answer requests for models of other names"),
    )


def _add_tools(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mcp",
        type=Path,
        metavar="FILE",
        help=Rare(
            "JSON file with mcpServers, as other programs have it: models may call their tools on "
            "the page, after it has asked"
        ),
    )


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8080,
        metavar="N",
        help="port to listen on; 0: any free port (default: %(default)s)",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help=Rare("encrypt connections (https) by this certificate, in PEM"),
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help=Rare("private key of --certificate (default: in the same file)"),
    )
    parser.add_argument(
        "--prefix",
        default="",
        metavar="PATH",
        help=Rare("path before all routes, where a proxy passes it on, such as /edgespec"),
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get(KEY_VARIABLE),
        help="API key that clients must send; other users of this machine can see it in the "
        f"process list, unlike the environment variable {KEY_VARIABLE}",
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=Rare(
            "file of API keys of which clients must send one, each in a line with a name for the "
            "log, as NAME: KEY"
        ),
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help=Rare(
            "let web pages of this origin use the server, such as http://localhost:3000; *: all; "
            "may be repeated"
        ),
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help=Rare(
            "answer requests that call this machine by this name, such as that of a proxy; may be "
            "repeated"
        ),
    )


def _add_texts(texts: argparse._ArgumentGroup) -> None:
    texts.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help=f"number of requests to answer at once; they share passes (default: {TEXTS_AT_ONCE})",
    )
    texts.add_argument(
        "--queue",
        type=int,
        default=64,
        metavar="N",
        help=Rare(
            "number of requests that may wait; further ones are refused (default: %(default)s)"
        ),
    )
    texts.add_argument(
        "--max-body",
        type=parse_size,
        metavar="SIZE",
        help=Rare(
            "maximum size of a request's body (default: 4MiB, or 64MiB with a model that reads "
            "images)"
        ),
    )


def execute(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM.

    Returns:
        0.
    """
    _check(arguments)
    try:
        with waiting("the server starts"):
            from edgespec.serve.access import Access
            from edgespec.serve.models import Models
            from edgespec.serve.queue import RequestQueue
            from edgespec.serve.running import Server, is_local, listen
    except ModuleNotFoundError as error:
        raise InputError(
            f"the server needs the package {error.name}: {installing('serve')}"
        ) from error
    keys = _keys(arguments)
    certificate = _certificate(arguments)
    with (
        listen(arguments.host, arguments.port) as sock,
        _tools(arguments, bool(keys) or is_local(sock)) as toolbox,
    ):
        if not is_local(sock) and not keys:
            _log.warning(
                "anybody who can reach %s can use the model: set --api-key", arguments.host
            )
        found = _bundles(arguments)
        usual = _BODY
        if any(bundle.target.vision is not None for bundle in found.values()):
            usual = _BODY_WITH_IMAGES
        with waiting("the first model is loaded"):
            served = _models(found, arguments)
            models = Models(
                served, arguments.max_models, arguments.any_model, arguments.idle_unload
            )
            warm_up_aside(served[0].load())  # which tells at once what is wrong
        _keep_responses(arguments)
        parallel = arguments.parallel or TEXTS_AT_ONCE
        most = arguments.max_body or usual
        queue = RequestQueue(models, parallel, arguments.queue, most, toolbox)
        names = " and ".join(each.name for each in served)
        url = _url(sock, certificate, arguments.prefix)

        def ready() -> None:
            are = "is" if len(served) == 1 else "are"
            served_on = f"{names} {are} served on {url}: a page to chat on"
            api = f"{url.rstrip('/')}/v1 for programs"
            tell(f"{served_on}, and {api}. Ctrl-C stops it", stream=sys.stderr)

        access = Access(
            keys, arguments.allow_host, arguments.allow_origin, arguments.prefix.rstrip("/")
        )
        server = Server(queue, sock, access, ready, certificate)
        with ignoring_termination():
            server.serve_here()
        models.close()
        server.settle()
    return 0


def _url(sock: socket.socket, certificate: Certificate | None, prefix: str) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if certificate is None else "https"
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{scheme}://{place}{prefix}"


def _tools(arguments: argparse.Namespace, guarded: bool) -> AbstractContextManager[Toolbox | None]:
    """Returns the tools that the page offers, of servers that are started.

    Args:
        arguments: values of all options.
        guarded: whether only this machine, or who has a key, can use the server.

    Raises:
        InputError: if strangers could call them.
    """
    if arguments.mcp is not None and not guarded:
        raise InputError(
            f"anybody who can reach {arguments.host} could call the tools of --mcp: set --api-key"
        )
    return toolbox_of(arguments.mcp)


def _keep_responses(arguments: argparse.Namespace) -> None:
    """Has responses kept in the folder in which prompts are, so that requests go on from them."""
    from edgespec.serve.protocols.responses.store import RESPONSES

    if arguments.prompt_cache is not None:
        RESPONSES.keep_in(Path(arguments.prompt_cache) / "responses")


def _bundles(arguments: argparse.Namespace) -> dict[str, Bundle]:
    """Finds or makes the bundles of all models; returns them by the models' names."""
    from edgespec import bundle as bundles
    from edgespec.store.making import bundle_name

    found: dict[str, Bundle] = {}
    for model in arguments.models or [None]:
        arguments.model = model
        bundle = bundles.load(chosen(arguments))
        name = bundle_name(bundle)
        if name in found:
            raise InputError(f"two models are called {name!r}: rename the folder of one")
        found[name] = bundle
    return found


def _models(found: Mapping[str, Bundle], arguments: argparse.Namespace) -> list[ServedModel]:
    from edgespec.serve.served_model import ServedModel

    most = None if arguments.sessions else arguments.parallel or _LONGEST_AT_ONCE
    options = LoadOptions(**{**given(arguments, LoadOptions), "sessions": arguments.sessions or 1})
    served = [ServedModel(name, bundle, options, most) for name, bundle in found.items()]
    names = [name for each in served for name in each.names]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two of the model and its adapters are called {twice!r}: rename one")
    return served


def _keys(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the API keys by their names."""
    from edgespec.serve.access import read_keys, require_usable

    file = arguments.api_key_file
    own = {} if arguments.api_key is None else {"--api-key": require_usable(arguments.api_key)}
    return own | ({} if file is None else read_keys(file))


def _certificate(arguments: argparse.Namespace) -> Certificate | None:
    """Returns what connections are encrypted by, if they are."""
    from edgespec.serve.access import Certificate

    if arguments.certificate is None:
        if arguments.key is not None:
            raise InputError(f"--key is {arguments.key} without --certificate: give both")
        return None
    found = Certificate(arguments.certificate, arguments.key)
    found.check()
    return found


def _check(arguments: argparse.Namespace) -> None:
    """Checks the options before a large model is loaded."""
    require_least(arguments, parallel=1, queue=0, sessions=1, max_models=1)
    if len(arguments.models) > 1:
        single = {
            "--draft": LoadOptions(draft=arguments.draft).draft_model,
            "draft_memory": getattr(arguments, "draft_memory", None),
            "--lora": ", ".join(arguments.lora),
        }
        for name, value in single.items():
            if value:
                raise InputError(
                    f"{name} is {str(value)!r}, and there are {len(arguments.models)} models: give "
                    "it with one model alone"
                )
    if arguments.port not in _PORTS:
        raise InputError(f"--port is {arguments.port}: give a number up to {_PORTS[-1]}")
    for origin in arguments.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise InputError(
                f"--allow-origin is {origin!r}: give an origin such as http://localhost:3000, "
                "without a path, or * for all"
            )
    for host in arguments.allow_host:
        if not _HOST.fullmatch(host):
            raise InputError(
                f"--allow-host is {host!r}: give a name such as box.example, without a port"
            )
    if arguments.prefix and not _PREFIX.fullmatch(arguments.prefix):
        raise InputError(
            f"--prefix is {arguments.prefix!r}: give a path such as /edgespec, of letters, digits "
            "and -._~"
        )
