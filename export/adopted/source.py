"""Finds the graph, config and tokenizer of a model that another program exported as ONNX.

Or lets optimum export it, in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from edgespec.errors import CheckpointError, ExportError, installing, reason
from edgespec.export.sources.hub import download
from edgespec.models.checkpoint import chat_template, eos_token, tokenizer_contents
from edgespec.models.config import eos_ids
from edgespec.models.fields import ConfigFields
from edgespec.models.sampling import asked_sampling
from edgespec.system.children import has_interpreter

_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+):([\w./-]+\.onnx)")
_INSTALL = f"{installing('optimum')}, with an environment of its own"
_USUAL = ("model.onnx", "onnx/model.onnx")
# What architectures call their sizes.
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_CONTEXT = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx")
_WINDOW = ("sliding_window", "window_size", "attention_chunk_size")


@dataclass(frozen=True)
class OnnxConfig:
    """What config.json says of a model whose layers are known from its graph alone.

    Its fields are those of `ModelConfig`. `window` is the number of positions that some layers see,
    where they do not see all; 0 if it is not stated.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    heads: int
    head_dim: int
    context_length: int
    window: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class OnnxSource:
    """A model that another program exported as ONNX; `Checkpoint` says what its fields are.

    Attributes:
        path: the folder of its config and tokenizer.
        graph: the ONNX file, in that folder or below it.
    """

    path: Path
    graph: Path
    config: OnnxConfig
    tokenizer_files: Mapping[str, str]
    chat_template: str | None
    eos_token: str | None
    sampling: dict[str, float] | None


def find_onnx(source: str) -> Path | None:
    """Returns the ONNX file that a user means; None if it is no model of this kind.

    Args:
        source: an ONNX file, a folder that has one and no safetensors, or `owner/name:FILE.onnx`
            for one on the Hub, which is downloaded.

    Raises:
        ExportError: if a folder has several ONNX files, or the Hub does not give the file.
    """
    path = Path(source)
    if path.is_file():
        return path if path.suffix == ".onnx" else None
    on_hub = _HUB_FILE.fullmatch(source)
    if on_hub is not None:
        repository, name = on_hub.groups()
        # External data lies beside the graph, under a name that begins with the graph's.
        graph = download(repository, (f"{name}*", "*.json", "*.jinja")) / name
        if not graph.is_file():
            raise ExportError(f"{source}: there is no such file in {repository}: check the name")
        return graph
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    usual = [path / name for name in _USUAL if (path / name).is_file()]
    found = usual[:1] or sorted([*path.glob("*.onnx"), *path.glob("onnx/*.onnx")])
    if len(found) > 1:
        names = ", ".join(str(PurePosixPath(each.relative_to(path))) for each in found)
        raise ExportError(f"{path} has several ONNX files: give the path of one of {names}")
    return found[0] if found else None


def open_onnx(graph: Path) -> OnnxSource:
    """Reads the config of an ONNX file, which lies beside it or one folder above.

    Raises:
        CheckpointError: if config.json is missing or invalid.
        UnsupportedModelError: if it is no decoder.
    """
    folders = (graph.parent, graph.parent.parent)
    path = next((each for each in folders if (each / "config.json").is_file()), None)
    if path is None:
        raise CheckpointError(
            f"{graph} has no config.json beside it: give the folder that optimum or the Hub made, "
            "with config.json and tokenizer.json"
        )
    files = tokenizer_contents(path)
    template = chat_template(path, files)
    end = eos_token(path, files)
    name = "generation_config.json"
    generation = ConfigFields.parse(files.get(name, "{}"), str(path / name))
    config = _config(path, generation)
    sampling = asked_sampling(generation)
    return OnnxSource(path, graph, config, files, template, end, sampling)


def _config(path: Path, generation: ConfigFields) -> OnnxConfig:
    fields = ConfigFields.read(path / "config.json")
    if fields.flag("is_encoder_decoder"):
        raise fields.unsupported("is_encoder_decoder", "give a model that only has a decoder")
    # Models that also read pictures have the sizes of their decoder in a group.
    own = fields.group("text_config").with_defaults(fields.values)
    hidden_size, heads = (own.integer(_name(own, names)) for names in (_HIDDEN, _HEADS))
    window = own.get(_name(own, _WINDOW))
    return OnnxConfig(
        model_type=str(fields.get("model_type")),
        vocab_size=own.integer("vocab_size"),
        hidden_size=hidden_size,
        heads=heads,
        head_dim=own.integer("head_dim", max(1, hidden_size // heads)),
        context_length=own.integer(_name(own, _CONTEXT)),
        window=window if isinstance(window, int) and window > 0 else 0,
        eos_ids=eos_ids(generation) or eos_ids(own),
    )


def _name(fields: ConfigFields, names: tuple[str, ...]) -> str:
    """Returns the first of these names that is there, or the usual one for the message."""
    return next((name for name in names if fields.get(name) is not None), names[0])


def export_by_optimum(model: str, folder: Path) -> str:
    """Exports a model with its past to a folder, which is made.

    Args:
        model: folder of a checkpoint, or a Hub id owner/name.
        folder: folder to create.

    Returns:
        The name and version of optimum's exporter.

    Raises:
        ExportError: if optimum is not installed, or refuses the model.
    """
    try:
        installed = find_spec("optimum.exporters.onnx") is not None
    except ModuleNotFoundError:  # optimum without its exporters, or none at all
        installed = False
    if not installed:
        raise ExportError(f"--via optimum needs optimum's ONNX exporter: run {_INSTALL}")
    if not has_interpreter():
        raise ExportError(
            "--via optimum needs a Python interpreter, and this program has one built in: run "
            f"optimum-cli yourself, and export the folder that it makes ({_INSTALL})"
        )
    # -P: a file of the current folder, such as types.py, must not hide a module of Python.
    command = [
        sys.executable,
        "-P",
        "-m",
        "optimum.commands.optimum_cli",
        "export",
        "onnx",
        "--model",
        model,
    ]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*command, "--task", "text-generation-with-past", str(folder)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ExportError(
            f"{model}: optimum did not export it ({reason(last)}): see what it supports at "
            "https://huggingface.co/docs/optimum-onnx"
        )
    try:
        return f"optimum-onnx {version('optimum-onnx')}"
    except PackageNotFoundError:  # before optimum 2 the exporter was part of it
        return f"optimum-onnx {version('optimum')}"
