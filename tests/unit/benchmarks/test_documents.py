"""What is read of a page to be typed, and what of it must be shown."""

from __future__ import annotations

import pytest
from checkout import ROOT
from documents import Step, missing, steps

PAGE = """# A page

Type this, and not `that`:

    pip install . && edgespec run "A"
    # a word for the reader
    edgespec chat \\
        qwen

```text
> 4 MB
```

* a list of things
  that goes on

```python
print(1)

print(2)
```

```json
{"a": 1}
```

```sh
ls

edgespec list
```

The end.
"""


def test_steps_are_those_of_a_page_in_order():
    assert steps(PAGE) == [
        Step('pip install . && edgespec run "A"'),
        Step("edgespec chat qwen", shown="> 4 MB\n"),
        Step("print(1)\n\nprint(2)\n", program=True),
        Step("ls"),
        Step("edgespec list"),
    ]


def test_prose_is_never_typed():
    assert steps("One line.\n    Two.\n\nThree `four`.\n\n* five\n  six\n") == []


def test_the_readme_has_something_to_type_and_to_show():
    found = steps((ROOT / "README.md").read_text("utf-8"))
    assert len(found) > 2
    assert any(step.program for step in found)
    assert any(step.shown for step in found)


OUTPUT = """a note
def f(a, 2):  # (1)

    return 2
done
72 tokens (length), 8.25 tokens/s, draft: auto (lookup 5%)
"""


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "a note\ndef f(a, 2):  # (1)\n",
        "def f(a, 2):  # (1)\n\n    return 2\n",
        "a note\n...\ndone\n",
        "...\ndone\n",
        "done\n9 tokens (length), 308 tokens/s, draft: auto ...\n",
        "def ...  # (1)\n...\n    return 2\n",
    ],
)
def test_what_is_shown_is_there(shown):
    assert missing(shown, OUTPUT) is None


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        ("a note\n    return 2\n", "    return 2"),  # not the next line
        ("def f(a, 3):  # (1)\n", "def f(a, 3):  # (1)"),  # a number without a unit
        ("return 2\n", "return 2"),  # not a whole line
        ("done\n...\na note\n", "a note"),  # the other way around
        ("72 tokens (length), 8.25 tokens/s\n", "72 tokens (length), 8.25 tokens/s"),
        ("def f.a, 2.:  # (1)\n", "def f.a, 2.:  # (1)"),
    ],
)
def test_what_is_missing_is_told(shown, line):
    assert missing(shown, OUTPUT) == line
