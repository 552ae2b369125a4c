"""What a target makes of texts: rows for a head to learn from, and texts of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from edgespec.errors import DeviceError
from edgespec.training.options import CPU
from edgespec.training.shards import TrainingWindow
from edgespec.training.target_model import TorchTarget
from edgespec.training.text_pass import TextPass
from edgespec.training.texts import Enough

TOP = 64
"""Number of likeliest tokens that are kept for each row."""

_LOGIT_BYTES = {CPU: 1 << 28}  # of logits that are in memory at once
_LOGIT_BYTES_ELSEWHERE = 1 << 31
_CHECKED = 8  # tokens after which it is asked which texts have ended
_FULL = 0.75  # share of texts that still go on, below which the others are dropped
_LARGEST = float(np.finfo(np.float16).max)


class TargetReader:
    """Reads texts with a target.

    Args:
        target: the target.
    """

    def __init__(self, target: TorchTarget) -> None:
        self._target = target
        # Logits beyond are padding.
        self._vocabulary = target.tokenizer.vocab_size
        self._top = min(TOP, self._vocabulary)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> list[TrainingWindow]:
        """Reads texts side by side, each from its beginning.

        Raises:
            DeviceError: if a logit or feature is NaN or infinite.
        """
        device = self._target.device.device
        tokens = _side_by_side(texts, device)
        count, length = tokens.shape
        places = torch.arange(length, device=device).expand(count, -1)
        hidden, features = self._target.forward(tokens, TextPass(places))
        lengths = torch.tensor([len(text) for text in texts], device=device)
        real = (places < lengths[:, None]).flatten().nonzero()[:, 0]
        ids, logits = self._likeliest(hidden, real)
        features = features[real]
        if not bool((features.isfinite().all() & logits.isfinite().all()).cpu()):
            raise DeviceError(
                "the target computed NaN or infinity: use another device or a higher precision"
            )
        arrays = (
            features.clamp(-_LARGEST, _LARGEST).half(),
            ids.int(),
            (logits - logits[:, :1]).clamp(-_LARGEST, 0).half(),
        )
        ends = np.cumsum([len(text) for text in texts])[:-1]
        parts = [np.split(each.cpu().numpy(), ends) for each in arrays]
        return [
            TrainingWindow(np.array(text, np.int32), *each)
            for text, *each in zip(texts, *parts, strict=True)
        ]

    def _likeliest(self, hidden: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the likeliest tokens of rows and their logits, [R, K] each."""
        limit = _LOGIT_BYTES.get(hidden.device.type, _LOGIT_BYTES_ELSEWHERE)
        ids = []
        logits = []
        step = max(1, limit // (4 * self._target.role.vocab_size))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found = self._target.logits(hidden, part)[:, : self._vocabulary].topk(self._top, -1)
            ids.append(found.indices)
            logits.append(found.values)
        return torch.cat(ids), torch.cat(logits)


class TargetWriter:
    """Writes texts with a target.

    Args:
        target: the target.
        length: most tokens of a text, its prompt included.
    """

    def __init__(self, target: TorchTarget, length: int) -> None:
        self._target = target
        self._vocabulary = target.tokenizer.vocab_size
        self._length = length
        ends = target.role.eos_ids
        self._ends = torch.tensor(ends, dtype=torch.int64, device=target.device.device)

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        seed: int,
        enough: Enough,
    ) -> list[list[int]]:
        """Goes on with prompts side by side, up to tokens that end a text, and with these.

        Args:
            prompts: beginnings, each shorter than a text.
            temperatures: of each; 0: the likeliest token.
            seed: seed of what is drawn.
            enough: asked now and then whether all are to end where they are.
        """
        device = self._target.device.device
        tokens = _side_by_side(prompts, device)
        count, longest = tokens.shape
        texts = functional.pad(tokens, (0, self._length - longest))
        lengths = torch.tensor([len(each) for each in prompts], device=device)
        heat = torch.tensor(temperatures, dtype=torch.float32, device=device)
        random = torch.Generator(device).manual_seed(seed)
        cache = self._target.begin(self._length)
        places = torch.arange(longest, device=device).expand(count, -1)
        hidden, _ = self._target.forward(tokens, TextPass(places, cache, lengths.clone()))
        rows = torch.arange(count, device=device) * longest + lengths - 1
        going = torch.arange(count, device=device)  # numbers of the texts that go on
        ended = torch.zeros(count, dtype=torch.bool, device=device)
        for step in range(1, self._length):
            new = self._drawn(self._target.logits(hidden, rows), heat[going], random)
            new = torch.where(ended, texts[going, lengths[going] - 1], new)
            lengths[going] += (~ended).long()
            texts[going, lengths[going] - 1] = new
            ended = ended | torch.isin(new, self._ends) | (lengths[going] >= self._length)
            if step % _CHECKED == 0:
                left = (~ended).nonzero()[:, 0]
                if not len(left) or enough():
                    break
                if len(left) < _FULL * len(going):
                    going, ended, cache = going[left], ended[left], cache.of(left)
            tokens = texts[going, lengths[going] - 1]
            places = lengths[going] - 1
            hidden, _ = self._target.forward(tokens[:, None], TextPass(places[:, None], cache))
            rows = torch.arange(len(going), device=device)
        return [text[:end] for text, end in zip(texts.tolist(), lengths.tolist(), strict=True)]

    def _drawn(self, logits: Tensor, heat: Tensor, random: torch.Generator) -> Tensor:
        """Draws a token of each row: the arg-max of its logits with Gumbel noise by its heat."""
        logits = logits[:, : self._vocabulary]
        hot = heat.nonzero()[:, 0]
        if len(hot):
            waited = torch.empty_like(logits[hot]).exponential_(generator=random)
            logits[hot] -= heat[hot, None] * waited.log()
        return logits.argmax(-1)


def _side_by_side(texts: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Returns texts as rows, filled up with 0 behind their ends."""
    return pad_sequence([torch.tensor(list(each)) for each in texts], batch_first=True).to(device)
