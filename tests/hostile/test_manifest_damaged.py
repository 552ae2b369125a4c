"""Damaged manifests of bundles: each is refused in one line, at once, or the bundle works."""

from __future__ import annotations

import json
import random
import time

from damage import TIMES, damaged, damaged_json, written
from manifests import manifest_of

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.errors import EdgespecError

FILES = 250 * TIMES
SEED = 49
SECONDS = 5.0


def refusal(folder, content):
    """Returns why a bundle with this manifest is refused; empty if it makes a text."""
    (folder / MANIFEST).write_bytes(content)
    try:
        bundles.load(folder)
        with LLM(folder, draft="none", threads=1) as llm:
            llm.generate("ab", max_new_tokens=2)
    except EdgespecError as error:
        return str(error)
    return ""


def test_no_damaged_manifest_does_harm(folder):
    intact = manifest_of(folder)
    chance = random.Random(SEED)
    files = set(folder.rglob("*"))
    reasons = set()
    works = 0
    for number in range(FILES):
        if number % 5:
            content = written(damaged_json(intact, chance))
        else:
            content = written(intact)
            content = damaged(content, len(content), chance, (0,))
        begun = time.process_time()
        told = refusal(folder, content)
        assert time.process_time() - begun < SECONDS, number
        assert told.isprintable(), number
        assert len(told) < 1000, number
        reasons.add(told.replace(str(folder), "")[:50])
        works += not told
    assert works < FILES // 4  # such as those of which the provenance has changed
    assert len(reasons) > 30
    assert set(folder.rglob("*")) == files
    assert refusal(folder, json.dumps(intact).encode()) == ""
