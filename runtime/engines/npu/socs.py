"""Lists the systems on a chip whose NPUs bundles can be compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import InputError


@dataclass(frozen=True)
class Soc:
    """A Qualcomm system on a chip, as its NPU's compiler identifies it.

    Attributes:
        name: name that users write.
        product: product name.
        chip: part number.
        model: `Qnn_SocModel_t` of Qualcomm's SDK (QnnTypes.h).
        arch: architecture of the Hexagon tensor processor, `QnnHtpDevice_Arch_t`
            (QnnHtpDevice.h).
        source: public source of `model` and `arch`.
    """

    name: str
    product: str
    chip: str
    model: int
    arch: int
    source: str

    @property
    def device(self) -> str:
        """The device name for `export --compile-for`."""
        return f"qnn:{self.name}"


_PLUGIN = "soc_utils.cc of onnxruntime-qnn (model)"
_EXECUTORCH = "qc_schema.py of executorch (model and architecture)"

_KNOWN = (
    Soc(
        "x-elite", "Snapdragon X Elite and X Plus", "SC8380XP", 60, 73,
        f"{_PLUGIN}; compiled and emulated here (architecture)",
    ),
    Soc(
        "x2-elite", "Snapdragon X2 Elite", "SC8480XP", 88, 81,
        f"{_PLUGIN}; onnxruntime-qnn issue 858 (architecture)",
    ),
    Soc("8-gen-2", "Snapdragon 8 Gen 2", "SM8550", 43, 73, _EXECUTORCH),
    Soc("8-gen-3", "Snapdragon 8 Gen 3", "SM8650", 57, 75, _EXECUTORCH),
    Soc("8-elite", "Snapdragon 8 Elite", "SM8750", 69, 79, _EXECUTORCH),
    Soc("8-elite-gen-5", "Snapdragon 8 Elite Gen 5", "SM8850", 87, 81, _EXECUTORCH),
)  # fmt: skip

SOCS = {soc.name: soc for soc in _KNOWN}
"""All known systems on a chip, by name."""

EMULATED = SOCS["x-elite"]
"""The system on a chip whose NPU `qnn:emulated` emulates."""


def soc_of(device: str) -> Soc:
    """Returns the system on a chip for a device name `qnn:NAME`.

    Raises:
        InputError: if it is not known.
    """
    kind, _, name = device.partition(":")
    if kind != "qnn" or name not in SOCS:
        known = ", ".join(soc.device for soc in _KNOWN)
        raise InputError(f"{device!r} is not a device to compile for: use one of {known}")
    return SOCS[name]
