"""Reads what sentence-transformers says of a checkpoint that makes embeddings, or ranks texts.

Its files are those of `SentenceTransformer.save_pretrained` and `CrossEncoder.save_pretrained`:
`modules.json` names the steps (the transformer, a pooling, perhaps a normalization; or the
transformer, and a score of its logits), and a folder for each has its config
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html and
https://sbert.net/docs/cross_encoder/usage/custom_models.html).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle.manifest import (
    FIRST_TOKEN,
    LAST_TOKEN,
    MEAN,
    Embedding,
    PairMessages,
    Reranking,
)
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.fields import ConfigFields, read_checkpoint_text
from edgespec.models.layers.decoder import Dense
from edgespec.models.layers.elements import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.layers.decoder import Scorer
    from edgespec.models.layers.elements import PlainActivation

MODULES = "modules.json"

_POOLINGS = {"lasttoken": LAST_TOKEN, "mean": MEAN, "cls": FIRST_TOKEN}
_MODE_NAMES = ("pooling_mode_lasttoken", "pooling_mode_mean_tokens", "pooling_mode_cls_token")
# Names of activations behind dense layers; None: nothing is activated.
_ACTIVATIONS: Mapping[str, PlainActivation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "GELU": "gelu",
}
_MODES = "pooling_mode_"  # fields of a pooling's config with a flag for each mode
_FIRST, _DENSE, _LAST = ("Transformer", "Pooling"), "Dense", "Normalize"
_ANSWERED = ("Transformer", "LogitScore")  # steps of a model that ranks
_OPENING = "add_generation_prompt"
_MESSAGE = "message"  # what a transformer takes that reads pairs by its chat template
_IDS = 2**31  # more than any vocabulary has


@dataclass(frozen=True)
class PoolingConfig:
    """How a checkpoint says that texts become vectors or scores.

    Attributes:
        embedding: How vectors are made; None: none are.
        length: The most tokens of a text; None: as many as the model was trained for.
        ranking: How scores are made; None: none are.
        dense: What rows become before they are pooled; sentence-transformers has it behind the
            pooling, which makes no difference to one row, or to a mean where nothing is activated.
        scorer: What makes scores, where the model's description does not say it.
        answers: Tokens whose logits are the scores, of a model that ranks by them: that of how well
            a text answers, and perhaps that of how badly; empty: there are none.
    """

    embedding: Embedding | None
    length: int | None = None
    ranking: Reranking | None = None
    dense: tuple[Dense, ...] = ()
    scorer: Scorer | None = None
    answers: tuple[int, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """Folders with weights of their own."""
        return tuple(each.linear.weight.partition(".")[0] for each in self.dense)


UNTOLD = PoolingConfig(Embedding(MEAN, False, {}))
"""What sentence-transformers does with models whose rows see both ways, without such files."""


def read_pooled(folder: Path, scores: bool) -> PoolingConfig | None:
    """Reads the files of sentence-transformers in a checkpoint's folder.

    Args:
        folder: The folder.
        scores: Whether the transformer itself makes scores.

    Returns:
        None if there are none: the checkpoint writes text.

    Raises:
        UnsupportedModelError: A step needs something that is not implemented.
        CheckpointError: A file is missing or damaged.
    """
    if not (folder / MODULES).is_file():
        return None
    steps = _steps(folder / MODULES)
    kinds = tuple(kind for kind, _ in steps)
    dense = [place for kind, place in steps if kind == _DENSE]
    normalized = kinds[-1:] == (_LAST,)
    vectors = (*_FIRST, *(_DENSE for _ in dense), *(_LAST for _ in range(normalized)))
    alone = scores and kinds == _FIRST[:1]
    if kinds not in (vectors, _ANSWERED) and not alone:
        raise UnsupportedModelError(
            f"{folder / MODULES}: the steps {' and '.join(kinds) or '(none)'} are not supported: "
            "use a model whose steps are Transformer and Pooling, and perhaps Dense and Normalize, "
            "or Transformer and LogitScore"
        )
    if steps[0][1]:
        raise UnsupportedModelError(
            f"{folder / MODULES}: the transformer is in the folder {steps[0][1]!r}, which is not "
            "supported: save the model again with a recent sentence-transformers"
        )
    limits = _optional(folder / "sentence_bert_config.json")
    if limits.flag("do_lower_case"):
        raise limits.unsupported("do_lower_case", "use a model that reads capitals")
    length = limits.integer("max_seq_length") if limits.get("max_seq_length") is not None else None
    whole = _optional(folder / "config_sentence_transformers.json")
    if alone:
        written = _MESSAGE in limits.group("modality_config").values
        return PoolingConfig(None, length, _ranking(limits, whole, written))
    second = ConfigFields.read(folder / steps[1][1] / "config.json")
    if kinds == _ANSWERED:
        ranking = _ranking(limits, whole, written=True)
        return PoolingConfig(None, length, ranking, answers=_answers(second))
    prompts, usual = _prompts(whole)
    pooling = _pooling(second)
    files = {each: ConfigFields.read(folder / each / "config.json") for each in dense}
    layers = tuple(_dense(found, each, pooling) for each, found in files.items())
    embedding = Embedding(pooling, normalized, prompts, usual)
    return PoolingConfig(embedding, length, dense=layers)


def _steps(path: Path) -> list[tuple[str, str]]:
    """Returns the kind and the folder of each step."""
    try:
        steps = json.loads(read_checkpoint_text(path))
        return [(each["type"].rpartition(".")[2], _inside(each["path"])) for each in steps]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no list of modules with type and path ({error!r}): download it again"
        ) from error


def _inside(folder: str) -> str:
    """Returns the name of a folder below the checkpoint's; ValueError if it is none."""
    if folder != folder.strip("./\\") or ".." in folder:
        raise ValueError(f"path {folder!r}")
    return folder


def _dense(fields: ConfigFields, module: str, pooling: str) -> Dense:
    """Returns the dense layer of a step, whose weights are in a folder of this name."""
    told = fields.get("activation_function")
    kind = "Identity" if told is None else str(told).rpartition(".")[2]
    activation = _ACTIVATIONS.get(kind)
    if kind not in _ACTIVATIONS or (activation is not None and pooling == MEAN):
        raise fields.unsupported(
            "activation_function",
            "use a model whose Dense has none, or Tanh or GELU behind the row of one token",
        )
    name = f"{module}.linear"
    bias = f"{name}.bias" if fields.get("bias") is not False else None
    sizes = fields.integer("in_features"), fields.integer("out_features")
    return Dense(Linear(f"{name}.weight", *sizes, bias), activation)


def _pooling(fields: ConfigFields) -> str:
    """Returns the pooling that a config names: by one field, or by a flag for each mode."""
    named = fields.get("pooling_mode")
    flags = [name for name in fields.values if name.startswith(_MODES) and fields.flag(name)]
    modes = [re.sub("_tokens?$", "", name.removeprefix(_MODES)) for name in flags]
    if named is not None:
        flags = ["pooling_mode"]
        modes = [str(named)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise UnsupportedModelError(
            f"{fields.source}: {' and '.join(flags) or 'no pooling mode'} "
            f"({' and '.join(modes) or 'none'}) is not supported: use a model with "
            f"{' or '.join(_MODE_NAMES)} alone"
        )
    pooling = _POOLINGS[modes[0]]
    if pooling == MEAN and fields.get("include_prompt") is False:
        raise fields.unsupported("include_prompt", "use a model whose mean includes its prompts")
    return pooling


def _ranking(limits: ConfigFields, whole: ConfigFields, written: bool) -> Reranking:
    """Returns how a score is made of the last row, and whether the chat template writes a pair."""
    prompts, usual = _prompts(whole)
    asked = prompts.get(usual, "")
    if not written:
        if asked:
            raise whole.unsupported("default_prompt_name", "use a reranker without one")
        return Reranking(LAST_TOKEN)
    given = limits.group("processing_kwargs").group("chat_template")
    others = {name: (None,) for name in given.values if name != _OPENING}
    given.only(others, "use a model whose chat template is given nothing else")
    return Reranking(LAST_TOKEN, messages=PairMessages(given.flag(_OPENING), asked))


def _answers(fields: ConfigFields) -> tuple[int, ...]:
    """Returns the tokens whose logits are scores, see `PoolingConfig`."""
    names = ["true_token_id", "false_token_id"]
    if fields.get(names[1]) is None:
        del names[1]
    return tuple(fields.token(name, _IDS) for name in names)


def _prompts(fields: ConfigFields) -> tuple[dict[str, str], str]:
    """Returns the prompts by name, and the name of the one that is used unasked."""
    prompts = fields.group("prompts").values
    found = {name: text for name, text in prompts.items() if isinstance(text, str)}
    usual = fields.get("default_prompt_name")
    if len(found) < len(prompts):
        raise fields.invalid("prompts", "must be texts by name")
    if usual is not None and usual not in found:
        raise fields.invalid("default_prompt_name", "must be the name of a prompt")
    return found, str(usual) if usual is not None else ""


def _optional(path: Path) -> ConfigFields:
    return ConfigFields.read(path) if path.is_file() else ConfigFields({}, str(path))
