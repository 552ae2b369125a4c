"""How a model's authors ask for its tokens to be chosen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n")
# What transformers takes for what a file that samples leaves out.
_LEFT_OUT = {"temperature": 1.0, "top_k": 50.0}
_FILTERS = ("temperature", "top_k", "top_p", "min_p")
_OTHERS = (
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)
# Names in GGUF behind `general.sampling.`, as llama.cpp's converter writes them.
_GGUF = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty", "penalty_last_n": "repeat_last_n",
    "xtc_probability": "xtc_probability", "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat", "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta",
}  # fmt: skip
_SPELLED = {"temp": "temperature", "nucleus": "top_p"}  # further names in `sequence`
_LAST = 64  # llama.cpp's usual number of tokens that penalties count


def asked_sampling(generation: ConfigFields) -> dict[str, float] | None:
    """Returns what a generation_config.json asks for, by the names of `SamplingOptions`.

    Temperature 0 stands for greedy decoding, which `do_sample: false` asks for. None: it says
    nothing of that.
    """
    found = {name: _number(generation, name) for name in (*_FILTERS, *_OTHERS, *_PENALTIES)}
    known = {name: value for name, value in found.items() if value is not None}
    samples = generation.get("do_sample")
    if samples is False:
        known = {"temperature": 0.0} | {n: known[n] for n in _PENALTIES if n in known}
    elif samples is True or not known.keys().isdisjoint(_FILTERS):
        known = _LEFT_OUT | known
    if known.get("top_k", 0) < 0:  # as some write that all tokens may be chosen
        known["top_k"] = 0.0
    return known or None


def gguf_sampling(metadata: ConfigFields) -> dict[str, float]:
    """Returns what a GGUF file asks for, as fields of a generation_config.json."""
    group = "general.sampling."
    found = {ours: _number(metadata, group + theirs) for theirs, ours in _GGUF.items()}
    known = {name: value for name, value in found.items() if value is not None}
    if known.get("repetition_penalty", 1.0) != 1:
        known = {"repeat_last_n": _LAST} | known
    sequence = metadata.get(group + "sequence")
    if isinstance(sequence, str):  # what it does not name is off
        names = [name.strip().replace("-", "_") for name in sequence.split(";")]
        used = {_SPELLED.get(name, name) for name in names}
        off = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0}
        if "xtc" not in used:
            known.pop("xtc_probability", None)
        known |= {name: value for name, value in off.items() if name not in used}
        if "penalties" not in used:
            known = {name: value for name, value in known.items() if name not in _PENALTIES}
    return known


def _number(fields: ConfigFields, name: str) -> float | None:
    """Returns a number; None if there is none, or none that makes sense."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
