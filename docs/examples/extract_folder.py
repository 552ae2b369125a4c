"""Has a model read the text files of a folder, and writes what it finds as JSON Lines.

pip install pydantic
python extract_folder.py model.gguf letters/ letters.jsonl

The answers are always valid, since the model can write nothing else than the class below. When the
program is started again, it goes on with the files that are not in the output yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from edgespec import LLM
from edgespec.errors import EdgespecError

AT_ONCE = 4  # texts that share the passes of the model


class Card(BaseModel):
    """What is wanted of each file; limits keep a small model from going on for ever."""

    summary: Annotated[str, Field(max_length=200)]
    kind: Literal["letter", "bill", "article", "notes", "other"]
    names: list[Annotated[str, Field(max_length=40)]] = Field(max_length=5)


def card_of(llm: LLM, file: Path) -> Card:
    """Reads a file; raises EdgespecError or OSError if that cannot be."""
    text = file.read_text("utf-8", errors="replace")
    question = f"Summarize this text, say of which kind it is and who is named.\n\n{text}"
    card: Card = llm.chat(question, json_schema=Card, max_tokens=400).parsed
    return card


def line_of(llm: LLM, file: Path) -> dict[str, Any]:
    """Returns the output's line about a file."""
    try:
        return {"file": file.name, **card_of(llm, file).model_dump()}
    except (EdgespecError, OSError) as error:
        return {"file": file.name, "error": str(error)}


def main() -> int:
    """Returns the number of files that could not be read, 1 at most."""
    parser = argparse.ArgumentParser(description=Card.__doc__)
    parser.add_argument("model", help="a GGUF file, a checkpoint's folder or a name on the Hub")
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    known = set()
    if given.output.exists():
        known = {json.loads(line)["file"] for line in given.output.read_text("utf-8").splitlines()}
    files = [each for each in sorted(given.folder.glob("*.txt")) if each.name not in known]
    failed = 0
    with (
        LLM(given.model, sessions=AT_ONCE) as llm,
        ThreadPoolExecutor(AT_ONCE) as pool,
        given.output.open("a", encoding="utf-8") as output,
    ):
        for line in pool.map(lambda file: line_of(llm, file), files):
            if "error" in line:
                print(f"{line['file']}: {line['error']}", file=sys.stderr)
                failed = 1
                continue
            output.write(json.dumps(line, ensure_ascii=False) + "\n")
            output.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
