"""Tokenizers and streamed decoding."""

from __future__ import annotations

import itertools
import json

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from edgespec.errors import BundleError, InputError
from edgespec.runtime.text import StreamDecoder, Tokenizer

CORPUS = [
    "def naïve(x): return x  # été 中文 字 🎉👩‍👩‍👧 e\u0301 \n",
    "the quick brown fox, 中文字\n",
] * 4
HARD = [
    "plain text, two  spaces",
    " leading and trailing ",
    "🎉 and 👩‍👩‍👧 and 🏳️‍🌈",
    "中文字和 English 混ざる",
    "e\u0301te\u0302 combining a\u0300\u0301\u0302",
    "\n\n\tindented\n",
    "a legitimate \ufffd character \ufffd\ufffd x",
    "",
]


def byte_level():
    """GPT-2 style: most emoji and CJK characters take several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def metaspace():
    """Sentencepiece style: the first word's leading space is not part of the text."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    alphabet = sorted(set("".join(CORPUS + HARD)))
    trainer = trainers.BpeTrainer(
        vocab_size=250,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=alphabet,
        limit_alphabet=200,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_fallback():
    """Llama 2 style: characters outside the vocabulary are written byte by byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzET,\n"]
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


TOKENIZERS = {
    make.__name__: Tokenizer(make(), {}) for make in (byte_level, metaspace, byte_fallback)
}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def assert_streams(tokenizer, ids, context=()):
    decoder = StreamDecoder(tokenizer, context)
    pieces = [decoder.push(id_) for id_ in ids]
    whole = tokenizer.decode([*context, *ids])[len(tokenizer.decode(context)) :]
    assert "".join(pieces) + decoder.flush() == whole
    return pieces


@each_tokenizer
@pytest.mark.parametrize("text", HARD)
def test_streamed_pieces_join_to_the_decoded_text(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    pieces = assert_streams(tokenizer, ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@each_tokenizer
@given(
    text=st.text(st.sampled_from("ab zé中字🎉👧\u0301\u200d\n"), max_size=20),
    cut=st.integers(0, 20),
)
def test_streaming_any_text_after_any_context(name, text, cut):
    tokenizer = TOKENIZERS[name]
    context, ids = tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])
    for piece in assert_streams(tokenizer, ids, context):
        assert "\ufffd" not in piece


def test_no_half_character_is_shown_and_none_is_late():
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = tokenizer.encode("a🎉b")
    assert len(ids) == 7  # the space, a, four bytes, b
    assert assert_streams(tokenizer, ids) == ["", "a", "", "", "", "🎉", "b"]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_text_that_ends_inside_a_character_shows_it_at_the_flush_only(name):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("a🐙")[:-1]
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push(id_) for id_ in ids) == "a"
    assert set(decoder.flush()) == {"\ufffd"}


def inside(tokenizer, text):
    """Ids of what stands inside a text, where nothing is put before it."""
    return tokenizer.encode("E" + text)[len(tokenizer.encode("E")) :]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@given(
    parts=st.lists(st.tuples(st.sampled_from("a é🎉🐙"), st.integers(0, 2)), max_size=8),
    context=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
@example(parts=[("🐙", 0), ("é", 0)], context=0, sizes=[5])  # a round ends inside a character
@example(parts=[("🐙", 0), ("a", 0)], context=2, sizes=[1])  # a prompt does
def test_the_text_depends_on_the_tokens_alone(name, parts, context, sizes):
    """Whichever come together, and whether or not characters lack their first bytes."""
    tokenizer = TOKENIZERS[name]
    ids = [id_ for char, missing in parts for id_ in inside(tokenizer, char)[missing:]]
    prompt = tokenizer.encode("E") + ids[:context]
    alone = StreamDecoder(tokenizer, prompt)
    expected = "".join(map(alone.push, ids[context:])) + alone.flush()
    together, text, place = StreamDecoder(tokenizer, prompt), "", context
    for size in itertools.cycle(sizes):
        if place >= len(ids):
            break
        text += together.push(*ids[place : place + size])
        place += size
    assert text + together.flush() == expected
    if not any(missing for _, missing in parts):
        known = tokenizer.decode(prompt).rstrip("\ufffd")
        assert known + expected == tokenizer.decode(tokenizer.encode("E") + ids)


def test_a_broken_character_does_not_break_those_before_it():
    tokenizer = TOKENIZERS["byte_fallback"]
    octopus = inside(tokenizer, "🐙")
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(*octopus, octopus[0]) == "🐙"
    assert decoder.push(*inside(tokenizer, "a")) == "\ufffda"
    assert decoder.push(*octopus, octopus[0]) == "🐙"
    assert decoder.flush() == "\ufffd"


def test_a_continuation_keeps_its_leading_space():
    tokenizer = TOKENIZERS["metaspace"]
    ids = tokenizer.encode("brown")
    assert "".join(assert_streams(tokenizer, ids)) == "brown"
    assert "".join(assert_streams(tokenizer, ids, tokenizer.encode("the"))) == " brown"


def test_special_tokens_are_not_shown():
    tokenizer = TOKENIZERS["byte_fallback"]
    bos, eos = 1, 2
    ids = [bos, *tokenizer.encode("ab"), eos, *tokenizer.encode("cd")]
    assert tokenizer.decode(ids) == "ab cd"
    assert tokenizer.decode(ids, skip_special=False) != "ab cd"
    assert_streams(tokenizer, ids)
    assert tokenizer.special_ids == {bos, eos}


def test_a_token_is_decoded_in_a_short_window():
    class Counting:
        longest = 0

        def decode(self, ids):
            self.longest = max(self.longest, len(ids))
            return "x" * len(ids)

    counting = Counting()
    decoder = StreamDecoder(counting)
    for id_ in range(1000):
        assert decoder.push(id_) == "x"
    assert counting.longest <= 3


@pytest.fixture
def folder(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


def test_a_bos_is_added_once_whoever_adds_it(folder):
    plain = Tokenizer.from_folder(folder).encode("abc")
    assert configure(folder, bos_token="<|end|>").encode("abc") == plain
    asked = configure(folder, bos_token={"content": "<|end|>"}, add_bos_token=True)
    assert asked.bos_id == 0
    assert asked.encode("abc") == [0, *plain]
    assert asked.encode("abc", add_special=False) == plain

    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing("<|end|> $A", None, [("<|end|>", 0)])
    backend.save(str(folder / "tokenizer.json"))
    assert Tokenizer.from_folder(folder).encode("abc") == [0, *plain]


def test_truncation_and_padding_of_training_are_off(folder):
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("a longer text")) == "a longer text"


def test_the_vocabulary_ends_after_the_last_added_token(folder):
    backend = byte_level()
    before = Tokenizer(backend, {}).vocab_size
    backend.add_tokens(["<tool>"])
    assert Tokenizer(backend, {}).vocab_size == before + 1
    assert backend.token_to_id("<tool>") == before


@pytest.mark.parametrize("first", [1, 200, 5000])
def test_the_vocabulary_ends_after_the_highest_id_where_ids_have_gaps(first):
    ids = [0, *range(first, first + 300), first + 400]
    vocabulary = {f"t{id_}": id_ for id_ in ids}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    assert Tokenizer(backend, {}).vocab_size == first + 401


def test_legacy_special_tokens_map_is_read(folder):
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|end|>"}}')
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.eos_id, tokenizer.bos_id) == (0, None)


def test_lone_surrogates_are_refused(folder):
    with pytest.raises(InputError, match="character 1"):
        Tokenizer.from_folder(folder).encode("a\udcff")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "is missing"),
        ("tokenizer.json", "{", "is damaged"),
        ("tokenizer_config.json", "{", "is damaged"),
        ("tokenizer_config.json", "[]", "no JSON object"),
    ],
)
def test_damaged_files_are_named(folder, name, content, message):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(BundleError, match=f"{name} .*{message}|{name} {message}"):
        Tokenizer.from_folder(folder)


TEMPLATE = """{{ bos_token }}{% for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{ raise_exception('system comes first') }}
{% endif %}
{%- if m.role == 'tool' %}{% continue %}{% endif %}
<|{{ m['role'] }}|>{% generation %}{{ m['content'] | trim }}{% endgeneration %}
{{ {'é<': 1} | tojson }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
MESSAGES = [
    {"role": "system", "content": " be brief "},
    {"role": "tool", "content": "skipped"},
    {"role": "user", "content": "hi <b>"},
]


def test_chat_templates_render_as_in_transformers(folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = configure(folder, bos_token="<|end|>", chat_template=TEMPLATE)
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<|end|>", chat_template=TEMPLATE
    )
    for prompt in (True, False):
        expected = reference.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=prompt
        )
        assert tokenizer.chat(MESSAGES, prompt) == expected
    assert "be brief" in tokenizer.chat(MESSAGES)


def test_a_template_comes_from_its_file_or_from_a_named_list(folder):
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "listed"}]
    assert configure(folder, chat_template=named).chat(MESSAGES) == "listed"
    odd = [*named, {"template": "nameless"}, "text"]
    assert configure(folder, chat_template=odd).chat(MESSAGES) == "listed"
    assert not configure(folder, chat_template=odd[2:]).has_chat_template
    (folder / "chat_template.jinja").write_text("from a file, {{ strftime_now('%Y')|length }}")
    assert Tokenizer.from_folder(folder).chat(MESSAGES) == "from a file, 4"


def test_chat_errors_say_what_is_wrong(folder):
    with pytest.raises(InputError, match="no chat template"):
        Tokenizer.from_folder(folder).chat(MESSAGES)
    broken = configure(folder, chat_template="{% if %}")
    assert broken.decode(broken.encode("plain")) == "plain"  # which needs no template
    with pytest.raises(InputError, match="not valid"):
        broken.chat(MESSAGES)
    tokenizer = configure(folder, chat_template=TEMPLATE)
    with pytest.raises(InputError, match="system comes first"):
        tokenizer.chat(MESSAGES[::-1])


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1/0 }}",
        "{{ range(10**9)|list }}",
        "{{ 10.0**999 }}",
        "{{ '%(x)s' % {} }}",
        "{{ 10**5000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        f"{{{{ {'(' * 5000}1{')' * 5000} }}}}",
        "{{ raise_exception('a long\n' * 5000) }}",
    ],
)
def test_whatever_fails_in_a_template_is_said_in_a_line(folder, template):
    with pytest.raises(InputError, match="chat template") as caught:
        configure(folder, chat_template=template).chat(MESSAGES)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("messages", ["hello", {"role": "user"}, [["role", "user"]]])
def test_what_is_no_list_of_messages_is_refused(folder, messages):
    tokenizer = configure(folder, chat_template="{{ messages }}")
    with pytest.raises(InputError, match="Give a list of messages"):
        tokenizer.chat(messages)


def test_templates_run_in_a_sandbox(folder):
    tokenizer = configure(folder, chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InputError, match="unsafe"):
        tokenizer.chat(MESSAGES)
    tokenizer = configure(folder, chat_template="{{ messages.append(1) }}")
    with pytest.raises(InputError, match="refuses"):
        tokenizer.chat(MESSAGES)
