"""Writes the tables of families and formats in docs/models.md.

    python benchmarks/models_table.py

A family is described by its class: `models`, or else the first line of its module, and `published`.
What was compared is read from the tests: each case of a `FULL_PRECISION` is a config for which both
engines give the logits of transformers, for texts, chains and trees.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from inspect import getmodule
from pathlib import Path

from edgespec.models import ARCHITECTURES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"

FORMATS = {
    "safetensors in bf16, fp16 or fp32, in one file or several": (
        "tests/unit/models/test_safetensors_folder.py"
    ),
    "safetensors in GPTQ, AWQ, compressed-tensors, FP8": (
        "tests/parity/test_quantized_checkpoints.py"
    ),
    "safetensors in NVFP4 (ModelOpt, compressed-tensors)": (
        "tests/parity/test_float4_checkpoints.py"
    ),
    "safetensors in MXFP4 (gpt-oss)": "tests/parity/test_mixtures.py",
    "GGUF, in one file or several": "tests/unit/models/test_gguf_weights.py",
    "ONNX with past and present, as optimum exports it": "tests/unit/export/test_adopted.py",
}
"""Formats of weights, and the tests that read them."""

_BEGIN, _END = "<!-- begin of benchmarks/models_table.py -->\n", "<!-- end -->\n"


def tables() -> str:
    """Returns both tables in Markdown."""
    cases = compared()
    families = [
        (f"`{model_type}`", *_described(family), "; ".join(cases[model_type]) or "none")
        for model_type, family in sorted(ARCHITECTURES.items())
    ]
    formats = [(name, f"[{Path(test).stem}](../{test})") for name, test in FORMATS.items()]
    return (
        _table(("`model_type`", "models", "published weights", "compared configs"), families)
        + "\n"
        + _table(("format", "tests"), formats)
    )


def compared() -> defaultdict[str, list[str]]:
    """Returns the names of the compared configs of each `model_type`."""
    cases = defaultdict[str, list[str]](list)
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                if names == ["FULL_PRECISION"]:
                    for key in map(ast.literal_eval, filter(None, node.value.keys)):
                        named = [each for each in ARCHITECTURES if f"{key}-".startswith(f"{each}-")]
                        model_type = max(named, key=len)
                        rest = key.removeprefix(model_type).replace("-", " ").strip()
                        cases[model_type].append(rest or "plain")
    return cases


def page(text: str) -> str:
    """Returns the page with these tables in the place of its own."""
    return re.sub(
        f"{re.escape(_BEGIN)}.*?{re.escape(_END)}",
        lambda _: f"{_BEGIN}{tables()}{_END}",
        text,
        flags=re.DOTALL,
    )


def _described(family: type) -> tuple[str, str]:
    """Returns a family's models and published weights, neither of which it inherits."""
    own = vars(family)
    about = getattr(getmodule(family), "__doc__", None) or ""
    first = about.partition("\n")[0].removesuffix(".")
    return own.get("models", first), own.get("published", "none")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
