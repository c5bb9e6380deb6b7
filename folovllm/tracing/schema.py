"""What the lines of a trace mean: a header, then one record a step. JSON Lines, UTF-8, one object a line.

    {"type":"header","version":3, ...}
    {"type":"step","step":1,"t":1520,"times":[210,4130,0,38,160],"arrived":[...],"prefill":[[0,0,57]],...}
    {"type":"step","step":2,"t":6100,"times":[60,3900,0,30,110],"decode":[0],"tokens":[1184],"free":507,...}
    {"type":"end","t":99120, ...}                             only where the trace was closed

Sequences, requests and blocks are numbers. A sequence gets its number where a record first names it (`seqs`), a request
where it arrives. A record says what changed, so records are read in order (replay.py does). A field that is left out is
empty, with one exception: without `decode`, the same sequences decode as in the record before.

Times are whole microseconds since the trace began.

vLLM: none
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args

from folovllm.utils.checks import describe

VERSION = 3
READABLE = (1, 2, 3)
"""Earlier ones lack fields that have a default here."""

UNTOLD = -1
"""In the place of a token id, where Header.texts is false."""

Preemption = Literal["recompute", "swap"]
Reason = Literal["stop", "length", "abort", "ignored", "error"]

# The parts of a step, in the order of `times`.
PARTS = ("schedule", "launch", "wait", "update", "output")


class TraceFormatError(ValueError):
    """A line of a trace does not say what it must; the text names line and field."""


@dataclass(slots=True)
class Header:
    """The first line: what made the trace, and the limits that its numbers have to be read against."""

    version: int
    made_by: str
    started: float
    """Unix time of t = 0, in seconds."""
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


@dataclass(slots=True)
class Arrival:
    """A request that was added since the record before."""

    request: int
    id: str
    t: int
    prompt_tokens: int
    prompt: str | None
    """The beginning of its text; None where it came as token ids, or Header.texts is false."""
    max_tokens: int | None
    num_seqs: int
    """How many sequences it asks for: n, best_of, or the width of a beam search."""
    priority: int
    prompt_ids: list[int] = field(default_factory=list)
    """The first of its token ids, where it came as such."""
    context: list[int] = field(default_factory=list)
    """The last of its token ids: the text of the first token drawn can depend on them."""


@dataclass(slots=True)
class StepRecord:
    """One step: what was decided, what came of it, what it took."""

    step: int
    """Its number, from 1."""
    t: int
    """When scheduling began."""
    times: list[int]
    """Microseconds of PARTS, one behind the other. wait: from the launch to the tokens; where the engine runs ahead,
    the next step is scheduled and launched meanwhile."""
    arrived: list[Arrival] = field(default_factory=list)
    seqs: list[tuple[int, int, str]] = field(default_factory=list)
    """(sequence, its request, its id) of those that this record names for the first time."""
    left: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, reason) of those that ended before this step was scheduled: aborted, as a rule."""
    preempted: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, "recompute" or "swap"): lost its blocks on the device in this step."""
    resumed: list[int] = field(default_factory=list)
    """Swapped sequences that came back."""
    branched: list[tuple[int, int]] = field(default_factory=list)
    """(parent, child): a beam that the search forked since the step before; it shares all that its parent had."""
    found: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, tokens) of those that were let in with tokens already computed: by a cache, or by a sibling."""
    prefill: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, from which token on, how many): a prompt or a chunk of one, or what is computed once more."""
    decode: list[int] | None = None
    """Sequences that compute their newest token alone, or with draft tokens. None: those of the record before."""
    forks: list[tuple[int, int]] = field(default_factory=list)
    """(parent, child): the child has all that the parent computes in this step, and draws from its logits."""
    tables: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """(sequence, place, blocks): from that place on, its block table is these blocks, and nothing behind them.
    Tables of several groups of layers come one after the other."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): blocks copied before the step computes (copy-on-write)."""
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    """(device block, swap block)."""
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    """(swap block, device block)."""
    kept: list[int] = field(default_factory=list)
    """Blocks that can be found by their content, since the step before this was scheduled."""
    evicted: list[int] = field(default_factory=list)
    """Blocks that cannot be found any more, for they were handed out."""
    forgotten: bool = False
    """The prefix cache was reset before this step: of what came before it, nothing can be found."""
    restarted: bool = False
    """A failed step came before: no sequence has blocks, none can be found, all requests wait."""
    free: int = 0
    """Free blocks, findable ones included, once this step was scheduled."""
    findable: int = 0
    """Blocks that can be found by their content, in use or free."""
    waiting: int = 0
    """Requests that wait, once this step was scheduled."""
    swapped: int = 0
    """Requests that are swapped."""
    tokens: list[int | None] = field(default_factory=list)
    """Token ids drawn, one for each sequence of `decode`; null where none was (a beam search chooses later). UNTOLD
    where Header.texts is false."""
    first: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, token id) drawn by sequences of `prefill` and by children of `forks`."""
    drafted: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, draft tokens) of those of `decode` that verified draft tokens, too."""
    later: list[tuple[int, int]] = field(default_factory=list)
    """(sequence, token id) drawn behind its token in `tokens`, in order: one for each draft token that was accepted."""
    ended: list[tuple[int, str]] = field(default_factory=list)
    """(sequence, reason) of those that ended by this step. "ignored": it ended and is not returned."""
    failed: bool = False
    """The step raised; it brought nothing."""


@dataclass(slots=True)
class End:
    """The last line of a trace that was closed."""

    t: int
    ended: list[tuple[int, str]] = field(default_factory=list)


Record = Header | StepRecord | End
TYPES: dict[str, type[Header] | type[StepRecord] | type[End]] = {"header": Header, "step": StepRecord, "end": End}

# What a value may be, by the annotation as it is written above.
_CHECKS = {
    "int": lambda v: _int(v),
    "float": lambda v: type(v) in (int, float),
    "str": lambda v: type(v) is str,
    "bool": lambda v: type(v) is bool,
    "int | None": lambda v: v is None or type(v) is int,
    "str | None": lambda v: v is None or type(v) is str,
    "list[int]": lambda v: _all(v, _int),
    "list[int] | None": lambda v: v is None or _all(v, lambda e: type(e) is int),
    "list[int | None]": lambda v: _all(v, lambda e: e is None or type(e) is int),
    "list[tuple[int, int]]": lambda v: _all(v, lambda e: _shape(e, int, int)),
    "list[tuple[int, str]]": lambda v: _all(v, lambda e: _shape(e, int, str)),
    "list[tuple[int, int, int]]": lambda v: _all(v, lambda e: _shape(e, int, int, int)),
    "list[tuple[int, int, str]]": lambda v: _all(v, lambda e: _shape(e, int, int, str)),
    "list[tuple[int, int, list[int]]]": lambda v: _all(v, lambda e: _shape(e, int, int, list)),
    "list[Arrival]": lambda v: type(v) is list,
}


def _int(value: Any) -> bool:
    """One that JavaScript and a float can hold, too."""
    return type(value) is int and -(2**53) < value < 2**53


def _all(value: Any, is_good: Any) -> bool:
    return type(value) is list and all(map(is_good, value))


def _shape(value: Any, *types: type) -> bool:
    return type(value) is list and len(value) == len(types) and all(map(lambda e, t: type(e) is t, value, types))


def parse_record(data: Any, where: str) -> Record:
    """A line's object as a record, every field looked at.

    Raises:
        TraceFormatError: begins with `where`, and names the field and its value.
    """
    name = data.get("type") if isinstance(data, dict) else None
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise TraceFormatError(f'{where}: must be an object with a "type" of {", ".join(TYPES)}')
    if kind is Header and data.get("version") not in READABLE:
        known = " or ".join(map(str, READABLE))
        raise TraceFormatError(
            f"{where}: version must be {known}, got {describe(data.get('version'))}; read it with the release that "
            "wrote it"
        )
    record = _fill(kind, {name: value for name, value in data.items() if name != "type"}, where)
    if isinstance(record, StepRecord):
        if len(record.times) != len(PARTS):
            raise TraceFormatError(f"{where}: times must have {len(PARTS)} numbers, got {record.times}")
        record.arrived = [_fill(Arrival, arrival, f"{where}: arrived") for arrival in record.arrived]
        _check_words(where, "preempted", record.preempted, get_args(Preemption))
        _check_words(where, "left", record.left, get_args(Reason))
    if isinstance(record, StepRecord | End):
        _check_words(where, "ended", record.ended, get_args(Reason))
    return record  # type: ignore[no-any-return]


def _fill(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise TraceFormatError(f"{where}: must be an object, got {describe(data)}")
    known = {f.name: f for f in fields(kind)}
    if unknown := sorted(data.keys() - known.keys()):
        raise TraceFormatError(f"{where}: unknown field {unknown[0]!r}")
    for name, f in known.items():
        if name not in data:
            if f.default is MISSING and f.default_factory is MISSING:
                raise TraceFormatError(f"{where}: {name} is missing")
        elif not _CHECKS[str(f.type)](data[name]):
            raise TraceFormatError(f"{where}: {name} must be {f.type}, got {describe(data[name])}")
    return kind(**data)


def _check_words(where: str, name: str, pairs: list[tuple[int, str]], words: tuple[str, ...]) -> None:
    for _, word in pairs:
        if word not in words:
            raise TraceFormatError(f"{where}: {name} must say one of {', '.join(words)}, got {word!r}")
