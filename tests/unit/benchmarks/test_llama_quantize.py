"""What the table of quality is made of: permuted models say the same, and Q4_K_M's rule."""

from __future__ import annotations

import importlib
import sys

import gguf
import numpy as np
import pytest
from checkout import BENCHMARKS
from checkpoints import make_checkpoint, write_tokenizer
from gguf import GGMLQuantizationType as Kind
from ggufs import write_gguf

from edgespec import LLM, export
from edgespec.errors import InputError
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.measuring.perplexity import predictions

pytestmark = pytest.mark.slow

sys.path.append(str(BENCHMARKS))  # last: names of ours come first

quantize, copy = map(importlib.import_module, ("llama_quantize", "peers.gguf_copy"))
TOKENS = [5, 9, 20, 31, 7, 44]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def file(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    make_checkpoint(folder, request.param, hidden_size=64, intermediate_size=128, head_dim=32)
    write_tokenizer(folder, 331)
    write_gguf(folder, folder / "model.gguf", "F32")
    return folder / "model.gguf"


def logits(file, output):
    export.make(file, output, None, ExportOptions("fp32"))
    with LLM(output, draft="none", context=64, threads=1) as llm:
        return np.array([row.copy() for row in predictions(inside(llm).engine.target, TOKENS, 0)])


def test_a_model_with_other_columns_says_the_same(file, tmp_path):
    quantize.write_permuted(file, tmp_path / "permuted.gguf")
    before, after = (gguf.GGUFReader(each) for each in (file, tmp_path / "permuted.gguf"))
    assert not np.allclose(before.tensors[0].data, after.tensors[0].data, atol=1e-2)
    assert [each.name for each in before.tensors] == [each.name for each in after.tensors]
    facts = {name for name in before.fields if not name.startswith("GGUF.")}
    assert all(after.fields[name].contents() == before.fields[name].contents() for name in facts)
    expected = logits(file, tmp_path / "expected")
    found = logits(tmp_path / "permuted.gguf", tmp_path / "found")
    np.testing.assert_allclose(found, expected, atol=2e-2 * expected.std())


def test_tensors_of_unknown_models_are_refused(file, tmp_path):
    reader = gguf.GGUFReader(file)
    place = [each.name for each in reader.tensors].index("blk.0.ffn_up.weight")
    reader.tensors[place] = reader.tensors[place]._replace(name="blk.0.ssm_in.weight")
    copy.rewrite(reader, tmp_path / "other.gguf", lambda each: (each.data, each.tensor_type))
    with pytest.raises(InputError, match=r"has blk\.0\.ssm_in\.weight: give a dense model"):
        quantize.write_permuted(tmp_path / "other.gguf", tmp_path / "permuted.gguf")


@pytest.mark.parametrize(
    ("name", "tied", "columns", "kind"),
    [
        ("output.weight", False, 1536, Kind.Q6_K),
        ("token_embd.weight", False, 1536, Kind.Q4_K),
        ("token_embd.weight", True, 1536, Kind.Q6_K),
        ("token_embd.weight", True, 896, Kind.Q8_0),
        ("blk.3.attn_q.weight", True, 896, Kind.Q5_0),
        ("blk.0.ffn_down.weight", True, 4864, Kind.Q6_K),
        ("blk.4.ffn_down.weight", True, 4864, Kind.Q4_K),
        ("blk.5.attn_v.weight", True, 1536, Kind.Q6_K),
        ("blk.23.attn_v.weight", True, 896, Kind.Q8_0),
    ],
)
def test_which_matrices_of_24_layers_get_more_bits(name, tied, columns, kind):
    assert quantize._format(name, 24, tied, columns) is kind
