"""Which files a graph names, however its protobuf is written: those that onnx's parser finds."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import onnx
import pytest
from checkpoints import edit_json
from hypothesis import given
from hypothesis import strategies as st

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.bundle.graphs import external_files
from edgespec.errors import BundleError
from edgespec.models.embedded import BUNDLE


def varint(value, length=0):
    """A number in protobuf's encoding, perhaps in more bytes than it needs."""
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < length:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, content, length=0):
    return varint(number << 3 | 2) + varint(len(content), length) + content


def group(number, content):
    return varint(number << 3 | 3) + content + varint(number << 3 | 4)


KEY = field(1, b"location")
VALUE = field(2, b"hidden.bin")
OTHER = field(1, b"offset") + field(2, b"4096")
ENTRIES = {
    "as it is written": KEY + VALUE,
    "value first": VALUE + KEY,
    "key twice": field(1, b"offset") + KEY + VALUE,
    "value twice": field(2, b"listed.bin") + KEY + VALUE,
    "another key last": KEY + VALUE + field(1, b"offset"),
    "unknown between": KEY + field(9, b"x" * 200) + varint(8 << 3) + varint(7) + VALUE,
    "fixed between": KEY + varint(7 << 3 | 1) + bytes(8) + varint(7 << 3 | 5) + bytes(4) + VALUE,
    "long lengths": field(1, b"location", 5) + field(2, b"hidden.bin", 5),
    "long tags": varint(1 << 3 | 2, 5) + KEY[1:] + varint(2 << 3 | 2, 4) + VALUE[1:],
    "group between": KEY + group(6, group(7, OTHER)) + VALUE,
    "group of the same number": KEY + group(2, OTHER) + VALUE,
    "another form": KEY + VALUE + varint(2 << 3) + varint(5),
}
TENSOR = field(8, b"w") + varint(14 << 3) + varint(1) + field(13, KEY + VALUE)


def attribute(*fields):
    return field(1, field(4, b"If") + field(5, field(1, b"a") + b"".join(fields)))


def in_graph(content):
    return field(7, content)


PLACES = {
    "initializer": in_graph(field(5, TENSOR)),
    "sparse values": in_graph(field(15, field(1, TENSOR))),
    "sparse indices": in_graph(field(15, field(2, TENSOR))),
    "attribute": in_graph(attribute(field(5, TENSOR))),
    "attributes": in_graph(attribute(field(10, TENSOR))),
    "sparse attribute": in_graph(attribute(field(22, field(1, TENSOR)))),
    "sparse attributes": in_graph(attribute(field(23, field(1, TENSOR)))),
    "branch": in_graph(attribute(field(6, field(5, TENSOR)))),
    "branches": in_graph(attribute(field(11, attribute(field(6, field(5, TENSOR)))))),
    "function": field(25, field(7, attribute(field(5, TENSOR))[2:])),
    "default of a function": field(25, field(11, field(5, TENSOR))),
    "training": field(20, field(1, field(5, TENSOR))),
    "algorithm": field(20, field(2, attribute(field(6, field(5, TENSOR))))),
    "second graph": in_graph(field(2, b"a")) + in_graph(field(5, TENSOR)),
    "first graph": in_graph(field(5, TENSOR)) + in_graph(field(2, b"a")),
    "behind what is unknown": group(50, OTHER) + field(99, OTHER) + in_graph(field(5, TENSOR)),
    "no graph": group(7, field(5, TENSOR)),
    "no weights": in_graph(field(16, KEY + VALUE)) + field(14, KEY + VALUE),
}


def named(message):
    """The locations within a message as onnx's parser reads it."""
    found = set()
    if isinstance(message, onnx.TensorProto):
        found = {each.value for each in message.external_data if each.key == "location"}
    for each, value in message.ListFields():
        if each.message_type is not None:
            parts = [value] if hasattr(value, "ListFields") else value
            found = found.union(*map(named, parts))
    return found


def agree(path, content):
    path.write_bytes(content)
    found = external_files(path)
    assert found == named(onnx.load_model_from_string(content))
    return found


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_in_any_form(tmp_path, name):
    content = in_graph(field(5, field(13, OTHER) + field(13, ENTRIES[name]) + field(13, OTHER)))
    found = agree(tmp_path / "a.onnx", content)
    assert found == (set() if name == "another key last" else {"hidden.bin"})


@pytest.mark.parametrize("name", PLACES)
def test_weights_anywhere(tmp_path, name):
    found = agree(tmp_path / "a.onnx", PLACES[name])
    assert found == (set() if name.startswith("no ") else {"hidden.bin"})


PARTS = st.recursive(
    st.sampled_from([KEY, VALUE, TENSOR, OTHER, *ENTRIES.values()]),
    lambda each: st.lists(
        st.builds(field, st.sampled_from([1, 2, 5, 6, 7, 10, 11, 13, 15, 20, 22, 25, 60]), each)
        | st.builds(group, st.integers(1, 30), each)
    ).map(b"".join),
)


@given(PARTS)
def test_no_other_graph_names_more(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(content)
    try:
        expected = named(onnx.load_model_from_string(content))
    except Exception:  # which no session opens either
        return
    assert external_files(path) >= expected


@pytest.mark.parametrize(
    "content",
    [b"\x3a\x7f", b"\x3a", b"\x80" * 11, b"\x3f", b"\x02\x00", b"\x3b", b"\x3c", b"\x3b\x44", b"x"],
)
def test_what_is_no_protobuf_is_refused(tmp_path, content):
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(ValueError, match=r"field|number|group"):
        external_files(tmp_path / "a.onnx")


@pytest.fixture
def bundle(tmp_path):
    """A bundle that may be changed."""
    return shutil.copytree(BUNDLE, tmp_path / "bundle")


@pytest.mark.parametrize("name", PLACES)
def test_a_bundle_with_such_a_graph_is_refused(bundle, name):
    graph = bundle / "target.native.onnx"
    graph.write_bytes(graph.read_bytes() + PLACES[name])
    files = json.loads((bundle / MANIFEST).read_text())["files"]
    edit_json(bundle / MANIFEST, files=files | {graph.name: asdict(bundles.describe_file(graph))})
    if name.startswith("no "):
        bundles.load(bundle)
        return
    with pytest.raises(BundleError, match=r"in 'hidden\.bin', which the manifest does not list"):
        bundles.load(bundle)


def test_a_graph_of_another_format_is_refused(bundle):
    """ONNX Runtime reads what is named .ort in a format of its own."""
    (bundle / "target.native.onnx").rename(bundle / "target.ort")
    text = (bundle / MANIFEST).read_text().replace("target.native.onnx", "target.ort")
    (bundle / MANIFEST).write_text(text)
    with pytest.raises(BundleError, match=r"not named \.onnx"):
        bundles.load(bundle)


def test_the_graphs_of_exports_name_their_tiles():
    found = {each.name: external_files(each) for each in BUNDLE.glob("*.onnx")}
    assert found == {
        "target.native.onnx": {"target.tiles"},
        "draft.native.onnx": {"draft.tiles"},
    }
