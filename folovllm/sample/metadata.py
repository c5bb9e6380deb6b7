"""SamplingMetadata: a batch's sampling parameters as tensors, grouped by the way rows are sampled.

Built when the batch's membership changes, used for every step until it changes again. It is built on the host and goes
to the device in one copy, which waits for nothing. A row's group follows
from its own parameters alone, never from its neighbours': so a seeded row draws the same tokens in any
batch.

    greedy       argmax                                             temperature below 1e-5
    top_k        the k likeliest, then everything among those       top_k, whatever else
    top_p        the 1,024 likeliest and the sum over all           top_p without top_k
    min_p        the 1,024 likeliest                                min_p alone
    full         the whole vocabulary                               temperature alone
    beam         reports the likeliest tokens, draws nothing        use_beam_search

vLLM: v1/sample/metadata.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from folovllm.sample.filters import NARROW_WIDTH, Filters, Path
from folovllm.sample.logits_processors import (
    LogitBias,
    LogitsProcessor,
    TokenMasks,
    registered_logits_processors,
)
from folovllm.sample.penalties import Penalties
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from folovllm.utils.upload import upload

GroupPath = Path | Literal["beam"]

# A CPU group holds at most this many logits (6 rows of 151,936): its temporaries then stay in memory that the
# allocator reuses. Buffers of 39 MB are mapped afresh at every use: 26 ms for a copy that otherwise takes 3.
MAX_GROUP_LOGITS = 1 << 20


@dataclass(slots=True)
class EditedRows:
    """A processor and the rows of its group that it edits; None: all of them."""

    processor: LogitsProcessor
    rows: Tensor | None

    def apply(self, logits: Tensor) -> Tensor:
        if self.rows is None:
            return self._edit(logits)
        logits[self.rows] = self._edit(logits[self.rows])
        return logits

    def _edit(self, logits: Tensor) -> Tensor:
        """The processor's result for its rows, in float32. A forgotten `return`, or whole numbers, are found here, so
        that they end the requests of this processor only; later they would end the whole batch."""
        edited: object = self.processor.apply(logits)
        got: object
        if not isinstance(edited, Tensor):
            must, got = "return a tensor", type(edited).__name__
        elif edited.shape != logits.shape:
            must, got = f"return logits of the shape that it was given, {list(logits.shape)}", list(edited.shape)
        elif edited.device != logits.device:
            must, got = f"return logits on the device of those that it was given, {logits.device}", edited.device
        elif not edited.is_floating_point():
            must, got = "return logits of a floating-point dtype", edited.dtype
        else:
            return edited.float()
        raise ValueError(f"logits processor {type(self.processor).__name__} must {must}, got {got}")


@dataclass(slots=True)
class RowGroup:
    """Rows that take the same path."""

    path: GroupPath
    width: int  # how many of the likeliest tokens the path looks at
    rows: Tensor  # [b] their places in the batch
    start: int | None  # set when they are consecutive: then a slice, which copies nothing, selects them
    filters: Filters  # of no row where the path draws nothing
    generators: list[torch.Generator | None]
    edits: list[EditedRows]
    raw_rows: Tensor | None  # rows OF THE GROUP that report logprobs of the model's own logits
    processed_rows: Tensor | None  # rows of the group that report logprobs of what was drawn from
    num_logprobs: int  # the most that any of its rows asked for: of equal tokens, others' wishes must not choose
    is_custom: bool  # code of a request's own edits its logits


@dataclass(slots=True)
class SamplingMetadata:
    """What the Sampler needs besides the logits."""

    groups: list[RowGroup]
    num_rows: int
    num_logprobs: int | None  # the most that any row asked for; None: no row asked
    is_plain_greedy: bool
    """Every row wants the argmax of its logits as they are, and nothing else."""

    @classmethod
    def build(cls, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> SamplingMetadata:
        """Sorts the batch's rows into groups. Row i goes with row i of the logits. Of a plain greedy batch nothing is
        needed on the device, and nothing is sent there."""
        members: dict[tuple[GroupPath, int, bool], list[int]] = {}
        for place, row in enumerate(rows):
            path, width = _path(row.params, vocab_size)
            members.setdefault((path, width, is_edited(row)), []).append(place)
        groups: list[RowGroup] = []
        for (path, width, edited), places in members.items():
            size = len(places)
            if device.type == "cpu" and (path != "greedy" or edited):
                size = max(1, MAX_GROUP_LOGITS // vocab_size)
            for first in range(0, len(places), size):
                part = places[first : first + size]
                members_of_part = [rows[place] for place in part]
                groups.append(_make_group(path, width, part, members_of_part, vocab_size))
        asked = [row.num_reported for row in rows if row.num_reported is not None]
        edited = any(group.path != "greedy" or group.edits for group in groups)
        made = cls(groups, len(rows), max(asked) if asked else None, not edited and not asked)
        if device.type != "cpu" and not made.is_plain_greedy:
            made.send(device)
        return made

    def send(self, device: torch.device) -> None:
        """All tensors to the device, in one copy."""
        places = [place for group in self.groups for place in _tensor_places(group)]
        sent = upload(device, *(getattr(owner, name).numpy() for owner, name in places))
        for (owner, name), tensor in zip(places, sent, strict=True):
            setattr(owner, name, tensor)


def _tensor_places(group: RowGroup) -> Iterator[tuple[Any, str]]:
    """(object, attribute) of each tensor that belongs to a group."""
    owners: list[RowGroup | Filters | EditedRows] = [group, group.filters, *group.edits]
    for owner in owners:
        for part in fields(owner):
            if isinstance(getattr(owner, part.name), Tensor):
                yield owner, part.name


def _path(params: SamplingParams, vocab_size: int) -> tuple[GroupPath, int]:
    if params.use_beam_search:
        return "beam", vocab_size
    if params.is_greedy:
        return "greedy", 1
    if 0 < params.top_k < vocab_size:
        width = 64  # 64, 256, 1024, ...: few different widths, and a row's depends on its own k alone
        while width < params.top_k:
            width *= 4
        return "top_k", min(width, vocab_size)
    if params.top_p < 1.0:
        return "top_p", min(NARROW_WIDTH, vocab_size)
    if params.min_p > 0.0:
        return "min_p", min(NARROW_WIDTH, vocab_size)
    return "full", vocab_size


def is_edited(row: SamplingRow) -> bool:
    custom = registered_logits_processors().keys() & (row.params.extra_args or {})
    return TokenMasks.wanted(row) or LogitBias.wanted(row) or Penalties.wanted(row) or bool(custom)


def _make_group(path: GroupPath, width: int, places: list[int], rows: list[SamplingRow], vocab_size: int) -> RowGroup:
    def column(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype).unsqueeze(-1)

    params = [row.params for row in rows]
    drawing = [] if path in ("greedy", "beam") else params
    edits = _make_edits(rows)
    reporting = [(i, p) for i, p in enumerate(params) if p.needs_logprobs]
    return RowGroup(
        path=path,
        width=width,
        rows=torch.tensor(places),
        start=places[0] if places[-1] - places[0] == len(places) - 1 else None,
        filters=Filters(
            temperature=column([p.temperature for p in drawing]),
            top_k=column([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in drawing], torch.int64),
            top_p=column([p.top_p if p.top_p < 1.0 else torch.inf for p in drawing]),
            min_p=column([p.min_p for p in drawing]),
        ),
        generators=[row.generator for row in rows],
        edits=edits,
        raw_rows=_index([i for i, p in reporting if p.logprobs_mode == "raw"]),
        processed_rows=_index([i for i, p in reporting if p.logprobs_mode == "processed"]),
        num_logprobs=max((row.num_reported or 0 for row in rows), default=0),
        is_custom=any(type(edit.processor) not in (TokenMasks, LogitBias, Penalties) for edit in edits),
    )


def _make_edits(rows: list[SamplingRow]) -> list[EditedRows]:
    """Processors in the order in which they act: masks, biases, custom ones, penalties."""
    edits: list[EditedRows] = []

    def add(processor: type[LogitsProcessor], members: list[int]) -> None:
        if members:
            made = processor()
            made.update([rows[i] for i in members])
            edits.append(EditedRows(made, None if len(members) == len(rows) else _index(members)))

    add(TokenMasks, [i for i, row in enumerate(rows) if TokenMasks.wanted(row)])
    add(LogitBias, [i for i, row in enumerate(rows) if LogitBias.wanted(row)])
    for name, custom in registered_logits_processors().items():
        add(custom, [i for i, row in enumerate(rows) if name in (row.params.extra_args or {})])
    add(Penalties, [i for i, row in enumerate(rows) if Penalties.wanted(row)])
    return edits


def _index(values: list[int]) -> Tensor | None:
    return torch.tensor(values) if values else None
