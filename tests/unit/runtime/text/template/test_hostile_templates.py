"""Chat templates of strangers: whatever they do takes little time and memory."""

from __future__ import annotations

import time

import pytest
from real import FOLDER, needs

from edgespec.errors import InputError
from edgespec.runtime.text.template.chat import ChatTemplate
from edgespec.runtime.text.template.program import Program

MESSAGES = [{"role": "user", "content": "hello"}]
LISTS = (
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
PAIRS = LISTS.replace("[n.x, n.x]", "(n.x, n.x)").replace("[n.y, n.y]", "(n.y, n.y)")
PAIRS = PAIRS.replace("[1]", "(1,)")
OBJECTS = LISTS.replace("[n.x, n.x]", "{'a': n.x, 'b': n.x}")
DEEP = "{% set n = namespace(x=(1,)) %}{% for i in range(999) %}{% set n.x = (n.x,) %}{% endfor %}"
TEXT, LONG = "('a' * 4000000)", "('b' * 4000000)"

HERE = [
    *(
        LISTS + "{{ " + each + " }}"
        for each in (
            "n.x",
            "n.x|string|length",
            "n.x == n.y",
            "n.x in [n.y]",
            "n.x is eq(n.y)",
            "n.x|tojson",
            "[n.x, n.y]|sort",
            "[n.x, n.y]|max",
            "n.x ~ 'a'",
            "'%s' % n.x",
            "'%s'|format(n.x)",
            "'{}'.format(n.x)",
            "','.join(n.x)",
            "[n.x]|map('string')|list",
            "n.x|e",
            "n.x is lower",
            "[n.x]|select('equalto', n.y)|list",
        )
    ),
    *(
        PAIRS + "{{ " + each + " }}"
        for each in (
            "{n.x: 1}",
            "[n.x, n.y]|unique|list",
            "{1: 2}[n.x]",
            "{1: 2}.get(n.x)",
            "dict([(n.x, 1)])",
        )
    ),
    *(OBJECTS + "{{ " + each + " }}" for each in ("n.x", "n.x.items()|string", "n.x.values()")),
    DEEP + "{{ {n.x: 1} }}",
    "{{ " + f"{TEXT}.replace('a', {LONG})" + " }}",
    "{{ " + f"{TEXT}|replace(new={LONG}, old='a')" + " }}",
    "{{ " + f"{TEXT}.strip({LONG} ~ 'a')" + " }}",
    "{{ " + f"{LONG}.join(['a'] * 100000)" + " }}",
    "{{ " + f"([{TEXT}] * 100000)|join" + " }}",
    "{{ " + f"([{TEXT}] * 100000)|sort|length" + " }}",
    "{{ " + f"('%s' * 100000) % (([{TEXT}] * 100000),)" + " }}",
    "{{ " + f"('{{0}}' * 100000).format({TEXT})" + " }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ strftime_now('%c' * 10000) }}",
    "{% for i in range(99999) %}" + "x" * 20_000 + "{% endfor %}",
    "{% set s %}{% for i in range(99999) %}" + "x" * 20_000 + "{% endfor %}{% endset %}",
    "{% set n = namespace(x=[]) %}{% set s = " + TEXT + " %}{% for i in range(9999) %}"
    "{% set n.x = n.x + [s[1:]] %}{% endfor %}",
    "x" * 300_000,
]
ELSEWHERE = [
    "{{ [1, 2]|tojson(indent=10**9) }}",
    '{{ "%7000000000d" % 1 }}',
    '{{ "%*d" % (10**9, 1) }}',
    '{{ "%7000000000d"|format(1) }}',
    '{{ "{:>7000000000}".format(1) }}',
    '{{ "{:{}}".format(1, 10**9) }}',
    '{{ "a"|center(7000000000) }}',
    '{{ "a".zfill(7000000000) }}',
    '{{ "a".ljust(10**9) }}',
    "{{ [1]|batch(10**9, 0)|list }}",
    '{{ "a".encode().center(1000000000)|length }}',
    '{{ ("a" * 1000000).translate({97: "b" * 1000000})|length }}',
    '{{ "a"["center"](10**10) }}',
    '{{ (["a"]|map(attribute="center")|first)(10**10) }}',
    "{% filter center(10**10) %}a{% endfilter %}",
    '{% autoescape "a"|center(10**10) %}{{ 1 }}{% endautoescape %}',
    "{{ (5).to_bytes(10**10, 'big') }}",
]
ENDLESS = ["{{ lipsum(n=10**6) }}", LISTS + "{{ n }}"]
REFUSED = r"chat template (is not valid|refuses).*(steps|too large|too deep|pattern|longer|more)"


def refused(template, patience):
    begun = time.process_time()
    with pytest.raises(InputError, match=REFUSED) as caught:
        ChatTemplate(template, {}).render(MESSAGES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - begun < patience


@pytest.mark.parametrize("template", HERE, ids=lambda each: each[-50:])
def test_what_grows_here_is_counted_before(template):
    refused(template, 20)  # on a slow machine; without bounds these take days or gigabytes


@pytest.mark.parametrize("template", ELSEWHERE, ids=lambda each: each[-50:])
def test_what_no_model_does_is_done_in_another_process(template):
    refused(template, 3)


@pytest.mark.parametrize("template", ENDLESS, ids=lambda each: each[-50:])
def test_what_never_ends_is_ended(template):
    begun = time.monotonic()
    program = Program(template)
    for _ in range(20):  # as when it is tried which parts of messages it shows
        with pytest.raises(OverflowError):
            program.render({"messages": MESSAGES})
    assert time.monotonic() - begun < 30  # one takes two seconds of processor time


def test_nothing_is_computed_while_a_template_is_compiled():
    template = ChatTemplate('{{ "a"|center(10**10) if 0 }}{{ messages[0].content }}', {})
    assert template.render(MESSAGES) == "hello"


USUAL = """
{%- macro shown(value, depth=0) -%}
  {{- value|tojson(indent=2)|trim|safe if value is mapping else value|string|upper -}}
{%- endmacro -%}
{%- set ns = namespace(last=0, found=false, kept=[]) -%}
{%- for m in messages if m.role != 'none' -%}
  {%- set ns.last = loop.index0 -%}
  {%- set ns.kept = ns.kept + [m] -%}
  {%- if m['role'] in ['user', 'tool'] and not loop.first or m is not defined -%}
    {{- loop.cycle('', '') ~ m.content.split('</think>')[-1].lstrip('\\n').strip() -}}
  {%- endif -%}
  {{- m.get('name', 'no') ~ m.content[0:3] ~ '%s %d'|format('a', 3) ~ '{}-{}'.format(1, 2) -}}
  {%- for key, value in m.items()|sort -%}{{ key }}={{ shown(value) }};{%- endfor -%}
  {%- for key, value in m|dictsort -%}{{ key }}{%- endfor -%}
{%- endfor -%}
{%- generation -%}{{ ns.kept|length }}{{ messages|map(attribute='role')|join(', ') }}
{{- messages|selectattr('role', 'equalto', 'user')|list|length }}{% endgeneration %}
{{- dict(a=1)|tojson }}{{ range(3)|list }}{{ 7 // 2 }}{{ 'a,b'.split(',')|last|capitalize }}
{{- strftime_now('%Y')|int > 2000 }}{{ none|default('d', true) }}{{ messages|last|items|list }}
"""


def test_what_templates_of_models_do_is_done_here(monkeypatch):
    monkeypatch.setattr("edgespec.system.jobs.Worker.run", None)
    messages = [*MESSAGES, {"role": "tool", "content": "<think>no</think>\n yes"}]
    text = Program(USUAL).render({"messages": messages, "add_generation_prompt": True})
    assert text.startswith("nohela 31-2content=HELLO;role=USER;contentroleyesno<th")
    assert "2user, tool1" in text
    assert text.rstrip().endswith("[('role', 'tool'), ('content', '<think>no</think>\\n yes')]")


def test_another_process_gives_the_same_text():
    template = "{{ 'x'|center(5) }}{{ messages[0].content }}{{ nothing }}{{ tools }}{{ '\\ud800' }}"
    program = Program(template)
    assert program.render({"messages": MESSAGES, "tools": None}) == "  x  helloNone\ud800"
    assert program.unset == {"nothing"}
    with pytest.raises(InputError, match="wrong here"):
        Program("{{ 'x'|center(5) }}{{ raise_exception('wrong here') }}").render({})


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=needs(each)) for each in ("qwen-coder-0.5b", "smollm2-135m")],
)
def test_templates_of_real_models_are_run_here(name, monkeypatch):
    monkeypatch.setattr("edgespec.system.jobs.Worker.run", None)
    source = (FOLDER / name / "chat_template.jinja").read_text(encoding="utf-8")
    assert "hello" in ChatTemplate(source, {}).render(MESSAGES, tools=[{"type": "function"}])
