"""The file of a trace: gzip, in it JSON Lines: a header, one Step a step, an end.

    {"type":"header","version":4, ...}
    {"type":"step","step":1,"t":1764300000000210,"times":[210,4130,0,38,160],"seq_ids":["a-0"],...}
    {"type":"end","t":1764300000099120, ...}                  only where the trace was closed

A field that is empty or 0 is left out. A reader refuses what these classes do not have.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from folovllm.core.step_record import StepRecord
from folovllm.request import Request, SequenceStatus

VERSION = 4

PARTS = ("schedule", "launch", "wait", "update", "output")
SWAPPED = SequenceStatus.SWAPPED

UNTOLD = -1
"""In the place of a token id, where Header.texts is false."""


@dataclass(slots=True)
class Header:
    """The first line: what made the trace, and the limits that its numbers have to be read against."""

    version: int
    made_by: str
    clock: str
    """"real", or "simulated": the times are a cost model's."""
    model: str
    device: str
    dtype: str
    num_blocks: int
    """Blocks 1 .. num_blocks; block 0 is padding."""
    block_size: int
    num_swap_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    chunked_prefill: bool
    policy: str
    preemption_mode: str
    tokenizer: str | None = None
    """Where to find the tokenizer that decodes token ids; None: where the model is."""
    texts: bool = True
    """False: no prompts, and of a token only that it was drawn."""


PROMPT_CHARACTERS, PROMPT_IDS = 2000, 500  # that an arrival has at most
CONTEXT_TOKENS = 5  # as many of the prompt as the detokenizer reads before a token


@dataclass(slots=True)
class Arrival:
    """A request that was added: when (t, as Step.t), and how many sequences it asks for (num_seqs)."""

    id: str
    t: int
    prompt_tokens: int
    max_tokens: int | None
    num_seqs: int
    priority: int = 0
    prompt: str | None = None
    """The beginning of its text; where it came as token ids, prompt_ids has the first of them."""
    prompt_ids: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    """The last of its token ids: the text of the first token drawn can depend on them."""

    @classmethod
    def of(cls, request: Request) -> Arrival:
        prompt, ids, params = request.prompt, request.prompt_token_ids, request.sampling_params
        t, text = int(request.arrival_time * 1e6), None if prompt is None else prompt[:PROMPT_CHARACTERS]
        return cls(
            request.request_id, t, len(ids), params.max_tokens, params.best_of, request.priority, text,
            list(ids[:PROMPT_IDS]) if prompt is None else [], list(ids[-CONTEXT_TOKENS:]),
        )  # fmt: skip


@dataclass(slots=True)
class Step:
    """Sequences go by their ids, blocks by their numbers. Row i of the lists from seq_ids to num_prompt_tokens, and of
    token_ids, is one sequence that takes part; children of `forks` are the last, and compute no token."""

    step: int = 0
    """Its number, from 1; in the order in which steps end."""
    t: int = 0
    """When scheduling began, in microseconds since 1970 (of the engine's clock, where that is another)."""
    times: list[int] = field(default_factory=list)
    """Microseconds of PARTS, one behind the other. wait: from the launch to the tokens; where the engine runs ahead,
    the next step is scheduled and launched meanwhile."""
    seq_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values were there before the step."""
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: list[int] = field(default_factory=list)
    token_ids: list[int | None] = field(default_factory=list)
    """Drawn by each row; None where none was (a beam search chooses later)."""
    drafted: dict[str, int] = field(default_factory=dict)
    """How many draft tokens a sequence verified beside num_scheduled_tokens."""
    later: dict[str, list[int]] = field(default_factory=dict)
    """Tokens drawn behind the first, one for each draft token that was accepted."""
    tables: dict[str, list[int]] = field(default_factory=dict)
    """Block tables that are new or changed; those of several groups of layers come one after the other."""
    arrived: list[Arrival] = field(default_factory=list)
    """Since the record before; so are all that follow but for what ended."""
    admitted: list[tuple[str, int]] = field(default_factory=list)
    """(sequence, tokens that a cache or a sibling had computed of it) of those that waited and were let in."""
    preempted: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, "recompute" or "swap"): lost its blocks on the device."""
    resumed: list[str] = field(default_factory=list)
    """Swapped sequences that came back."""
    branched: list[tuple[str, str]] = field(default_factory=list)
    """(parent, child): a beam that the search forked; it shares all that its parent had."""
    forks: list[tuple[str, str]] = field(default_factory=list)
    """(parent, child): the child draws its first token from its parent's logits."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): blocks copied before the step computes (copy-on-write)."""
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    """Blocks that can be found by their content from here on."""
    removed: list[int] = field(default_factory=list)
    """Blocks that cannot be found any more, for they were handed out."""
    cleared: bool = False
    """The prefix cache was reset: nothing that was stored before can be found."""
    finished: list[str] = field(default_factory=list)
    """Had ended before the step. Those that neither this record nor one before has in `ended` were aborted."""
    ended: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, reason) of those that ended by this step, or before it by a stop string in their text, which is found
    when a step is over; "ignored": it is not returned."""
    failed: bool = False
    """The step raised and brought nothing. No sequence has blocks, none can be found, all requests wait."""
    free: int = 0
    """Blocks, findable ones included, once the step was scheduled; findable: how many can be found, free or not."""
    findable: int = 0
    waiting: int = 0
    """Requests that wait, once the step was scheduled; running, swapped: likewise."""
    running: int = 0
    swapped: int = 0

    @classmethod
    def of(cls, number: int, record: StepRecord) -> Step:
        """The plain record of a step that is over."""
        output, at = record.output, [int(seconds * 1e6 + 0.5) for seconds in record.times]
        at += at[-1:] * (1 + len(PARTS) - len(at))  # parts that it did not reach took no time
        rows, copies = output.rows, (output.blocks_to_copy, output.blocks_to_swap_out, output.blocks_to_swap_in)
        step = cls(
            number, at[0], [b - a for a, b in pairwise(at)], [seq.seq_id for seq in rows], record.num_computed_tokens,
            output.num_scheduled_tokens + [0] * len(output.forks), [seq.data.num_prompt_tokens for seq in rows],
            list(record.token_ids or ()), free=record.num_free, findable=record.num_cached, waiting=record.num_waiting,
            running=record.num_running, swapped=record.num_swapped, finished=output.finished_seq_ids,
            failed=record.token_ids is None, tables={seq.seq_id: table for seq, table in record.tables.items()},
        )  # fmt: skip
        step.copies, step.swapped_out, step.swapped_in = copies
        step._add_events(record)
        for row, seq in enumerate(output.scheduled_seqs if record.drafts else ()):
            draft = record.drafts.get(seq.seq_id)
            if draft is not None and draft.draft_token_ids:
                step.drafted[seq.seq_id] = len(draft.draft_token_ids)
                length = step.num_computed_tokens[row] + step.num_scheduled_tokens[row]
                step.later[seq.seq_id] = seq.get_token_ids()[length + 1 :]
        return step

    def _add_events(self, record: StepRecord) -> None:
        self.arrived = [Arrival.of(request) for request in record.arrived]
        self.admitted = [(seq.seq_id, found) for seq, found in record.admitted]
        self.preempted = [(seq.seq_id, "swap" if how is SWAPPED else "recompute") for seq, how in record.preempted]
        self.resumed = [seq.seq_id for seq in record.resumed]
        self.branched = [(parent.seq_id, child.seq_id) for parent, child in record.branched]
        self.forks = [(parent.seq_id, child.seq_id) for parent, child in record.output.forks]
        self.ended = ended_of(record)
        for event, block_id in record.block_events:
            if event == "cleared":
                self.cleared = True
            else:
                (self.stored if event == "stored" else self.removed).append(block_id)


def ended_of(record: StepRecord) -> list[tuple[str, str]]:
    return [(seq.seq_id, SequenceStatus.finish_reason(how) or "ignored") for seq, how in record.ended]


@dataclass(slots=True)
class End:
    """The last line of a trace that was closed. finished, ended: since the last step, as there."""

    t: int
    finished: list[str] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
