"""What a report says of the machine and the code."""

from __future__ import annotations

from types import SimpleNamespace

from edgespec.system import environment


def test_the_revision_is_that_of_our_checkout_alone(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "edgespec"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()  # whoever has a wheel in a folder of his repository
    monkeypatch.setattr(environment, "edgespec", SimpleNamespace(__file__=package / "__init__.py"))
    assert environment.git_revision() is None
    package.parent.joinpath(".git").mkdir()  # no repository either
    assert environment.git_revision() is None
