"""Tests of tokenizers from folders, and of chat templates."""

from __future__ import annotations

import json
import time

import pytest
import tokenizers
from backends import byte_level
from checkpoints import write_tokenizer
from tokenizers import models, processors

from edgespec.errors import BundleError, InputError
from edgespec.runtime.text.template import sandbox
from edgespec.runtime.text.tokenizer import Tokenizer


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


@pytest.mark.parametrize("known", ["as an added token", "in the vocabulary", "as special"])
def test_ends_that_the_config_names_are_special(folder, known):
    backend = byte_level()
    if known == "in the vocabulary":
        content = json.loads(backend.to_str())
        content["model"]["vocab"]["<|im_end|>"] = backend.get_vocab_size()
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    else:
        backend.add_tokens([tokenizers.AddedToken("<|im_end|>", special=known == "as special")])
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = configure(folder, eos_token="<|im_end|>")
    ids = tokenizer.encode("a<|im_end|>b")
    assert len(ids) == 3
    assert ids[1] == tokenizer.eos_id
    assert ids[1] in tokenizer.special_ids
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special=False) == "a<|im_end|>b"


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
        ("tokenizer_config.json", "[" * 100_000, "is damaged"),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("chat_template.jinja", "é", "is damaged"),
    ],
)
def test_damaged_files_are_named(folder, name, content, message):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content, encoding="latin-1")
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
    tokenizer = configure(folder, chat_template=named)
    assert tokenizer.chat(MESSAGES) == "listed"
    assert tokenizer.chat(MESSAGES, tools=[]) == tokenizer.chat_source == "x"
    odd = [*named, {"template": "nameless"}, "text"]
    assert configure(folder, chat_template=odd).chat(MESSAGES) == "listed"
    assert not configure(folder, chat_template=odd[2:]).has_chat_template
    (folder / "chat_template.jinja").write_text("from a file, {{ strftime_now('%Y')|length }}")
    assert Tokenizer.from_folder(folder).chat(MESSAGES) == "from a file, 4"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ messages[0].content }}", None),
        ("{{ eos_token }}{{ messages[0].content }}", None),
        ("{% if tools %}{{ tools }}{% endif %}{{ messages[0].content }}", None),
        ("{{ bos_token if bos_token is defined }}{{ messages[0].content }}", None),
        ("{{ bos_token }}{{ messages[0].content }}", "it writes bos_token, which nothing sets"),
        ("{{ bos_token + messages[0].content }}", "'bos_token' is undefined"),
        ("{{ messages[0].text }}", "it leaves out what the user says"),
        ("{% if %}", "it fails on a plain message: Expected an expression"),
        ("{{ raise_exception('no users here') }}", "no users here"),
        ("{{ messages[0].role }}", "it leaves out what the user says"),
    ],
)
def test_what_is_wrong_with_a_chat_template_is_known_before_a_chat(folder, template, fault):
    found = configure(folder, eos_token="<|end|>", chat_template=template).chat_fault()
    assert found == fault or (fault is not None and fault in found)


_PARTS = "{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}"


@pytest.mark.parametrize(
    "content",
    [
        _PARTS,
        "{{ m.content[0].text }}",
        "{{ m.content | map(attribute='text') | join('') }}",
        f"{{% if m.role == 'user' %}}{_PARTS}{{% else %}}{{{{ m.content + '' }}}}{{% endif %}}",
        f"{{% if m.role == 'user' %}}{{{{ m.content + '' }}}}{{% else %}}{_PARTS}{{% endif %}}",
        f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{_PARTS}{{% endif %}}",
        f"{{% if messages[0].role != 'system' %}}{{{{ 1/0 }}}}{{% endif %}}{_PARTS}",
    ],
)
def test_a_template_that_reads_typed_parts_gets_them(folder, content):
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>{content}{{% endfor %}}"
    tokenizer = configure(folder, chat_template=template)
    roles = ("system", "user", "assistant", "user", "tool")
    messages = [{"role": role, "content": f" {role}!"} for role in roles]
    assert tokenizer.chat(messages) == "".join(f"<{role}> {role}!" for role in roles)
    tokenizer.require_messages_shown(folder)


@pytest.mark.parametrize("shown", ["{{ messages[0].role }}", "{{ messages[0].text }}", "hi"])
def test_a_template_that_shows_nothing_of_a_message_is_refused(folder, shown):
    both = [{"name": "default", "template": shown}, {"name": "tool_use", "template": "{{ 1 }}"}]
    for template in (shown, both, [{"name": "default", "template": "{{ messages }}"}, both[1]]):
        with pytest.raises(BundleError, match="shows nothing of what the user says"):
            configure(folder, chat_template=template).require_messages_shown(folder)


def test_without_a_chat_template_nothing_is_wrong_with_it(folder):
    assert Tokenizer.from_folder(folder).chat_fault() is None


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


LOOP, SET = "{% for i in range(99999) %}", "{% set n = namespace(x='aa') %}"


@pytest.mark.parametrize(
    "template",
    [
        f"{LOOP}{LOOP}x{{% endfor %}}{{% endfor %}}",
        f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
        f"{LOOP}{LOOP}{{% if true %}}{{% continue %}}{{% endif %}}{{% endfor %}}{{% endfor %}}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(90) }}",
        "{% for i in [1, 2] recursive %}{% if loop.depth < 90 %}{{ loop([1, 2]) }}{% endif %}"
        "{% endfor %}",
        f"{LOOP}{{{{ range(99999) | list | sort | length }}}}{{% endfor %}}",
        SET + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x * 9 %}{% endfor %}",
        "{% set n = namespace(x=['a']) %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}"
        + LOOP
        + "{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
        SET + LOOP + "{% set n.x = [n.x, n.x]|join %}{% endfor %}",
        "{% set n = namespace(x='aa') %}"
        + LOOP
        + "{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x=9) %}" + LOOP + "{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a' * 10 ** 12 }}",
    ],
)
def test_templates_end(folder, monkeypatch, template):
    monkeypatch.setattr(sandbox, "_MOST_STEPS", sandbox._MOST_STEPS // 8)
    begin = time.process_time()
    with pytest.raises(InputError, match=r"refuses these messages: .*(steps|too large|too big)"):
        configure(folder, chat_template=template).chat(MESSAGES)
    assert time.process_time() - begin < 10  # on a slow machine; one without bounds takes days


def test_a_long_conversation_is_no_endless_loop(folder):
    tokenizer = configure(folder, bos_token="<|end|>", chat_template=TEMPLATE)
    for _ in range(2):  # steps are those of one rendering
        assert tokenizer.chat([{"role": "user", "content": "x" * 100}] * 5_000)


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


@pytest.mark.parametrize("template", ["", " \n"])
def test_an_empty_chat_template_is_none(tmp_path, template):
    write_tokenizer(tmp_path, 331)
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert not tokenizer.has_chat_template
    tokenizer.require_messages_shown(tmp_path)
    assert tokenizer.chat_fault() is None
