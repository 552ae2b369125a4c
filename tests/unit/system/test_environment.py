"""What a report says of the machine and the code."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import onnxruntime
import pytest

from edgespec.system import environment


def test_the_revision_is_that_of_our_checkout_alone(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "edgespec"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()  # whoever has a wheel in a folder of his repository
    monkeypatch.setattr(environment, "edgespec", SimpleNamespace(__file__=package / "__init__.py"))
    assert environment.git_revision() is None
    package.parent.joinpath(".git").mkdir()  # no repository either
    assert environment.git_revision() is None


VERSIONS = {"onnxruntime": "1.31.0", "onnxruntime-gpu": "1.32.0"}


def distributions():
    found = environment.versions()
    assert "numpy" in found
    return {name: found[name] for name in VERSIONS.keys() & found.keys()}


def test_the_onnxruntime_that_is_imported_is_told():
    assert [*distributions().values()] == [onnxruntime.__version__]


@pytest.fixture
def package(monkeypatch, tmp_path):
    """An onnxruntime that is imported, beside what pip has noted of two distributions."""
    for name, version in VERSIONS.items():
        metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    folder = tmp_path / "onnxruntime"
    (folder / "capi").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime")
    return folder


@pytest.mark.parametrize("name", VERSIONS)
def test_of_two_distributions_the_one_whose_files_are_there_is_told(package, name):
    told = f"package_name = {name!r}\n__version__ = {VERSIONS[name]!r}\ncuda_version = '13.0'\n"
    (package / "capi" / "build_and_package_info.py").write_text(told)
    assert distributions() == {name: VERSIONS[name]}


@pytest.mark.parametrize("told", ["", "__version__ = '1.31.0'\n"])
def test_files_of_no_distribution_are_not_told(package, told):
    (package / "capi" / "build_and_package_info.py").write_text(told)
    assert distributions() == {}
    (package / "capi" / "build_and_package_info.py").unlink()
    assert distributions() == {}
