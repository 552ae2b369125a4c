"""Opens a model in a GGUF file, or in the files that it was split into."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from gguf import LlamaFileType

from edgespec.errors import CheckpointError
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.architectures import ARCHITECTURES
from edgespec.models.formats.gguf.bitnet import BitNetReader
from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.encoders import EncoderReader
from edgespec.models.formats.gguf.gemma3n import Gemma3nReader
from edgespec.models.formats.gguf.gemma4 import Gemma4Reader
from edgespec.models.formats.gguf.header import Header, read_header
from edgespec.models.formats.gguf.hybrids import DeltaReader, KimiReader, Lfm2Reader, Qwen35Reader
from edgespec.models.formats.gguf.mamba import GraniteHybridReader, NemotronReader
from edgespec.models.formats.gguf.minicpm import MiniCpm3Reader, MiniCpmReader
from edgespec.models.formats.gguf.mmproj import TOWER_KIND, read_mmproj
from edgespec.models.formats.gguf.pooling import read_pooling
from edgespec.models.formats.gguf.routed import (
    DeepseekReader,
    Llama4Reader,
    MixtralReader,
    PhiMoeReader,
    RoutedLatentReader,
    RoutedReader,
)
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.formats.gguf.tokenizer import tokenizer_files
from edgespec.models.formats.gguf.vocabulary import GGUFVocabulary
from edgespec.models.formats.parts import Parts
from edgespec.models.named import parts
from edgespec.models.opened import CheckpointParts
from edgespec.models.sampling import gguf_sampling

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.models.formats.gguf.encodings import Encoding

_READERS = {
    "bert": EncoderReader,
    "bitnet": BitNetReader,
    "deepseek2": DeepseekReader,
    "gemma3n": Gemma3nReader,
    "gemma4": Gemma4Reader,
    "glm4moe": RoutedReader,
    "granitehybrid": GraniteHybridReader,
    "jina-bert-v2": EncoderReader,
    "kimi-linear": KimiReader,
    "lfm2": Lfm2Reader,
    "lfm2moe": Lfm2Reader,
    "llama": MixtralReader,
    "llama4": Llama4Reader,
    "minicpm": MiniCpmReader,
    "minicpm3": MiniCpm3Reader,
    "mistral4": RoutedLatentReader,
    "nemotron_h": NemotronReader,
    "nemotron_h_moe": NemotronReader,
    "phimoe": PhiMoeReader,
    "qwen35": Qwen35Reader,
    "qwen35moe": Qwen35Reader,
    "qwen3next": DeltaReader,
}
_UNTOLD = {0, 1024}  # all in float32, which is also what converters write by default; guessed
ADAPTER = "adapter"
"""What `general.type` is of an adapter."""

_TEMPLATE = "tokenizer.chat_template"


def open_gguf(path: Path) -> CheckpointParts:
    """Opens a GGUF file; of a split one, any of its files.

    Raises:
        UnsupportedModelError: The file needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    header = whole_header(path)
    metadata = ConfigFields(header.metadata, str(path))
    if metadata.get("general.type") == ADAPTER:
        raise metadata.unsupported("general.type", "give its model, and this file with --lora")
    kind = metadata.get("general.architecture")
    naming = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if naming is None:
        remedy = f"use one of {', '.join(ARCHITECTURES)}"
        if kind == TOWER_KIND:
            remedy = "give the file of the model for which this one reads pictures"
        raise metadata.unsupported("general.architecture", remedy)
    reader = _READERS.get(str(kind), ConfigReader)(metadata, str(kind), naming, header.entries)
    vocabulary = GGUFVocabulary.read(metadata)
    files = tokenizer_files(vocabulary)
    template = metadata.get(_TEMPLATE)
    if template is not None:
        if not isinstance(template, str):
            raise metadata.invalid(_TEMPLATE, "must be text")
        files["chat_template.jinja"] = template
    if sampling := gguf_sampling(metadata):
        files["generation_config.json"] = json.dumps(sampling)
    config = ConfigFields(reader.config(vocabulary.ends()), str(path))
    tensors = GgufTensors(str(path), header.entries, naming, reader.layers, reader.columns())
    pooled = read_pooling(reader, naming.both_ways)
    return CheckpointParts(
        config,
        Parts(tensors, reader.rows(tensors)),
        files,
        _kind(header),
        pooled,
        read_mmproj(path, config, vocabulary) if pooled is None else None,
    )


def keeps_order(kind: str) -> bool:
    """Whether `Naming` tells all of the order of rows and columns in an architecture's files."""
    reader = _READERS.get(kind, ConfigReader)
    return reader.rows is ConfigReader.rows and reader.columns is ConfigReader.columns


def _kind(header: Header) -> str:
    """The type that the file tells, such as Q4_K_M, and the encoding of most values if it differs.

    Empty if most values are not rounded to blocks.
    """
    values: Counter[Encoding] = Counter()
    for entry in header.entries.values():
        values[entry.encoding] += math.prod(entry.shape)
    encoding = max(values, key=values.__getitem__)
    if encoding.block == 1:
        return ""
    told = header.metadata.get("general.file_type")
    names = {int(each): each.name.removeprefix("MOSTLY_") for each in LlamaFileType}
    name = names.get(told, "") if isinstance(told, int) else ""
    if not name or told in _UNTOLD:
        return encoding.name
    return name if name.startswith(encoding.name) else f"{name} (mostly {encoding.name})"


def whole_header(path: Path) -> Header:
    """The header of the first file, with the tensors of all."""
    files = [path.with_name(name) for name in parts(path.name)] or [path]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{missing[0]} is missing, one of {len(files)} files that belong together: "
            "download all of them to one folder"
        )
    first = read_header(files[0])
    declared = first.metadata.get("split.count")
    if declared not in (None, 0, len(files)):
        raise CheckpointError(
            f"{files[0]}: split.count={declared!r}, but the name tells of {len(files)}: give the "
            "files the names that they were published with"
        )
    entries = dict(first.entries)
    for file in files[1:]:
        found = read_header(file).entries
        twice = sorted(found.keys() & entries.keys())
        if twice:
            raise CheckpointError(
                f"{file}: {twice[0]} is in another of the files, too: use files of one model"
            )
        entries |= found
    return Header(first.metadata, entries)
