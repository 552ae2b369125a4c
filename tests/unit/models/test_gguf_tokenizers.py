"""Tokenizers of GGUF files: the same ids as those of the tokenizer that went into the file."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise

import gguf
import numpy as np
import pytest
from hard_texts import HARD_TEXTS
from pieces import pieces_metadata
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from edgespec.bundle.tokenizers import parse_tokenizer
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.opening import whole_header
from edgespec.models.formats.gguf.splitting import SPLITTINGS
from edgespec.models.formats.gguf.tokenizer import tokenizer_files
from edgespec.models.formats.gguf.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GGUFVocabulary,
)
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.tokenizer import Tokenizer as Runtime

SPACE = "\u2581"

# As the tokenizer.json of these models has them, of Llama 3, Qwen 2 and Mistral's Tekken.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
SEED = QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As the code beside Kimi's weights has them.
KIMI = (
    r"[\p{Han}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(*patterns):
    return [
        *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


WHOLE = pre_tokenizers.ByteLevel(add_prefix_space=False)
ORIGINALS = {
    "gpt-2": [WHOLE],
    "jina-v2-code": [WHOLE],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), WHOLE],
    "command-r": [pre_tokenizers.Digits(individual_digits=True), WHOLE],
    "llama-bpe": split(LLAMA3),
    "dbrx": split(LLAMA3),
    "qwen2": split(QWEN2),
    "seed-coder": split(SEED),
    "tekken": split(TEKKEN),
    "gpt-4o": split(O200K),
    "llama4": split(O200K),
    "kimi-k2": split(KIMI),
    "deepseek-coder": [
        *split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")[
            :-1
        ],
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def trained(pre):
    """A byte-level tokenizer that has learned from the hard texts, with tokens of its own."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=SPLITTINGS[pre].whole))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(ORIGINALS[pre])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(HARD_TEXTS * 3, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("[INST]", normalized=False)])
    if pre in ("command-r", "qwen2"):
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def as_metadata(tokenizer, kind, **fields):
    content = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {each["content"]: each["special"] for each in content["added_tokens"]}
    uses = [
        NORMAL if each not in special else CONTROL if special[each] else USER_DEFINED
        for each in tokens
    ]
    common = {
        "model": kind,
        "tokens": tokens,
        "token_type": uses,
        "merges": [" ".join(pair) for pair in content["model"]["merges"]],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in {**common, **fields}.items()}


def rebuilt(metadata):
    return tokenizer_files(GGUFVocabulary.read(ConfigFields(metadata, "file.gguf")))


def assert_alike(found, original, texts=HARD_TEXTS):
    for text in texts:
        ids = found.encode(text).ids
        assert ids == original.encode(text).ids, text
        assert found.decode(ids) == original.decode(ids)


@pytest.mark.parametrize("pre", sorted(ORIGINALS))
def test_bytes_are_merged_as_by_the_original(pre):
    original = trained(pre)
    files = rebuilt(as_metadata(original, "gpt2", pre=pre, add_bos_token=False))
    found = Tokenizer.from_str(files["tokenizer.json"])
    assert_alike(found, original)
    assert found.get_vocab() == original.get_vocab()


def test_ways_to_split_differ_on_the_hard_texts():
    """Else the test above would say nothing."""

    def ids(pre):
        content = {**json.loads(trained("gpt-2").to_str())}
        content["normalizer"] = SPLITTINGS[pre].normalizer()
        content["pre_tokenizer"] = SPLITTINGS[pre].pre_tokenizer()
        tokenizer = Tokenizer.from_str(json.dumps(content))
        return tuple(tuple(tokenizer.encode(text).ids) for text in HARD_TEXTS)

    names = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3"]
    names += ["deepseek-coder", "deepseek-llm"]
    assert len({ids(name) for name in names}) == len(names)


def test_the_first_deepseek_knows_letters_with_two_cases_alone():
    steps = SPLITTINGS["deepseek-llm"].pre_tokenizer()
    steps["pretokenizers"] = steps["pretokenizers"][:-1]  # bytes stay as they are
    content = {**json.loads(trained("gpt-2").to_str()), "pre_tokenizer": steps}
    text = "Hello  Wort\u00fc 12.5!\n\u4e2d\u6587 \u05d0\u05d1  "
    words = Tokenizer.from_str(json.dumps(content)).pre_tokenizer.pre_tokenize_str(text)
    assert [word for word, _ in words] == [
        "Hello",
        " ",
        " Wort",
        "\u00fc",
        " ",
        "1",
        "2",
        ".",
        "5",
        "!",
        "\n",
        "\u4e2d\u6587",
        " \u05d0\u05d1",
        "  ",
    ]


def test_a_text_begins_as_the_file_says(tmp_path):
    original = trained("llama-bpe")
    bos = original.token_to_id("<|endoftext|>")
    metadata = as_metadata(original, "gpt2", pre="llama-bpe", bos_token_id=bos)
    for said, begins in ((None, True), (True, True), (False, False)):
        fields = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
        for name, text in rebuilt({**metadata, **fields}).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        ids = Runtime.from_folder(tmp_path).encode("abc")
        assert ids == [bos] * begins + original.encode("abc").ids


def test_ends_are_those_that_the_file_names_and_those_known_by_name():
    original = trained("qwen2")
    eos = original.token_to_id("<|im_end|>")
    metadata = as_metadata(original, "gpt2", pre="qwen2", eos_token_id=eos)
    ends = GGUFVocabulary.read(ConfigFields(metadata, "file.gguf")).ends()
    assert ends == (eos, original.token_to_id("<|endoftext|>"))


@pytest.mark.parametrize("use", [NORMAL, USER_DEFINED, UNUSED, CONTROL])
@pytest.mark.parametrize(
    "name", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
)
def test_well_known_ends_are_control_tokens_whatever_the_file_says(use, name, tmp_path):
    original = trained("qwen2")
    original.add_special_tokens([name])
    end = original.token_to_id(name)
    eos = original.token_to_id("<|endoftext|>")
    metadata = as_metadata(original, "gpt2", pre="qwen2", eos_token_id=eos)
    metadata["tokenizer.ggml.token_type"][end] = use
    assert end in GGUFVocabulary.read(ConfigFields(metadata, "file.gguf")).ends()
    for file, text in rebuilt(metadata).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    tokenizer = Runtime.from_folder(tmp_path)
    assert tokenizer.encode(f"a{name}b") == original.encode(f"a{name}b").ids
    assert tokenizer.decode([end]) == ""


def test_tokens_for_filling_in_are_those_that_the_file_names(tmp_path):
    original = trained("qwen2")
    names = ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"]
    original.add_special_tokens(names)
    ids = [original.token_to_id(name) for name in names]
    named = dict(
        zip(("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"), ids, strict=True)
    )
    for fields in ({}, named):
        for name, text in rebuilt(as_metadata(original, "gpt2", pre="qwen2", **fields)).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        tokenizer = Runtime.from_folder(tmp_path)
        assert InfillFormat.known(tokenizer) == bool(fields)
    prompt = InfillFormat(tokenizer).prompt("a", "b", [], 99).tokens
    a, b = (original.token_to_id(letter) for letter in "ab")
    assert prompt == [ids[0], a, ids[1], b, ids[2]]


def test_the_end_of_a_part_ends_no_text():
    """As in gpt-oss, whose answers consist of messages."""
    original = trained("gpt-4o")
    original.add_special_tokens(["<|return|>", "<|end|>", "<|call|>"])
    eos, end, call = (original.token_to_id(f"<|{name}|>") for name in ("return", "end", "call"))
    names = original.token_to_id("<|im_end|>"), original.token_to_id("<|endoftext|>")
    metadata = as_metadata(original, "gpt2", pre="gpt-4o", eos_token_id=eos)
    ends = GGUFVocabulary.read(ConfigFields(metadata, "file.gguf")).ends()
    assert set(ends) == {eos, call, *names}
    metadata["tokenizer.ggml.tokens"][call] = "<|other|>"
    assert end in GGUFVocabulary.read(ConfigFields(metadata, "file.gguf")).ends()


def test_tokens_that_are_not_used_are_left_out():
    original = trained("gpt-2")
    metadata = as_metadata(original, "gpt2", pre="gpt-2")
    metadata["tokenizer.ggml.tokens"].append("[PAD]")
    metadata["tokenizer.ggml.token_type"].append(UNUSED)
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    assert found.get_vocab() == original.get_vocab()


def sentencepiece(prefix):
    """A tokenizer as transformers makes one of SentencePiece's BPE models, and its scores."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = special + [f"<0x{n:02X}>" for n in range(256)]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, max_token_length=12)
    texts = [text for text in HARD_TEXTS if text.isascii() and "<|" not in text]
    learner.train_from_iterator([unicodedata.normalize("NFC", t) for t in texts * 3], trainer)
    content = json.loads(learner.to_str())["model"]
    merged = {left + right for left, right in content["merges"]}
    letters = [each for each in content["vocab"] if each not in merged]
    ranked = list(dict.fromkeys(left + right for left, right in content["merges"]))
    pieces += [*ranked, *letters]
    scores = [0.0] * 259 + [-float(n) for n in range(len(pieces) - 259)]
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    merges = sorted(
        (
            (piece[:n], piece[n:])
            for piece in ranked
            for n in range(1, len(piece))
            if piece[:n] in vocabulary and piece[n:] in vocabulary
        ),
        key=lambda pair: vocabulary[pair[0] + pair[1]],
    )
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE)] * prefix + [normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + [decoders.Strip(" ", 1, 0)] * prefix
    )
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    uses = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(pieces) - 259)]
    metadata = {
        "model": "llama",
        "tokens": pieces,
        "token_type": uses,
        "scores": scores,
        "add_space_prefix": prefix,
    }
    return tokenizer, {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_merged_as_by_the_original(prefix):
    original, metadata = sentencepiece(prefix)
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    assert found.get_vocab() == original.get_vocab()
    assert_alike(found, original)


def test_merges_of_gemma_4_are_those_of_the_file():
    original, metadata = sentencepiece(False)
    merges = json.loads(original.to_str())["model"]["merges"]
    del metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.add_space_prefix"]
    metadata |= {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    }
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    assert found.get_vocab() == original.get_vocab()
    assert_alike(found, original)


def merged_by_score(text, metadata):
    """SentencePiece's own algorithm: the neighbours of the highest score first, from the left."""
    scores = dict(
        zip(*(metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores")), strict=True)
    )
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], n) for n, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        _, n = min(pairs)
        parts[n : n + 2] = [parts[n] + parts[n + 1]]


def test_pieces_are_merged_by_score():
    _, metadata = sentencepiece(False)
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    known = set(metadata["tokenizer.ggml.tokens"])
    for text in HARD_TEXTS:
        spaced = text.replace(" ", SPACE)
        if set(spaced) <= known and "<" not in text:  # nothing becomes bytes or is special
            expected = merged_by_score(spaced, metadata)
            assert found.encode(text, add_special_tokens=False).tokens == expected


@pytest.mark.parametrize("seed", range(40))
def test_all_pairs_that_make_a_token_are_merged(seed):
    """Also where tokens are equal or empty, or as good as others."""
    numbers = np.random.default_rng(seed)
    letters = np.array(list(("ab", SPACE + "é\ue000\U0001f600")[seed % 2]))
    tokens = ["".join(numbers.choice(letters, numbers.integers(7))) for _ in range(80)]
    uses = numbers.choice([NORMAL, NORMAL, NORMAL, USER_DEFINED, UNUSED], len(tokens)).tolist()
    scores = [-float(score) for score in numbers.integers(40, size=len(tokens))]
    metadata = {"model": "llama", "tokens": tokens, "token_type": uses, "scores": scores}
    metadata |= {"bos_token_id": None, "unknown_token_id": None}
    content = rebuilt({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    found = json.loads(content["tokenizer.json"])["model"]["merges"]
    ids = {token: n for n, token in enumerate(tokens) if uses[n] == NORMAL}
    expected = [
        (-scores[id_], id_, ids[token[:n]], token[:n], token[n:])
        for token, id_ in ids.items()
        for n in range(1, len(token))
        if token[:n] in ids and token[n:] in ids
    ]
    assert found == [f"{left} {right}" for *_, left, right in sorted(expected)]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("#version:", "b"), ("a ", "b")])
def test_merges_are_written_so_that_none_is_misread(first, second):
    tokens = ["<unk>", first, second, first + second]
    fields = {"model": "llama", "tokens": tokens, "token_type": [UNKNOWN, *[NORMAL] * 3]}
    fields |= {"scores": [0.0, -1.0, -2.0, -3.0], "bos_token_id": None}
    files = rebuilt({f"tokenizer.ggml.{name}": value for name, value in fields.items()})
    content = json.loads(files["tokenizer.json"])
    for backend in (
        parse_tokenizer(files["tokenizer.json"]).backend,
        Tokenizer.from_str(json.dumps(content)),
    ):
        merges = json.loads(backend.to_str())["model"]["merges"]
        assert merges == [[first, second]]
    written = content["model"]["merges"]
    assert written == ([f"{first} {second}"] if first == "a" else [[first, second]])


def test_all_pairs_of_a_large_vocabulary_are_merged():
    metadata = pieces_metadata(8_000)
    tokens = {token: id_ for id_, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    normal = {each for each in tokens if metadata["tokenizer.ggml.token_type"][tokens[each]] == 1}
    content = rebuilt(metadata)["tokenizer.json"]
    found = [tuple(each.split(" ")) for each in json.loads(content)["model"]["merges"]]
    made = [left + right for left, right in found]
    assert made == sorted(made, key=tokens.__getitem__)  # which are by score, as files have them
    assert len(found) > len(normal) - 100
    assert set(found) == {
        (token[:n], token[n:])
        for token in normal
        for n in range(1, len(token))
        if token[:n] in normal and token[n:] in normal
    }


def test_tokens_with_spaces_of_their_own_are_found_first():
    _, metadata = sentencepiece(False)
    metadata["tokenizer.ggml.tokens"].append(SPACE * 4)
    metadata["tokenizer.ggml.token_type"].append(USER_DEFINED)
    metadata["tokenizer.ggml.scores"].append(0.0)
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    ids = found.encode("a     b").ids  # five spaces
    assert len(metadata["tokenizer.ggml.tokens"]) - 1 in ids
    assert found.decode(ids) == "a     b"


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
def test_tokens_of_phi_3_take_the_spaces_behind_them(architecture):
    _, metadata = sentencepiece(True)
    metadata["tokenizer.ggml.tokens"].append("<|user|>")
    metadata["tokenizer.ggml.token_type"].append(CONTROL)
    metadata["tokenizer.ggml.scores"].append(0.0)
    metadata["general.architecture"] = architecture
    found = Tokenizer.from_str(rebuilt(metadata)["tokenizer.json"])
    plain = found.encode("<|user|>ab").ids
    assert (found.encode("<|user|>\n ab").ids == plain) == (architecture == "phi3")
    assert found.encode("<s>\nab").ids != found.encode("<s>ab").ids


def test_the_small_file_of_a_head_may_hold_the_vocabulary_of_a_large_model(tmp_path):
    tokens = [f"token{number}" for number in range(2**18)]
    writer = gguf.GGUFWriter(tmp_path / "head.gguf", "eagle3")
    writer.add_token_list(tokens)
    writer.add_token_types([NORMAL] * len(tokens))
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_merges([f"{token} {token}" for token in (*tokens, *tokens)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = whole_header(tmp_path / "head.gguf")
    assert header.metadata["tokenizer.ggml.tokens"] == tokens
