"""Opens a checkpoint, a folder in the format of transformers or a GGUF file, and checks it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError
from edgespec.models.architectures import architecture_of
from edgespec.models.config import CLASSIFIER, ModelConfig, both_ways, class_of
from edgespec.models.families.encoder import Encoder
from edgespec.models.fields import ConfigFields, check_share, read_checkpoint_text
from edgespec.models.formats.gguf.opening import open_gguf
from edgespec.models.formats.quantized.opening import opened as unpacked
from edgespec.models.formats.safetensors_folder import SafetensorsFolder
from edgespec.models.formats.tensors import TensorSource, check_shapes, equal_tensors
from edgespec.models.formats.tiktoken_file import TIKTOKEN_FILE, read_tiktoken
from edgespec.models.heads import nextn
from edgespec.models.named import TOWER
from edgespec.models.opened import CHAT_TEMPLATE, TOKENIZER_FILES, CheckpointParts
from edgespec.models.pooled import UNTOLD, PoolingConfig, read_pooled
from edgespec.models.ranking import answered, by_encoder, by_last_token
from edgespec.models.sampling import asked_sampling
from edgespec.models.vision.reading import read_tower
from edgespec.models.vision.text_part import COMPOSITES, text_fields, text_group, text_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgespec.bundle.manifest import Embedding, Reranking
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.vision.reading import AnyTower

_HEAD = "lm_head.weight"
_TYPES = {"XLMRobertaFlashConfig": "xlm-roberta"}  # of models by the class of their config

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A model's description and its weights, which stay on disk until they are read.

    Attributes:
        path: The folder or file.
        config: The values of config.json and generation_config.json.
        decoder: The description of the model; every tensor that it names exists in its shape.
        tensors: The weights.
        tokenizer_files: Contents of the existing `TOKENIZER_FILES` by name.
        chat_template: Jinja source of the default chat template; None if there is none.
        eos_token: The tokenizer's end-of-text token; None if it has none.
        quantization: The format in which the file quantizes matrices, such as gptq; empty if it
            has none that is known.
        embedding: How embeddings are made with it; None: none are.
        ranking: How it scores texts for a query; None: it does not.
        sampling: What its authors ask for, see `asked_sampling`.
        tower: What makes rows of pictures; None: it reads texts alone.
    """

    path: Path
    config: ModelConfig
    decoder: Decoder
    tensors: TensorSource
    tokenizer_files: Mapping[str, str]
    chat_template: str | None
    eos_token: str | None
    quantization: str = ""
    embedding: Embedding | None = None
    ranking: Reranking | None = None
    sampling: dict[str, float] | None = None
    tower: AnyTower | None = None

    @property
    def writes(self) -> bool:
        """Whether it writes text, and makes no vectors or scores."""
        return self.embedding is None and self.ranking is None

    @property
    def quantized(self) -> bool:
        """Whether the file's matrices were rounded when it was made."""
        linears = (each for sublayer in self.decoder.sublayers for each in sublayer.linears)
        return bool(self.quantization) or any(self.tensors.blocks(each.weight) for each in linears)


def load_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint, and checks every tensor's name, dtype and shape.

    Args:
        path: Its folder, or a GGUF file; of a split one, any of its files.

    Raises:
        UnsupportedModelError: The model needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    opened = open_gguf(path) if path.is_file() else _open_folder(path)
    fields = opened.fields
    files = opened.tokenizer_files
    answers = () if opened.pooled is None else opened.pooled.answers
    if opened.pooled is not None and not answers:
        fields = fields.changed(tie_word_embeddings=True)  # no output projection is read
    architecture = architecture_of(fields)
    generation = _parsed(path, files, "generation_config.json")
    config = ModelConfig.from_fields(
        architecture.usual(fields.with_defaults(architecture.defaults)), generation
    )
    model = architecture(config)
    decoder = model.decoder()
    _check_sight(config, decoder)
    tensors = model.arranged(opened.tensors)
    if opened.pooled is not None:
        decoder = _embedding(fields, decoder, opened.pooled)
    elif decoder.both_ways:
        raise fields.unsupported(
            both_ways(fields),
            "it writes no text: add sentence-transformers' modules.json and pooling, or name the "
            "pooling_type of a GGUF file",
        )
    if answers:
        decoder, tensors = answered(fields, decoder, tensors, answers)
    _check_tensors(fields, decoder, tensors)
    _log_unused(path, decoder, tensors, architecture.beside)
    return Checkpoint(
        path=path,
        config=config,
        decoder=decoder,
        tensors=tensors,
        tokenizer_files=files,
        chat_template=chat_template(path, files),
        eos_token=eos_token(path, files),
        quantization=opened.quantization,
        embedding=None if opened.pooled is None else opened.pooled.embedding,
        ranking=None if opened.pooled is None else opened.pooled.ranking,
        sampling=asked_sampling(generation),
        tower=opened.tower,
    )


def _check_sight(config: ModelConfig, decoder: Decoder) -> None:
    """Refuses a config whose rows see those behind them, where in the description not all do."""
    name = both_ways(config.fields)
    all_do = not config.recurrent and all(each.behind != 0 for each in decoder.attentions)
    if name and not all_do:
        raise config.fields.unsupported(name, "use a model whose tokens see only those before them")


def _embedding(fields: ConfigFields, decoder: Decoder, pooled: PoolingConfig) -> Decoder:
    """Returns the description of a model that makes embeddings or scores."""
    width = decoder.width
    for each in pooled.dense:
        if each.linear.in_features != width:
            raise CheckpointError(
                f"{fields.source}: {each.linear.weight} reads {each.linear.in_features} numbers, "
                f"and rows before it have {width}: download the checkpoint again"
            )
        width = each.linear.out_features
    length = decoder.context_length
    norm = decoder.norm
    if pooled.scorer is not None:  # what logits are scaled by is no part of rows that are scored
        norm = replace(norm, factor=1.0)
    return replace(
        decoder,
        embeds=True,
        norm=norm,
        context_length=min(length, pooled.length or length),
        dense=decoder.dense + pooled.dense,
        scorer=pooled.scorer or (decoder.scorer if pooled.embedding is None else None),
    )


def _check_template(path: Path, files: Mapping[str, str], pooled: PoolingConfig | None) -> None:
    """Refuses a model that ranks pairs in a chat template, and has none."""
    ranking = None if pooled is None else pooled.ranking
    if ranking is None or ranking.messages is None:
        return
    if not (chat_template(path, files) or "").strip():
        raise CheckpointError(
            f"{path} ranks texts by its chat template, which is missing: download it again"
        )


def _typed(fields: ConfigFields) -> ConfigFields:
    """Returns a config with the `model_type` that those of classes of their own leave out."""
    own = str(fields.group("auto_map").get("AutoConfig")).rpartition(".")[2]
    if fields.get("model_type") is not None or own not in _TYPES:
        return fields
    return fields.changed(model_type=_TYPES[own])


def _open_folder(path: Path) -> CheckpointParts:
    """Opens a folder in the format of transformers."""
    if not path.is_dir():
        raise CheckpointError(f"{path} does not exist: give a checkpoint's folder or a GGUF file")
    _refuse_parts(path)
    fields = _typed(ConfigFields.read(path / "config.json"))
    contents = tokenizer_contents(path)
    composite = fields.get("model_type") in COMPOSITES
    # Before the weights, which models of unknown types often have in other files.
    architecture = architecture_of(text_group(fields) if composite else fields)
    ranks = path / TIKTOKEN_FILE
    if "tokenizer.json" not in contents and architecture.splitting and ranks.is_file():
        own = _parsed(path, contents, "tokenizer_config.json")
        contents["tokenizer.json"] = read_tiktoken(ranks, own, architecture.splitting)
    pooled = read_pooled(path, class_of(fields).endswith(CLASSIFIER))
    if architecture.embeds:
        pooled = pooled or UNTOLD
    elif Encoder.ranks(fields) and (pooled is None or pooled.embedding is None):
        pooled = by_last_token(fields, pooled)
    if composite and pooled is not None and not architecture.embeds:
        raise fields.unsupported("model_type", "use an embedding model of text alone")
    named: Callable[[str], str | None] = str if pooled is None else architecture.inner_name
    if composite:
        named = text_name
    elif fields.get("model_type") in nextn.MODEL_TYPES:
        named = partial(nextn.draft_name, layers=fields.integer("num_hidden_layers"))
    folder = SafetensorsFolder(path, named, () if pooled is None else pooled.modules)
    if issubclass(architecture, Encoder):
        fields = architecture.completed(fields, folder, pooled is not UNTOLD)
        pooled = by_encoder(architecture, fields, pooled)
    _check_template(path, contents, pooled)
    tensors, quantization = unpacked(folder, _quantization(path, fields))
    tower = read_tower(path, fields)
    if composite:
        fields = text_fields(fields, tensors.names)
    return CheckpointParts(fields, tensors, contents, quantization, pooled, tower)


def tokenizer_contents(path: Path) -> dict[str, str]:
    """Returns the contents of those `TOKENIZER_FILES` that a folder has, by name.

    Older models that read pictures have their chat template in JSON.
    """
    files = {name: path / name for name in TOKENIZER_FILES if (path / name).is_file()}
    for file in files.values():
        if file.name != "tokenizer.json":  # which may be most of a small model
            check_share(file)
    contents = {name: read_checkpoint_text(file) for name, file in files.items()}
    older = path / "chat_template.json"
    if CHAT_TEMPLATE not in contents and older.is_file():
        template = ConfigFields.read(older).get("chat_template")
        contents |= {CHAT_TEMPLATE: template} if isinstance(template, str) else {}
    return contents


def _parsed(path: Path, files: Mapping[str, str], name: str) -> ConfigFields:
    """A JSON file's content, empty if there is no such file."""
    return ConfigFields.parse(files.get(name, "{}"), str(path / name))


def _quantization(path: Path, fields: ConfigFields) -> ConfigFields:
    """Returns how matrices are quantized; the first version of AutoGPTQ had a file for that."""
    found = fields.group("quantization_config")
    if found.values:
        return found
    file = path / "quantize_config.json"
    own = ConfigFields.read(file) if file.exists() else ConfigFields({}, str(file))
    return own.with_defaults({"quant_method": "gptq"}) if own.values else own


def _refuse_parts(path: Path) -> None:
    """Refuses adapters, and folders of GGUF files, which are published like checkpoints."""
    adapter = path / "adapter_config.json"
    if adapter.exists():
        raise ConfigFields.read(adapter).unsupported(
            "base_model_name_or_path",
            "this is an adapter for that model: give the model, and this folder with --lora; or "
            "delete this file if it is merged already",
        )
    gguf = sorted(path.glob("*.gguf"), key=lambda each: (TOWER in each.name.lower(), each))
    if gguf and not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f"{path} has GGUF files and no safetensors: give one of the files, such as {gguf[0]}"
        )


def _check_tensors(fields: ConfigFields, decoder: Decoder, tensors: TensorSource) -> None:
    """Refuses weights that contradict the config, including `tie_word_embeddings`."""
    tie = "tie_word_embeddings"
    if not decoder.tied and _HEAD not in tensors.names:
        raise fields.invalid(tie, f"contradicts the weights, which lack {_HEAD}")
    check_shapes(tensors, decoder.tensors())
    if (
        decoder.tied
        and not decoder.embeds
        and _HEAD in tensors.names
        and not equal_tensors(tensors, _HEAD, decoder.embedding)
    ):
        raise fields.invalid(tie, f"contradicts {_HEAD}, which differs from {decoder.embedding}")


def _log_unused(
    path: Path, decoder: Decoder, tensors: TensorSource, beside: tuple[str, ...]
) -> None:
    """Logs unused tensors, except those `beside` and RoPE's frequencies in old checkpoints."""
    unused = sorted(
        name
        for name in tensors.names - decoder.tensors().keys()
        if not name.endswith(".rotary_emb.inv_freq") and not name.startswith(beside)
    )
    if unused:
        _log.warning("%s: %d tensors are not used, %s first", path, len(unused), unused[0])


def chat_template(path: Path, files: Mapping[str, str]) -> str | None:
    """Returns the default chat template, from its own file or else from the tokenizer's config.

    Args:
        path: The model's folder or file, for messages.
        files: Contents of the tokenizer's files by name.
    """
    if CHAT_TEMPLATE in files:
        return files[CHAT_TEMPLATE]
    fields = _parsed(path, files, "tokenizer_config.json")
    template = fields.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise fields.invalid("chat_template", "must be text or a list of named templates")
    return template


def eos_token(path: Path, files: Mapping[str, str]) -> str | None:
    """Returns the end-of-text token as the runtime reads it; for arguments see `chat_template`.

    tokenizer_config.json overrides special_tokens_map.json, also with an explicit null.
    """
    names = ("special_tokens_map.json", "tokenizer_config.json")
    map_, config = (_parsed(path, files, name) for name in names)
    token = config.with_defaults(map_.values).get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
