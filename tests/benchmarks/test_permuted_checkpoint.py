"""The checkpoint that `permuted_checkpoint.py` writes computes what the original does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("qwen2", {"num_key_value_heads": 2}),
        ("qwen3", {}),
        ("llama", {"tie_word_embeddings": True}),
    ],
)
def test_a_permuted_checkpoint_computes_the_same(tmp_path, monkeypatch, architecture, config):
    """Heads of one group have their values in one order, norms of heads none."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    permuted = importlib.import_module("permuted_checkpoint")
    original = make_checkpoint(tmp_path / "as-it-is", architecture, dtype=torch.float16, **config)
    write_tokenizer(tmp_path / "as-it-is", 331)
    arguments = ["permuted_checkpoint.py", str(tmp_path / "as-it-is"), "-o", str(tmp_path / "p")]
    monkeypatch.setattr("sys.argv", arguments)
    permuted.main()
    other = type(original).from_pretrained(tmp_path / "p", dtype=torch.float32).eval()
    ids = torch.randint(0, 331, (2, 50), generator=torch.manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(other(ids).logits, original(ids).logits, atol=1e-4, rtol=1e-4)
    weights = [each.model.layers[0].mlp.down_proj.weight for each in (original, other)]
    assert not torch.equal(*weights)
