"""The tokenizer of a GGUF file as a tokenizer.json, which finds the same tokens in any text."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.formats.gguf.merging import pairs
from edgespec.models.formats.gguf.splitting import SPLITTINGS
from edgespec.models.formats.gguf.vocabulary import (
    BYTE_LEVEL,
    MERGED,
    NORMAL,
    SENTENCEPIECE,
    SPACE,
    UNIGRAM,
    WITHIN,
    WORD_PIECES,
)

if TYPE_CHECKING:
    from edgespec.models.formats.gguf.vocabulary import GGUFVocabulary, Merges

_PRE = "tokenizer.ggml.pre"
_COMMENT = "#version"  # where merges are texts, one that begins so is passed over
# Tokens of Phi-3 that don't take the white space behind them; all others that are found before a
# text is split do. The file does not say so, llama.cpp goes by the model's name.
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_files(vocabulary: GGUFVocabulary) -> dict[str, str]:
    """Returns tokenizer.json and tokenizer_config.json.

    Raises:
        UnsupportedModelError: The tokenizer is not supported.
        CheckpointError: Something that it needs is missing or contradicts itself.
    """
    kinds = {BYTE_LEVEL: _byte_level, WORD_PIECES: _word_pieces, UNIGRAM: _unigrams}
    content, begins = kinds.get(vocabulary.kind, _sentencepiece)(vocabulary)
    first = vocabulary.special("bos")
    begins = vocabulary.flag("add_bos_token", begins) and first is not None
    phi3 = vocabulary.metadata.get("general.architecture") == "phi3"
    takes_spaces = phi3 and vocabulary.kind == SENTENCEPIECE
    added = [
        {
            "id": id_,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": takes_spaces and text not in _PHI3_PLAIN,
            "normalized": False,
            "special": special,
        }
        for id_, text, special in vocabulary.added()
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _beginning(vocabulary.tokens[first], first)
        if begins and first is not None
        else None,
        **content,
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer_config.json": vocabulary.config(begins),
    }


def _byte_level(vocabulary: GGUFVocabulary) -> tuple[dict[str, object], bool]:
    """The parts of a tokenizer of bytes, as GPT-2 has one."""
    name = vocabulary.metadata.get(_PRE)
    splitting = SPLITTINGS.get(name) if isinstance(name, str) else None
    if splitting is None:
        raise vocabulary.metadata.unsupported(
            _PRE,
            "use a file whose tokenizer splits texts in one of these ways: "
            f"{', '.join(SPLITTINGS)}",
        )
    bytes_ = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    parts: dict[str, object] = {
        "normalizer": splitting.normalizer(),
        "pre_tokenizer": splitting.pre_tokenizer(),
        "decoder": bytes_,
        "model": _bpe(vocabulary.ids, vocabulary.merges(), ignore_merges=splitting.whole),
    }
    return parts, splitting.begins


def _sentencepiece(vocabulary: GGUFVocabulary) -> tuple[dict[str, object], bool]:
    """The parts of a tokenizer of SentencePiece (Kudo and Richardson, 2018), of its BPE kind.

    Characters that are no tokens become bytes.
    """
    merged = vocabulary.kind == MERGED
    prefix = vocabulary.flag("add_space_prefix", not merged)
    spaces: dict[str, object] = {
        "type": "Replace",
        "pattern": {"String": " "},
        "content": SPACE,
    }
    before: dict[str, object] = {"type": "Prepend", "prepend": SPACE}
    after: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        after.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = vocabulary.special("unknown")
    model = _bpe(
        vocabulary.ids,
        vocabulary.merges() if merged else _merges_by_score(vocabulary),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    parts: dict[str, object] = {
        "normalizer": {"type": "Sequence", "normalizers": [before, spaces]} if prefix else spaces,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": after},
        "model": model,
    }
    return parts, True


def _word_pieces(vocabulary: GGUFVocabulary) -> tuple[dict[str, object], bool]:
    """The parts of BERT's tokenizer, which knows no capitals and accents, as in llama.cpp.

    A text is between two tokens of its own, and the second one ends each text of a pair.
    """
    first = _named(vocabulary, "cls", "bos")
    last = _named(vocabulary, "seperator", "separator", "eos")  # GGUF spells it in the first way
    unknown = _named(vocabulary, "unknown")
    around = {vocabulary.tokens[each]: each for each in (first, last)}
    begin = vocabulary.tokens[first]
    end = vocabulary.tokens[last]
    model = {
        "type": "WordPiece",
        "unk_token": vocabulary.tokens[unknown],
        "continuing_subword_prefix": WITHIN,
        "max_input_chars_per_word": 100,
        "vocab": vocabulary.ids,
    }
    parts: dict[str, object] = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": True,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": WITHIN, "cleanup": True},
        "model": model,
        "post_processor": _template(
            around,
            [_token(begin), _text("A"), _token(end)],
            [_token(begin), _text("A"), _token(end), _text("B", 1), _token(end, 1)],
        ),
    }
    return parts, False


def _unigrams(vocabulary: GGUFVocabulary) -> tuple[dict[str, object], bool]:
    """The parts of XLM-RoBERTa's tokenizer: SentencePiece's unigrams (Kudo, 2018).

    A text is between two tokens of its own, and two of the second one part a pair.
    """
    first = _named(vocabulary, "bos")
    last = _named(vocabulary, "eos")
    around = {vocabulary.tokens[each]: each for each in (first, last)}
    begin = _token(vocabulary.tokens[first])
    end = _token(vocabulary.tokens[last])
    prefix = "always" if vocabulary.flag("add_space_prefix", True) else "never"
    words: dict[str, object] = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": prefix,
        "split": True,
    }
    before: list[dict[str, object]] = []
    if vocabulary.flag("remove_extra_whitespaces", False):
        before.append({"type": "WhitespaceSplit"})
    table = b64encode(vocabulary.characters()).decode()
    parts: dict[str, object] = {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": table} if table else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*before, words]},
        "decoder": words,
        "model": {
            "type": "Unigram",
            "unk_id": _named(vocabulary, "unknown"),
            "byte_fallback": False,
            "vocab": list(zip(vocabulary.tokens, vocabulary.scores(), strict=True)),
        },
        "post_processor": _template(
            around, [begin, _text("A"), end], [begin, _text("A"), end, end, _text("B"), end]
        ),
    }
    return parts, False


def _named(vocabulary: GGUFVocabulary, *names: str) -> int:
    """Returns the id of a special token by the first of these names that the file has."""
    found = (vocabulary.special(name) for name in names)
    id_ = next((each for each in found if each is not None), None)
    if id_ is None:
        place = f"tokenizer.ggml.{names[0]}_token_id"
        raise vocabulary.metadata.invalid(place, "must be a token of the vocabulary")
    return id_


def _token(token: str, part: int = 0) -> dict[str, object]:
    return {"SpecialToken": {"id": token, "type_id": part}}


def _text(name: str, part: int = 0) -> dict[str, object]:
    return {"Sequence": {"id": name, "type_id": part}}


def _merges_by_score(vocabulary: GGUFVocabulary) -> Merges:
    """All pairs of tokens that make a token, those of the highest score first."""
    tokens = vocabulary.tokens
    uses = zip(tokens, vocabulary.uses, strict=True)
    ids = {token: id_ for id_, (token, use) in enumerate(uses) if use == NORMAL and token}
    numbers = np.fromiter(ids.values(), np.int64, len(ids))
    whole, left, right = (numbers[each] for each in pairs(list(ids)))
    scores = np.array(vocabulary.scores())
    order = np.lexsort((left, whole, -scores[whole]))
    lefts = [tokens[id_] for id_ in left[order].tolist()]
    rights = [tokens[id_] for id_ in right[order].tolist()]
    return lefts, rights


def _bpe(ids: dict[str, int], merges: Merges, **options: object) -> dict[str, object]:
    usual = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **usual, **options, "vocab": ids, "merges": _written(*merges)}


def _written(lefts: list[str], rights: list[str]) -> list[str] | list[tuple[str, str]]:
    """Merges as texts, which are read in half the time of pairs, unless a text would be misread."""
    texts = [f"{left} {right}" for left, right in zip(lefts, rights, strict=True)]
    lines = "\n".join(texts)
    plain = lines.count(" ") == len(texts) and _COMMENT not in lines
    return texts if plain else list(zip(lefts, rights, strict=True))


def _beginning(token: str, id_: int) -> dict[str, object]:
    """A post-processor that puts a token before a text."""
    first = _token(token)
    return _template({token: id_}, [first, _text("A")], [first, _text("A"), _text("B", 1)])


def _template(
    special: dict[str, int], single: list[dict[str, object]], pair: list[dict[str, object]]
) -> dict[str, object]:
    """A post-processor that puts special tokens, given with their ids, around a text and a pair."""
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {
            token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in special.items()
        },
    }
