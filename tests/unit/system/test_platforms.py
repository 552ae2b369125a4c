"""Where edgespec can be installed, and how it starts Python."""

from __future__ import annotations

import ast
import re

import pytest
from checkout import ROOT
from checkpoints import make_checkpoint, write_tokenizer
from ggufs import write_gguf

from edgespec.errors import DeviceError
from edgespec.models import load_checkpoint
from edgespec.runtime.engines import ort_session


def rule():
    """The function of setup.py, which cannot be imported."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    kept = [
        each
        for each in tree.body
        if getattr(each, "name", "") == "without_wheels"
        or (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "MACHINES")
    ]
    names = {}
    source = "from __future__ import annotations\n" + "\n".join(map(ast.unparse, kept))
    exec(source, names)
    return names["without_wheels"]


@pytest.mark.parametrize(
    ("system", "processor", "libc", "told"),
    [
        ("linux", "x86_64", ("glibc", "2.36"), None),
        ("linux", "aarch64", ("glibc", "2.28"), None),
        ("darwin", "arm64", ("", ""), None),
        ("win32", "AMD64", ("", ""), None),
        ("darwin", "x86_64", ("", ""), "Intel Macs"),
        ("linux", "aarch64", ("glibc", "2.17"), "glibc 2.17, but from 2.28 on"),
        ("linux", "x86_64", ("", ""), "without glibc"),
        ("linux", "armv7l", ("glibc", "2.36"), "armv7l"),
    ],
)
def test_what_has_no_wheels_is_told_by_name(system, processor, libc, told):
    found = rule()(system, processor, libc)
    assert found == told or (told is not None and told in found)


def test_no_module_of_the_current_folder_hides_one_of_python():
    """Wherever this package starts Python, a types.py beside the user does not count."""
    for folder in ("edgespec", "export", "models", "runtime"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if re.search(r"sys\.executable", text):
                assert '"-P"' in text, file


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Exception during initialization: std::bad_alloc", MemoryError),
        ("pthread_create failed, error code: 12 error msg: Cannot allocate memory", MemoryError),
        ("Failed to allocate memory for requested buffer of size 9", MemoryError),
        ("No opset import for domain 'x'", DeviceError),
    ],
)
def test_too_little_memory_is_no_fault_of_a_graph(monkeypatch, said, kind):
    def fail(*_, **__):
        raise RuntimeError(said)

    monkeypatch.setattr(ort_session.ort, "InferenceSession", fail)
    with pytest.raises(kind, match=said.split()[0]):
        ort_session.open_session(b"", None)


@pytest.mark.parametrize(
    ("told", "kind"), [(15, "Q4_K_M (mostly Q4_0)"), (2, "Q4_0"), (None, "Q4_0"), (9999, "Q4_0")]
)
def test_a_gguf_file_is_called_what_it_says(tmp_path, told, kind):
    make_checkpoint(tmp_path / "model", "llama")
    write_tokenizer(tmp_path / "model", 331)
    more = {} if told is None else {"general.file_type": told}
    write_gguf(tmp_path / "model", tmp_path / "file.gguf", "Q4_0", **more)
    assert load_checkpoint(tmp_path / "file.gguf").quantization == kind
