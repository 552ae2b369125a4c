"""Portable graphs of roles, made when a device first needs them and kept in the cache folder."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from edgespec.bundle import Bundle
from edgespec.bundle.options import GraphForm
from edgespec.errors import InputError
from edgespec.llm.load.halves_trial import HalvesTrial
from edgespec.llm.load.prompt_trial import PromptTrial
from edgespec.llm.load.trials import kept_trial
from edgespec.system.cachedir import cache_folder, intact, seal

CACHE_TYPES = frozenset({"float16", "float32"})
"""Of what fused operators do: without them, attention has standard operators."""

_log = logging.getLogger(__name__)


def portable_graph(bundle: Bundle, name: str, form: GraphForm, part: bytes | None = None) -> Path:
    """Returns the ONNX file of a role's portable graph, beside its weights.

    It is in the cache folder, by the hashes of the native graph and of its tiles, of which a head
    has some of the target's, and made anew if it is damaged.

    Args:
        bundle: the bundle, whose role has a native graph.
        name: name of the role.
        form: what it has on the device.
        part: content of the part of the graph that is wanted; None: all of it.

    Raises:
        InputError: if the graph has what the CPU alone computes, or the cache folder has no room.
    """
    from edgespec.export.portable import DATA, GRAPH, lower  # loads the onnx package

    native = bundle.manifest.roles[name].native
    made = portable_file(bundle, name, form, part).parent
    folder = made.parent
    if not intact(made):
        if made.exists():
            _log.warning("%s is damaged or of another version, and is made anew", made)
        begin = time.perf_counter()
        try:
            shutil.rmtree(made, ignore_errors=True)
            lower(bundle.path / native.graph, made, form, part)
        except OSError as error:
            raise InputError(
                f"{folder}: the graph for this device cannot be written "
                f"({error.strerror or error}): make room, or set EDGESPEC_CACHE to another folder"
            ) from error
        seal(made)
        _log.info(
            "made the portable graph of the %s in %.0f s: %.0f MB in %s",
            name,
            time.perf_counter() - begin,
            (made / DATA).stat().st_size / 1e6,
            made,
        )
    return made / GRAPH


def portable_file(bundle: Bundle, name: str, form: GraphForm, part: bytes | None = None) -> Path:
    """Returns the ONNX file that `portable_graph` makes, or would make.

    Raises:
        InputError: if there is no cache folder.
    """
    from edgespec.export.portable import GRAPH  # loads the onnx package

    folder = cache_folder("portable")
    if folder is None:
        raise InputError("there is no cache folder: set EDGESPEC_CACHE to a writable one")
    return folder / _key(bundle, name, form, part) / GRAPH


def in_halves(graph: Path) -> Path | None:
    """Returns the file of a portable graph's form in half precision; None if there is none."""
    from edgespec.export.portable import HALVES  # loads the onnx package

    file = graph.with_name(HALVES)
    return file if file.is_file() else None


@dataclass(frozen=True)
class PortableForm:
    """What lies in the cache folder for a kind of device.

    Attributes:
        nodes: those that compute, by layer; those of the head and before the layers are counted
            with them. None: there is no graph of the whole role.
        trial: what the role did in half precision there; None: that was not tried.
        prompts: what the role did with prompts there while other layers lay on the host; None: that
            was not tried.
    """

    nodes: float | None
    trial: HalvesTrial | None
    prompts: PromptTrial | None


def portable_forms(bundle: Bundle, name: str) -> dict[str, PortableForm]:
    """Returns what is known of a role's portable graphs, by kinds of devices.

    Kinds for which no graph lies in the cache folder are left out: it is made when a device first
    needs it.
    """
    folder = cache_folder("portable")
    found = dict[str, PortableForm]()
    if folder is None or not any(folder.iterdir()):
        return found
    from edgespec.runtime.engines.portable import accuracy_level, computing_nodes, fused_forms

    for device, operators in fused_forms().items():
        fused = fused_of(bundle, operators)
        for half in (None, True, False):
            made = portable_file(bundle, name, GraphForm(accuracy_level(device), half, fused))
            prompts = kept_trial(PromptTrial, made)
            nodes = None
            if made.is_file():
                nodes = computing_nodes(made) / bundle.manifest.roles[name].layers
            if nodes is not None or prompts is not None:
                found[device] = PortableForm(nodes, kept_trial(HalvesTrial, made), prompts)
    return found


def fused_of(bundle: Bundle, fused: frozenset[str] | None) -> frozenset[str] | None:
    """Returns what fused operators do in a bundle's graphs, of what they do on a device.

    A head that reads the target's pools reads them by their slots, so caches have those.
    """
    if fused is None or not any(each.attends_target for each in bundle.manifest.roles.values()):
        return fused
    return fused - CACHE_TYPES


def _key(bundle: Bundle, name: str, form: GraphForm, part: bytes | None) -> str:
    """Returns the name of a graph's folder, see `portable_graph`."""
    from edgespec.export.portable import VERSION  # loads the onnx package

    role = bundle.manifest.roles[name]
    borrowed = [bundle.target.native.data] if role.is_head else []
    files = (role.native.graph, role.native.data, *borrowed)
    graph, *data = (bundle.manifest.files[each].sha256 for each in files)
    if part is not None:
        graph = hashlib.sha256(part).hexdigest()
    operators = None if form.fused is None else sorted(form.fused)
    facts = repr((VERSION, form.accuracy, form.half, operators, graph, data))
    return hashlib.sha256(facts.encode()).hexdigest()[:24]
