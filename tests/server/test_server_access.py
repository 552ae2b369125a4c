"""Keys with names, connections that are encrypted, and a path before all routes."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import httpx
import pytest
from servers import MODEL, PROMPT, serving

from edgespec.errors import InputError
from edgespec.serve.access import Access, Certificate, read_keys, require_usable

ASKED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}


def make_certificate(folder):
    """A certificate for 127.0.0.1 and its key, in two files."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edgespec")])
    begin = datetime.now(UTC) - timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return files


def test_connections_are_encrypted(llm, tmp_path):
    file, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(file.read_bytes() + key.read_bytes())
    for certificate in (Certificate(file, key), Certificate(both)):
        certificate.check()
        known = ssl.create_default_context(cafile=file)
        with serving(llm, certificate=certificate) as running:
            given = httpx.post(f"{running.url}/v1/completions", json=ASKED, verify=known)
            assert given.json()["choices"][0]["text"]
            with pytest.raises(httpx.ConnectError, match="certificate"):
                httpx.get(f"{running.url}/health")
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{running.port}/health")


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path):
    file, key = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = make_certificate(tmp_path / "other")
    for wrong in (Certificate(file), Certificate(key), Certificate(file, other)):
        with pytest.raises(InputError, match=r"cannot be used .*give files of PEM"):
            wrong.check()
    with pytest.raises(InputError, match="No such file"):
        Certificate(tmp_path / "none.pem").check()


def test_each_key_has_a_name_in_the_log(llm, caplog):
    caplog.set_level(logging.INFO, "edgespec.serve.app")
    keys = {"ann": "first", "bob": "second"}
    with serving(llm, keys=keys, api_key="third") as running:
        for headers, status in (
            ({"authorization": "Bearer first"}, 200),
            ({"x-api-key": "second"}, 200),
            ({"authorization": "Bearer third"}, 200),
            ({"authorization": "Bearer ann"}, 401),
            ({"authorization": "Bearer firstsecond"}, 401),
            ({}, 401),
        ):
            assert httpx.get(f"{running.url}/v1/models", headers=headers).status_code == status
    told = [each.getMessage() for each in caplog.records if each.name == "edgespec.serve.app"]
    assert told == [f"{name} asks for /v1/models" for name in ("ann", "bob", "--api-key")]


def test_all_keys_are_compared(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: compared.append(one == other))
    assert Access({"a": "1", "b": "2"}).owner([b"1", b"3"]) is None
    assert compared == [True, False, False, False]


def test_a_file_of_keys_names_them(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nann: sk-1\nbob   sk-2\n\nsk:3\n  carol:sk-4  \n")
    assert read_keys(file) == {"ann": "sk-1", "bob": "sk-2", "sk": "3", "carol": "sk-4"}
    file.write_text("alone\n")
    assert read_keys(file) == {"line 1": "alone"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no API key"),
        ("# none\n", "has no API key"),
        ("a b c\n", "line 1 of .* is no API key"),
        ("a: 1\na: 2\n", "two keys of the name 'a'"),
        ("a: schlüssel\n", "printable ASCII"),
    ],
)
def test_a_file_that_is_none_of_keys_is_refused(tmp_path, text, reason):
    file = tmp_path / "keys"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError, match=reason):
        read_keys(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "nothing")


@pytest.mark.parametrize("key", ["", " a", "a\n", "ä"])
def test_keys_are_what_headers_can_contain(key):
    with pytest.raises(InputError, match="API key"):
        require_usable(key)


def test_routes_are_below_a_path_whether_a_proxy_takes_it_off_or_not(llm):
    with serving(llm, prefix="/a/b", api_key="secret") as running:
        key = {"authorization": "Bearer secret"}
        for place in ("", "/a/b"):
            given = httpx.post(f"{running.url}{place}/v1/completions", json=ASKED, headers=key)
            assert given.json()["choices"][0]["text"]
            assert httpx.get(f"{running.url}{place}/v1/models").status_code == 401
            assert "<title>" in httpx.get(f"{running.url}{place}/").text
            described = httpx.get(f"{running.url}{place}/openapi.json").json()
            assert described["servers"] == [{"url": "/a/b"}]
        moved = httpx.get(f"{running.url}/a/b")
        assert (moved.status_code, moved.headers["location"]) == (307, "/a/b/")
        assert httpx.get(f"{running.url}/a/bc/v1/models", headers=key).status_code == 404


def test_the_page_asks_relative_to_where_it_lies(running):
    page = httpx.get(f"{running.url}/").text
    assert 'fetch("v1/models"' in page
    assert 'fetch("/' not in page
    assert '"/v1/' not in page
