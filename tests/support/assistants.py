"""Random assistants of random Gemma 4 targets, as transformers defines them, and trained ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from checkpoints import randomize
from head_parts import continuations, learn, repeatable
from torch.nn.functional import cross_entropy
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

VOCABULARY = 320
"""Tokens of the targets, which clusters have as many of each."""

SLIDING, FULL = "sliding_attention", "full_attention"
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 10, "centroid_intermediate_top_k": 3}
_SAME = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_k_eq_v", "sliding_window",
    "rope_parameters", "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
_DEPTH = 3  # tokens of a draft that a trained one has learned
# What an assistant can be, by name: fields of its config, and of its text part.
ASSISTANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all tokens": ({}, {}),
    "clusters": (CLUSTERS, {}),
    "of full attention": ({}, {"num_hidden_layers": 1, "layer_types": [FULL]}),
}


def write_assistant(
    folder: Path, target: Any, seed: int = 3, text: dict[str, Any] | None = None, **changes: Any
) -> Gemma4AssistantForCausalLM:
    """Saves a random assistant for a transformers config of a target.

    Args:
        folder: folder to create.
        target: config of the target.
        seed: seed of the weights.
        text: fields of the text part's config to set.
        changes: fields of the config to set.
    """
    given = target.to_dict()
    full = target.per_layer_config[target.num_hidden_layers - 1]
    own = {
        "model_type": "gemma4_text",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "vocab_size": target.vocab_size,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "tie_word_embeddings": True,
        **{name: given[name] for name in _SAME},
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.num_key_value_heads,
        **(text or {}),
    }
    config = Gemma4AssistantConfig(
        text_config=own, backbone_hidden_size=target.hidden_size, **changes
    )
    model = Gemma4AssistantForCausalLM(config).eval()
    randomize(model, seed)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def of_target(model: Any, tokens: list[int]) -> tuple[torch.Tensor, dict[str, Any]]:
    """What an assistant reads of a text: rows of the last norm, [n, hidden], keys and values."""
    outputs = model.model(torch.tensor([tokens]), return_shared_kv_states=True)
    return outputs.last_hidden_state[0], dict(outputs.shared_kv_states)


def rows(
    assistant: Gemma4AssistantForCausalLM,
    embedding: Any,
    tokens: list[int],
    hidden: torch.Tensor,
    read: dict[str, Any],
    position: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns logits and rows for the next level, of rows behind a text of `position` tokens."""
    found = []
    for token, above in zip(tokens, hidden, strict=True):
        both = torch.cat([embedding(torch.tensor([token])), above[None]], -1)[None]
        with torch.no_grad():
            done = assistant(
                inputs_embeds=both,
                position_ids=torch.tensor([[position]]),
                shared_kv_states={
                    kind: tuple(each[:, :, :position] for each in pair)
                    for kind, pair in read.items()
                },
            )
        found.append((done.logits[0, 0], done.last_hidden_state[0, 0]))
    logits, own = zip(*found, strict=True)
    return torch.stack(logits), torch.stack(own)


def trained_assistant(folder: Path, model: Any, prompt: list[int]) -> None:
    """Writes an assistant that has learned how a random target continues one prompt."""
    assistant = write_assistant(folder, model.config, **CLUSTERS)
    with repeatable():
        texts = continuations(model, prompt, (False,))
        read = [of_target(model, text) for text in texts]
        embedding = model.get_input_embeddings()
        window = model.config.sliding_window
        clusters = assistant.masked_embedding
        cluster = clusters.token_ordering.argsort() // clusters.vocab_size_per_centroid

        def loss() -> torch.Tensor:
            loss = torch.zeros(())
            for text, (hidden, kept) in zip(texts, read, strict=True):
                n = len(text) - _DEPTH - 1
                tokens = torch.tensor(text)
                at = torch.arange(1, n + 1)
                slots = torch.arange(len(text))
                above = hidden[:n]
                before = slots < at[:, None]
                near = before & (slots >= at[:, None] - window - 1)
                masks = {
                    kind: torch.zeros(mask.shape).masked_fill(~mask, -1e9)[None, None]
                    for kind, mask in ((FULL, before), (SLIDING, near))
                }
                for depth in range(_DEPTH):  # all rows of a draft stand at one position
                    both = torch.cat([embedding(tokens[at + depth]).detach(), above], -1)
                    made = assistant.model(
                        inputs_embeds=assistant.pre_projection(both)[None],
                        attention_mask=masks,
                        position_ids=at[None],
                        shared_kv_states=kept,
                        use_cache=False,
                        output_hidden_states=True,
                    ).last_hidden_state
                    logits = assistant.lm_head(made)[0]
                    wanted = tokens[at + depth + 1]
                    chosen = clusters.centroids(made)[0]
                    loss = loss + cross_entropy(logits, wanted)
                    loss = loss + cross_entropy(chosen, cluster[wanted])
                    above = assistant.post_projection(made)[0]
            return loss

        learn(assistant.parameters(), 150, loss)
    assistant.save_pretrained(folder)
