"""Text to calibrate with: pieces from all over it, and files that are of no use."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.texts import PIECE, calibration_text, pieces_of

PROSE = "The cat sat on the mat and looked at the bird. " * 40


@pytest.fixture(scope="module")
def tokenizer(saved_checkpoint):
    return Tokenizer.from_folder(saved_checkpoint("qwen3"))


def test_pieces_come_from_all_over_a_text(tokenizer):
    text = "".join(f"def function_{number}(x):\n    return x + {number}\n" for number in range(300))
    tokens = tokenizer.encode(text)
    pieces = pieces_of(text, tokenizer, 4, "text")
    assert [len(piece) for piece in pieces] == [PIECE] * 4
    places = [
        next(p for p in range(len(tokens)) if tokens[p : p + PIECE] == piece) for piece in pieces
    ]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] > len(tokens) // 2
    assert all(b - a >= PIECE for a, b in pairwise(places))
    # As many as there is room for, and one of a short text.
    assert len(pieces_of(text, tokenizer, 1000, "text")) == len(tokens) // PIECE
    [short] = pieces_of(tokenizer.decode(tokens[:100]), tokenizer, 4, "text")
    assert len(short) < PIECE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: give a calibration text"),
        (b" \n\t\n", "is empty: give a calibration text"),
        (b"caf\xe9", "byte 3 is not UTF-8: give the calibration text as UTF-8"),
    ],
)
def test_files_without_text(tmp_path, content, message):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{file}:? {message}"):
        calibration_text(file)


def test_a_text_that_is_too_short(tokenizer):
    with pytest.raises(InputError, match=r"my\.txt: it has \d+ tokens: give at least 64"):
        pieces_of("def main():", tokenizer, 4, "my.txt")


def test_a_text_of_another_script_is_warned_of(tokenizer, caplog):
    pieces_of("Привет, мир! " * 40, tokenizer, 2, "russian.txt")
    [record] = caplog.records
    assert record.getMessage().startswith("russian.txt: 1.0")
    assert "tokens per byte" in record.getMessage()
    caplog.clear()
    pieces_of(PROSE, tokenizer, 2, "prose.txt")
    assert not caplog.records


def test_a_text_of_unknown_tokens(tokenizer, monkeypatch, caplog):
    often = tokenizer.encode("aa b")[0]
    rarer = tokenizer.encode("z")[0]
    monkeypatch.setattr(tokenizer, "unknown_id", often)
    with pytest.raises(InputError, match=r"a\.txt: 100% of its tokens are unknown to the model"):
        pieces_of(tokenizer.decode([often]) * 400, tokenizer, 2, "a.txt")
    monkeypatch.setattr(tokenizer, "unknown_id", rarer)
    pieces_of("the z cat sat z " * 60, tokenizer, 2, "z.txt")
    assert "z.txt: " in caplog.text
    assert "% of its tokens are unknown" in caplog.text
