"""PDF files are read for the page, in bounds of time and size."""

from __future__ import annotations

import io
from base64 import b64encode

import pytest
from pdfs import make_pdf
from servers import refused

from edgespec.errors import InputError
from edgespec.serve import documents
from edgespec.serve.documents import pdf_text
from edgespec.system.jobs import JobError

pypdf = pytest.importorskip("pypdf")


def test_pages_follow_each_other(running):
    data = b64encode(make_pdf("One page", "", "Another")).decode()
    answer = running.post({"data": data}, "/pdf")
    assert answer.json() == {"text": "One page\n\nAnother", "pages": 3, "read": 3}


def test_what_is_no_base64_is_refused(running):
    refused(running.post({"data": "no base64!"}, "/pdf"), 400, "send a file in base64")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"%PDF-1.4 and no more", "cannot be read"),
        (make_pdf("text")[:200], "cannot be read"),
        (make_pdf("", ""), "has no text"),
        (b" " * (documents.MOST_BYTES + 1), "give one of 16 at most"),
    ],
)
def test_what_cannot_be_read_is_told(content, problem):
    with pytest.raises(InputError, match=problem):
        pdf_text(content)


def test_a_file_with_a_password_is_refused():
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(make_pdf("secret")))
    writer.encrypt("word", algorithm="RC4-40")
    content = io.BytesIO()
    writer.write(content)
    with pytest.raises(InputError, match="needs a password"):
        pdf_text(content.getvalue())


def test_a_long_text_is_read_in_part(monkeypatch):
    monkeypatch.setattr(documents, "_MOST_TEXT", 10)
    monkeypatch.setattr(documents._WORKER, "run", documents._read)
    assert pdf_text(make_pdf("123456", "123456", "end")) == {
        "text": "123456\n\n12",
        "pages": 3,
        "read": 2,
    }


@pytest.mark.parametrize(("why", "told"), [("time", "longer than 10 s"), ("crash", "is damaged")])
def test_what_takes_too_much_is_told(monkeypatch, why, told):
    def ended(_):
        raise JobError(why)

    monkeypatch.setattr(documents._WORKER, "run", ended)
    with pytest.raises(InputError, match=told):
        pdf_text(make_pdf("text"))


def test_without_pypdf_the_server_says_what_to_install(monkeypatch):
    monkeypatch.setattr(documents, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"need pypdf, .* pip install \"\.\[documents\]\""):
        pdf_text(make_pdf("text"))
