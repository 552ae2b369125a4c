"""OLMo 2."""

from __future__ import annotations

from edgespec.models.families.llama import Llama


class Olmo2(Llama):
    """Llama with norms after its sublayers instead of before, and norms over all heads."""

    defaults = Llama.but(rms_norm_eps=1e-5, eos_token_id=50279)
    norms_before = ("", "")
    norms_behind = ("post_attention_layernorm", "post_feedforward_layernorm")
    norms_of_heads = ("q_norm", "k_norm")
    heads_together = True
