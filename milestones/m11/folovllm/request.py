"""Requests and sequences: what the engine knows about work in flight.

A Request is what a user asked; it owns `best_of` Sequences, each one line of text being generated. A Sequence's status
moves along a table and nowhere else; a Request's status is derived from its sequences', so the two can never disagree.

    WAITING ─▶ RUNNING ─▶ FINISHED_{STOPPED, LENGTH_CAPPED, ABORTED, IGNORED}
       ▲          │ ▲
       └──────────┘ └─▶ SWAPPED

vLLM: v1/request.py (and v0's sequence.py), v1/core/sched/utils.py (check_stop)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from folovllm.errors import IllegalTransition
from folovllm.outputs import FinishReason, Logprob, RequestMetrics
from folovllm.pooling_params import PoolingParams
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_float, check_int, check_str, check_token_ids, wrong


class SequenceStatus(Enum):
    WAITING = auto()  # has no KV cache: not yet admitted, or preempted and to be recomputed
    RUNNING = auto()  # gets tokens scheduled
    SWAPPED = auto()  # its KV cache is in CPU memory
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()  # it ended, and is not returned

    # Members are singletons. Enum's own hash is Python code, and every step asks for it several times a sequence.
    __hash__ = object.__hash__

    @staticmethod
    def is_finished(status: SequenceStatus) -> bool:
        return status in FINISHED

    @staticmethod
    def finish_reason(status: SequenceStatus) -> FinishReason | None:
        """What a CompletionOutput says; None while it runs, and for a sequence that is not returned."""
        return _FINISH_REASON.get(status)


class RequestStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        return status.name.startswith("FINISHED")


_S = SequenceStatus
FINISHED = frozenset({_S.FINISHED_STOPPED, _S.FINISHED_LENGTH_CAPPED, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED})
_FINISH_REASON: dict[SequenceStatus, FinishReason] = {
    _S.FINISHED_STOPPED: "stop",
    _S.FINISHED_LENGTH_CAPPED: "length",
    _S.FINISHED_ABORTED: "abort",
}

# From each status, where a sequence may go.
TRANSITIONS: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED}),
    # Back to WAITING is preemption by recompute, to SWAPPED preemption by swap.
    _S.RUNNING: frozenset({_S.WAITING, _S.SWAPPED}) | FINISHED,
    _S.SWAPPED: frozenset({_S.RUNNING, _S.FINISHED_ABORTED, _S.FINISHED_IGNORED}),
    # The one way out of an end: which of best_of sequences are the best n is known when the last has ended.
    _S.FINISHED_STOPPED: frozenset({_S.FINISHED_IGNORED}),
    _S.FINISHED_LENGTH_CAPPED: frozenset({_S.FINISHED_IGNORED}),
    _S.FINISHED_ABORTED: frozenset(),
    _S.FINISHED_IGNORED: frozenset(),
}


@dataclass(slots=True)
class SequenceData:
    """The tokens of one sequence: a prompt that never changes, and an output that grows."""

    prompt_token_ids: list[int]
    output_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)  # counted once: every token asks how long its sequence is

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.prompt_token_ids)

    def get_len(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    def get_prompt_len(self) -> int:
        return self.num_prompt_tokens

    def get_output_len(self) -> int:
        return len(self.output_token_ids)

    def get_token_ids(self) -> list[int]:
        """Prompt and output in one list, made for the caller."""
        return self.prompt_token_ids + self.output_token_ids

    def get_last_token_id(self) -> int:
        """The newest token: the one a decode step feeds to the model."""
        return self.output_token_ids[-1] if self.output_token_ids else self.prompt_token_ids[-1]

    def add_token_id(self, token_id: int) -> None:
        self.output_token_ids.append(token_id)


@dataclass(slots=True, eq=False)  # eq=False: a sequence is itself, not its contents, so it can be a dict key
class Sequence:
    """One line of text being generated, and what the engine remembers about it."""

    seq_id: str
    request_id: str
    data: SequenceData
    sampling_params: SamplingParams
    status: SequenceStatus = SequenceStatus.WAITING
    block_ids: list[int] = field(default_factory=list)
    further_tables: list[list[int]] = field(default_factory=list)  # block_ids of further groups of layers
    num_computed_tokens: int = 0  # tokens whose keys and values are in the cache
    pooling_params: PoolingParams | None = None  # its request's
    output_logprobs: list[dict[int, Logprob]] = field(default_factory=list)  # left empty: the client has them
    cumulative_logprob: float = 0.0
    stop_reason: int | str | None = None

    @property
    def index(self) -> int:
        """Which of its request's sequences it is: the i of `f"{request_id}-{i}"`."""
        suffix = self.seq_id.rpartition("-")[2]
        if not suffix.isdecimal():
            raise ValueError(f"seq_id must end in '-<number>' to have an index, got {self.seq_id!r}")
        return int(suffix)

    @property
    def tables(self) -> list[list[int]]:
        """Block tables of all groups of layers."""
        return [self.block_ids, *self.further_tables]

    def get_len(self) -> int:
        data = self.data  # not through data.get_len(): asked for several times a token, and the call is half of it
        return data.num_prompt_tokens + len(data.output_token_ids)

    def get_prompt_len(self) -> int:
        return self.data.num_prompt_tokens

    def get_output_len(self) -> int:
        return len(self.data.output_token_ids)

    def get_token_ids(self) -> list[int]:
        return self.data.get_token_ids()

    def get_last_token_id(self) -> int:
        return self.data.get_last_token_id()

    def add_token_id(self, token_id: int) -> None:
        self.data.add_token_id(token_id)

    def is_finished(self) -> bool:
        return SequenceStatus.is_finished(self.status)

    def transition(self, to: SequenceStatus) -> None:
        """Change the status along the table; the engine never sets it in any other way."""
        if to not in TRANSITIONS[self.status]:
            allowed = sorted(status.name for status in TRANSITIONS[self.status])
            raise IllegalTransition(
                f"status of sequence {self.seq_id!r} must not go from {self.status.name} to {to.name}; "
                f"legal from here: {', '.join(allowed) or 'nothing, it is over'}"
            )
        self.status = to

    def fork(self, new_seq_id: str) -> Sequence:
        """A child with the same tokens and state so far, which then continues by itself.

        Tokens and the ids of blocks are copied: what one of the two adds must not appear in the other, and the blocks
        themselves are shared. The logprobs of past positions are never edited: the child has a list of the same.
        """
        return replace(
            self,
            seq_id=new_seq_id,
            data=SequenceData(list(self.data.prompt_token_ids), list(self.data.output_token_ids)),
            block_ids=list(self.block_ids),
            further_tables=[list(table) for table in self.further_tables],
            output_logprobs=list(self.output_logprobs),
        )


def check_stop(seq: Sequence, eos_token_ids: frozenset[int], max_model_len: int) -> SequenceStatus | None:
    """The finished status that the newest token of `seq` brings about, or None if it goes on.

    Stop strings need text: engine/output_processor.py finds them. A stop token counts before the length: a sequence
    whose last allowed token is EOS ends with "stop". Sets seq.stop_reason to the token id when it was one of
    stop_token_ids; for EOS it stays None.
    """
    params, output = seq.sampling_params, seq.data.output_token_ids
    num_output = len(output)
    if num_output >= params.min_tokens:
        token_id = output[-1]
        if not params.ignore_eos and token_id in eos_token_ids:
            return SequenceStatus.FINISHED_STOPPED
        if token_id in (params.stop_token_ids or ()):
            seq.stop_reason = token_id
            return SequenceStatus.FINISHED_STOPPED
    if params.max_tokens is not None and num_output >= params.max_tokens:
        return SequenceStatus.FINISHED_LENGTH_CAPPED
    if seq.data.num_prompt_tokens + num_output >= max_model_len:
        return SequenceStatus.FINISHED_LENGTH_CAPPED
    return None


@dataclass(slots=True, eq=False)
class Request:
    """What a user asked: one prompt, and `best_of` sequences that continue it, each with its own tokens.

    They exist as soon as the request does, a microsecond and some hundred bytes each: a server of requests from
    others bounds best_of first, as an engine does by its max_n.
    """

    request_id: str
    prompt: str | None  # None when the prompt came as token ids
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float = field(default_factory=time.time)
    priority: int = 0  # a lower number is served first under the "priority" policy
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # as output_logprobs
    key: int | str = ""  # by which a client knows it; "": by its request_id
    cache_salt: str | None = None  # requests share cached blocks with those of the same salt only
    num_cached_tokens: int | None = None  # prompt tokens found in a cache; None until it is let in
    pooling_params: PoolingParams | None = None  # of one that ends with its prompt: it gains no token
    sequences: dict[str, Sequence] = field(init=False)  # by sequence id, in the order of their making
    metrics: RequestMetrics = field(init=False)  # as output_logprobs, but for the arrival
    _found: dict[SequenceStatus, Sequence | None] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_str("request_id", self.request_id)
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise wrong("prompt", "be a string or None", self.prompt)
        check_token_ids("prompt_token_ids", self.prompt_token_ids, allow_empty=False)
        if not isinstance(self.sampling_params, SamplingParams):
            raise wrong("sampling_params", "be a SamplingParams", self.sampling_params)
        check_float("arrival_time", self.arrival_time)
        check_int("priority", self.priority)
        if self.cache_salt is not None:
            check_str("cache_salt", self.cache_salt)
        self.prompt_token_ids = list(self.prompt_token_ids)
        if self.key == "":
            self.key = self.request_id
        self.metrics = RequestMetrics(arrival_time=self.arrival_time)
        self.sequences = {}
        self.make_seqs()

    @property
    def status(self) -> RequestStatus:
        """Derived: the liveliest of the sequences' statuses, and once all have ended, how they ended.

        Sequences that are not returned (FINISHED_IGNORED) do not count, unless there are no others.
        """
        statuses = {sequence.status for sequence in self.sequences.values()} - {_S.FINISHED_IGNORED}
        for live in (_S.RUNNING, _S.SWAPPED, _S.WAITING):
            if live in statuses:
                return RequestStatus[live.name]
        if not statuses or _S.FINISHED_ABORTED in statuses:
            return RequestStatus.FINISHED_ABORTED
        capped = _S.FINISHED_LENGTH_CAPPED in statuses
        return RequestStatus.FINISHED_LENGTH_CAPPED if capped else RequestStatus.FINISHED_STOPPED

    def make_seqs(self) -> None:
        """All that are run, which wait. The prompt never changes, so that all of them have the same list of it."""
        for index in range(self.sampling_params.best_of):
            data = SequenceData(self.prompt_token_ids)
            seq = Sequence(f"{self.request_id}-{index}", self.request_id, data, self.sampling_params)
            seq.pooling_params = self.pooling_params
            self.add_seq(seq)

    def add_seq(self, seq: Sequence) -> None:
        """Make `seq` the newest of the sequences, to be found by its id."""
        self.sequences[seq.seq_id] = seq

    def has(self, status: SequenceStatus) -> bool:
        """Whether one of the sequences has this status: the one that had it last time, else the newest that has it.
        As a rule the oldest end first, so that of thousands few are asked."""
        found = self._found.get(status)
        if found is None or found.status is not status or self.sequences.get(found.seq_id) is not found:
            found = next((seq for seq in reversed(self.sequences.values()) if seq.status is status), None)
            self._found[status] = found
        return found is not None

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
        """Its sequences, the oldest first, or those with the given status."""
        seqs = list(self.sequences.values())  # in one go: statistics may be read while a step forks beams
        return seqs if status is None else [seq for seq in seqs if seq.status is status]

    def get_num_seqs(self, status: SequenceStatus | None = None) -> int:
        return len(self.get_seqs(status))

    def is_finished(self) -> bool:
        for sequence in reversed(self.sequences.values()):  # noqa: SIM110  half the time of all() over a generator
            if sequence.status not in FINISHED:
                return False
        return True
