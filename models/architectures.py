"""The architectures that a checkpoint may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.apertus import Apertus
from edgespec.models.families.arcee import Arcee
from edgespec.models.families.bert import Bert, Roberta
from edgespec.models.families.bitnet import BitNet
from edgespec.models.families.cohere2 import Cohere2
from edgespec.models.families.cwm import Cwm
from edgespec.models.families.deepseek_v2 import DeepseekV2
from edgespec.models.families.distilbert import DistilBert
from edgespec.models.families.embedding_gemma2 import EmbeddingGemma2
from edgespec.models.families.ernie4_5 import Ernie4_5
from edgespec.models.families.ernie4_5_moe import Ernie4_5Moe
from edgespec.models.families.eurobert import EuroBert
from edgespec.models.families.exaone4 import Exaone4
from edgespec.models.families.falcon_h1 import FalconH1
from edgespec.models.families.gemma import Gemma
from edgespec.models.families.gemma2 import Gemma2
from edgespec.models.families.gemma3 import Gemma3
from edgespec.models.families.gemma3n import Gemma3n
from edgespec.models.families.gemma4 import Gemma4, Gemma4Unified
from edgespec.models.families.glm import Glm, Glm4
from edgespec.models.families.glm4_moe import Glm4Moe
from edgespec.models.families.glm4_moe_lite import Glm4MoeLite
from edgespec.models.families.gpt_oss import GptOss
from edgespec.models.families.granite import Granite
from edgespec.models.families.granitemoe import GraniteMoe
from edgespec.models.families.granitemoehybrid import GraniteMoeHybrid
from edgespec.models.families.gte import Gte, NewGte
from edgespec.models.families.hunyuan import Hunyuan
from edgespec.models.families.hyperclovax import HyperClovaX
from edgespec.models.families.internlm3 import InternLm3
from edgespec.models.families.iquestcoder import IQuestCoder
from edgespec.models.families.jina_embeddings_v3 import JinaEmbeddingsV3
from edgespec.models.families.kimi_linear import KimiLinear
from edgespec.models.families.lfm2 import Lfm2
from edgespec.models.families.lfm2_moe import Lfm2Moe
from edgespec.models.families.llama import Llama, Mistral
from edgespec.models.families.llama4 import Llama4
from edgespec.models.families.llama_bidirec import LlamaBidirec
from edgespec.models.families.minicpm import MiniCpm
from edgespec.models.families.minicpm3 import MiniCpm3
from edgespec.models.families.ministral3 import Ministral3
from edgespec.models.families.mistral4 import Mistral4
from edgespec.models.families.mixtral import Mixtral
from edgespec.models.families.modernbert import ModernBert
from edgespec.models.families.mpnet import MpNet
from edgespec.models.families.nemotron_h import NemotronH
from edgespec.models.families.nomic_bert import NomicBert
from edgespec.models.families.olmo2 import Olmo2
from edgespec.models.families.olmo3 import Olmo3
from edgespec.models.families.olmoe import Olmoe
from edgespec.models.families.phi3 import Phi3
from edgespec.models.families.phimoe import PhiMoe
from edgespec.models.families.qwen2 import Qwen2
from edgespec.models.families.qwen2_5_vl import Qwen2_5Vl
from edgespec.models.families.qwen2_moe import Qwen2Moe
from edgespec.models.families.qwen3 import Qwen3
from edgespec.models.families.qwen3_5 import Qwen3_5
from edgespec.models.families.qwen3_5_moe import Qwen3_5Moe
from edgespec.models.families.qwen3_moe import Qwen3Moe
from edgespec.models.families.qwen3_next import Qwen3Next
from edgespec.models.families.qwen3_vl import Qwen3Vl
from edgespec.models.families.qwen3_vl_moe import Qwen3VlMoe
from edgespec.models.families.seed_oss import SeedOss
from edgespec.models.families.smollm3 import SmolLm3
from edgespec.models.families.stablelm import StableLm
from edgespec.models.families.vaultgemma import VaultGemma
from edgespec.models.vision.text_part import COMPOSITES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields

ARCHITECTURES: Mapping[str, type[Llama]] = {
    "apertus": Apertus,
    "arcee": Arcee,
    "bert": Bert,
    "bitnet": BitNet,
    "camembert": Roberta,
    "cohere2": Cohere2,
    "cwm": Cwm,
    "deepseek_v2": DeepseekV2,
    "distilbert": DistilBert,
    "embedding_gemma2_text": EmbeddingGemma2,
    "ernie4_5": Ernie4_5,
    "ernie4_5_moe": Ernie4_5Moe,
    "eurobert": EuroBert,
    "exaone4": Exaone4,
    "falcon_h1": FalconH1,
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "gemma3n_text": Gemma3n,
    "gemma4_text": Gemma4,
    "gemma4_unified_text": Gemma4Unified,
    "glm": Glm,
    "glm4": Glm4,
    "glm4_moe": Glm4Moe,
    "glm4_moe_lite": Glm4MoeLite,
    "gpt_oss": GptOss,
    "granite": Granite,
    "granitemoe": GraniteMoe,
    "granitemoehybrid": GraniteMoeHybrid,
    "gte": Gte,
    "hunyuan_v1_dense": Hunyuan,
    "hyperclovax": HyperClovaX,
    "internlm3": InternLm3,
    "iquestcoder": IQuestCoder,
    "lfm2": Lfm2,
    "lfm2_moe": Lfm2Moe,
    "jina_embeddings_v3": JinaEmbeddingsV3,
    "kimi_linear": KimiLinear,
    "llama": Llama,
    "llama4_text": Llama4,
    "llama_bidirec": LlamaBidirec,
    "minicpm": MiniCpm,
    "minicpm3": MiniCpm3,
    "ministral": Mistral,
    "ministral3": Ministral3,
    "mistral": Mistral,
    "mistral4": Mistral4,
    "mixtral": Mixtral,
    "modernbert": ModernBert,
    "mpnet": MpNet,
    "nemotron_h": NemotronH,
    "new": NewGte,
    "nomic_bert": NomicBert,
    "olmo2": Olmo2,
    "olmo3": Olmo3,
    "olmoe": Olmoe,
    "phi3": Phi3,
    "phimoe": PhiMoe,
    "qwen2": Qwen2,
    "qwen2_5_vl_text": Qwen2_5Vl,
    "qwen2_moe": Qwen2Moe,
    "qwen3": Qwen3,
    "qwen3_5_moe_text": Qwen3_5Moe,
    "qwen3_5_text": Qwen3_5,
    "qwen3_moe": Qwen3Moe,
    "qwen3_next": Qwen3Next,
    "qwen3_vl_moe_text": Qwen3VlMoe,
    "qwen3_vl_text": Qwen3Vl,
    "roberta": Roberta,
    "seed_oss": SeedOss,
    "smollm3": SmolLm3,
    "stablelm": StableLm,
    "vaultgemma": VaultGemma,
    "xlm-roberta": Roberta,
}
"""The supported architectures by `model_type`."""


def architecture_of(fields: ConfigFields) -> type[Llama]:
    """Returns the architecture that a config.json names.

    Raises:
        UnsupportedModelError: It is none of these.
    """
    model_type = fields.get("model_type")
    architecture = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        supported = ", ".join((*ARCHITECTURES, *COMPOSITES))
        raise fields.unsupported("model_type", f"use one of {supported}")
    return architecture.of(fields)
