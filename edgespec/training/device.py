"""Where PyTorch writes, reads and trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from edgespec.errors import InputError
from edgespec.system.machine import available_bytes
from edgespec.training.options import CPU, DEVICES

_SHARE = 0.4  # of the free memory, for what a pass holds


@dataclass(frozen=True)
class TorchDevice:
    """A device of PyTorch, and how much is done on it at once.

    Attributes:
        device: the device.
        half: what products are made in: bfloat16 where the device is fast with it, else float32.
        memory: bytes that are free.
        most_texts: most texts that are written or read side by side; more bring nothing.
        shard_tokens: tokens that are written and read before they are trained on.
        step_tokens: tokens of a step of the optimizer where users give none.
    """

    device: torch.device
    half: torch.dtype
    memory: int
    most_texts: int = 32
    shard_tokens: int = 1 << 13
    step_tokens: int = 1 << 9

    @classmethod
    def of(cls, name: str | None, memory: int = 0) -> Self:
        """Returns a device by its name.

        Args:
            name: one of `DEVICES`; None: the first that is there.
            memory: bytes that may be used; 0: what is free.

        Raises:
            InputError: if PyTorch finds no such device.
        """
        there = [each for each in DEVICES if _is_there(each)]
        if name is not None and name not in there:
            raise InputError(
                f"device is {name!r}, which PyTorch {torch.__version__} doesn't find here: use "
                f"one of {', '.join(there)}, or install a PyTorch for it"
            )
        device = torch.device(name or there[0])
        made = cls(device, _half(device), memory or _free(device))
        if device.type == CPU:
            return made
        return replace(made, most_texts=1 << 10, shard_tokens=1 << 17, step_tokens=1 << 12)

    def texts_at_once(self, bytes_per_text: int) -> int:
        """Returns how many texts are written or read side by side."""
        return max(1, min(self.most_texts, int(_SHARE * self.memory / bytes_per_text)))

    @property
    def autocast(self) -> torch.autocast:
        """Products in half precision, where there is one."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half is torch.bfloat16)


def _is_there(name: str) -> bool:
    if name == CPU:
        return True
    if name == "mps":
        return torch.backends.mps.is_available()
    found: bool = getattr(torch, name).is_available()
    return found


def _half(device: torch.device) -> torch.dtype:
    if device.type != CPU:
        return torch.bfloat16
    able = torch.cpu.get_capabilities()
    fast = able.get("avx512_bf16") or able.get("amx_bf16")
    return torch.bfloat16 if fast else torch.float32


def _free(device: torch.device) -> int:
    if device.type in ("cuda", "xpu"):
        free: int = getattr(torch, device.type).mem_get_info(device)[0]
        return free
    return available_bytes()
