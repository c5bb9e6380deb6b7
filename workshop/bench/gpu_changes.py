"""What each change of the GPU's engine should bring: the step that an H200 measured, then the step after each change.

    measured kernels ─ calibrated ─▶ a step of any batch ─ change ─ change ─ … ─▶ a step that nobody has measured

A kernel's time at another batch or context than the measured one is what gpu_kernels.py says, corrected by what that
was off by: a kernel that took longer than was said has that time more, one that took less is faster by that factor.
Between two measured batches the correction is interpolated. What a step takes beside its kernels is shared out to its
launches by the step of one sequence, so the other batches say how wrong all of this is.

vLLM: none
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from folovllm.attention.splits import SMS
from folovllm.bench.report import Line, Report
from folovllm.worker.prompt_shape import FEW_DECODES
from workshop.bench.gpu_kernels import (
    COPY_SHARE,
    DRAW_REST,
    DRAW_SHARE,
    DRAW_THREADS,
    GPUS,
    ISSUE_SHARE,
    ISSUES,
    ITEM,
    LAUNCH,
    NAMES,
    OTHERS,
    PRODUCT_KERNELS,
    PRODUCT_LAUNCH,
    SHAPE,
    attention_seconds,
    kernel_seconds,
    products_of,
    shard_of,
)
from workshop.bench.workload_steps import DATA, host_us, workload_seconds

Us = dict[str, float]
"""Microseconds, or launches, of a whole step by the kernel's name."""
BATCHES = (1, 8, 64, 256)
H200 = GPUS["h200"]
L2 = 5.5e12  # bytes/s of an H200's L2 cache, all multiprocessors together
FEW_ROWS, FEWEST_ROWS = 64, 8  # the most of our own product; the least of any, with padding
# Assumptions about what nobody has measured.
MERGED = TURNED = 1.0  # us a layer that merging by the last program, or turning q and k, adds to decode
SHARE_OF_8_BITS = 0.9  # of the rate at which bytes of 16-bit numbers are read
WARP = 10e9  # bytes/s that one warp reads
SORT, SORTED_AT_ONCE = 20e-6, 132  # seconds for a row's bound and its list; rows
HOST, PROMPT_ATTENTION = 450.0, 9.5  # us: of the host for a request's first step; of a layer's attention in a graph
WINDOW, WITH_WINDOWS = 512, 3 / 4  # tokens; of the layers, those that have one


@dataclass(frozen=True)
class Step:
    """One decode step of Qwen3-0.6B. `gap`: what each launch takes beside its kernel."""

    contexts: Sequence[int]
    us: Us
    launches: Us
    gap: float

    @property
    def total(self) -> float:
        return sum(self.us.values()) + self.gap * sum(self.launches.values())

    def having(self, **kernels: tuple[float, float]) -> Step:
        """With these (microseconds, launches) of the kernels whose names begin so."""
        us, launches = dict(self.us), dict(self.launches)
        for start, (micros, count) in kernels.items():
            name = next(name for name in us if name.startswith(start))
            us[name], launches[name] = micros, count
        return replace(self, us=us, launches=launches)


Change = Callable[[Step], Step]


def read_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def between(rows: int, known: Sequence[tuple[int, Sequence[float]]]) -> list[float]:
    """Figures at so many rows, of those that are known at some numbers of rows, by the logarithm of the rows."""
    rows = min(max(rows, known[0][0]), known[-1][0])
    upper = next(place for place, (at, _) in enumerate(known) if at >= rows)
    (low, a), (high, b) = known[max(0, upper - 1)], known[upper]
    part = math.log(rows / low) / math.log(high / low) if high > low else 0.0
    return [x + part * (y - x) for x, y in zip(a, b, strict=True)]


@cache
def corrections() -> dict[str, list[tuple[int, Sequence[float]]]]:
    """Of each kernel, for each measured batch: what it took beyond the prediction, in us; the factor where it took
    less; its launches."""
    rows = read_rows("profile-h200")
    found: dict[str, dict[int, Sequence[float]]] = {
        name: {row["batch"]: (0.0, 1.0, 0.0) for row in rows} for name in [*NAMES, OTHERS]
    }
    for row in rows:
        us, predicted = row["us"], row["predicted_us"]
        found[row["kernel"]][row["batch"]] = max(0.0, us - predicted), min(1.0, us / predicted), row["launches"]
    return {name: sorted(known.items()) for name, known in found.items()}


def calibrated(contexts: Sequence[int], gap: float | None = None) -> Step:
    """A step of these sequences as the measured engine has it."""
    return _calibrated(tuple(contexts), gap)


@cache  # each row of the table begins with the same steps
def _calibrated(contexts: tuple[int, ...], gap: float | None) -> Step:
    us, launches = Us(), Us()
    for name, seconds in kernel_seconds(H200, SHAPE, contexts).items():
        more, factor, count = between(len(contexts), corrections()[name])
        us[name] = 1e6 * seconds * factor + more if seconds else 0.0
        launches[name] = count if seconds else 0.0
    return Step(contexts, us, launches, gap_of_launches() if gap is None else gap)


@cache
def gap_of_launches() -> float:
    step = calibrated(measured_contexts(1), gap=0.0)
    return (measured_us(1) - step.total) / sum(step.launches.values())


def measured_us(batch: int) -> float:
    return next(1e3 * row["step_ms"] for row in read_rows("decode-h200") if row["batch"] == batch)


def measured_contexts(batch: int) -> list[int]:
    """Tokens of each sequence in the middle of the measured steps."""
    (cached,) = (row["kv_gb"] for row in read_rows("decode-h200") if row["batch"] == batch)
    shape = shard_of(SHAPE, 1)
    return [round(1e9 * cached / (2 * shape.layers * shape.kv_heads * shape.head_dim * ITEM) / batch)] * batch


def head_us(rows: int) -> float:
    known = [(row["rows"], [row["us"]]) for row in read_rows("products-h200") if row["product"] == "head"]
    return between(rows, known)[0]


# --- the changes: each takes the step that the ones before it have left


def pad_rows(step: Step) -> Step:
    """The layers' products are those of eight rows."""
    rows = len(step.contexts)
    if rows >= FEWEST_ROWS:
        return step
    padded = calibrated([step.contexts[0]] * FEWEST_ROWS)
    layers = padded.us[PRODUCT_KERNELS] - head_us(FEWEST_ROWS)
    return step.having(products=(layers + head_us(rows), padded.launches[PRODUCT_KERNELS]))


def own_product(step: Step) -> Step:
    """A weight's way from memory, or the way of x from the L2 cache to each program. Norms and SwiGLU are a part."""
    rows, layers = len(step.contexts), shard_of(SHAPE, 1).layers
    if rows > FEW_ROWS:
        return step
    *sizes, _ = products_of(SHAPE).values()
    seconds = 0.0
    for n, k in sizes:
        programs = n // (16 if n < 3072 else (32 if n < 6144 else 64) * (2 if rows > 16 else 1))
        read = ITEM * n * k / (COPY_SHARE * H200.bandwidth)
        spread = ITEM * k * (n + programs * max(rows, FEWEST_ROWS)) / L2
        seconds += max(read, spread) + PRODUCT_LAUNCH
    last = step.us["norms"] / step.launches["norms"]
    return step.having(
        products=(1e6 * layers * seconds + head_us(rows), 4.0 * layers + 1), norms=(last, 1.0), SwiGLU=(0.0, 0.0)
    )


def merge_in_decode(step: Step) -> Step:
    """The last program of a sequence adds its splits up."""
    if not step.launches["merge of splits"]:
        return step
    layers = shard_of(SHAPE, 1).layers
    return step.having(decode=(step.us["decode"] + layers * MERGED, float(layers)), merge=(0.0, 0.0))


def turn_in_decode(step: Step) -> Step:
    """q and k turn in decode, which stores K and V, too."""
    layers = shard_of(SHAPE, 1).layers
    return step.having(decode=(step.us["decode"] + layers * TURNED, float(layers)), rotation=(0.0, 0.0))


def draw_by_many(step: Step) -> Step:
    """Eight programs sum a row's stripes, one races them."""
    rows, vocab = len(step.contexts), shard_of(SHAPE, 1).vocab
    read = max(rows * vocab * ITEM / (DRAW_SHARE * H200.bandwidth), vocab * ITEM / 8 / WARP)
    races = math.ceil(rows / SMS) * DRAW_THREADS * DRAW_REST / (ISSUE_SHARE * ISSUES)
    return step.having(draw=(1e6 * (read + races + LAUNCH + PRODUCT_LAUNCH), 2.0))


def cache_in_8_bits(step: Step) -> Step:
    """Half the bytes, which are converted while others come. q and k turn in front of decode, as they did."""
    shape, before = shard_of(SHAPE, 1), calibrated(step.contexts)
    whole, half = (
        attention_seconds(H200, step.contexts, shape.kv_heads, 2 * shape.head_dim * size) for size in (ITEM, 1)
    )
    decode = (step.us["decode"] - shape.layers * TURNED) * half / whole / SHARE_OF_8_BITS
    turned = before.us["rotation"], before.launches["rotation"]
    return step.having(decode=(decode, step.launches["decode"]), rotation=turned)


def draw_of_one(step: Step) -> float:
    """Of one program, which passes over its row."""
    return calibrated(step.contexts).us["draw"]


def filter_in_passes(step: Step) -> Step:
    """top-p as it was measured, by one program a row."""
    rows = read_rows("sampling-h200")
    found = {(row["setting"], row["rows"]): row["us"] for row in rows}
    known = [(at, [us - found["temperature", at]]) for (name, at), us in found.items() if name == "top_p"]
    return step.having(draw=(draw_of_one(step) + between(len(step.contexts), known)[0], 2.0))


def filter_by_many(step: Step) -> Step:
    """The second launch reads all logits, too, and sorts a list of the likeliest. Few of them stay, so no row is read
    once more; the races cost what they do without filters, which have all stripes in them."""
    rows, vocab = len(step.contexts), shard_of(SHAPE, 1).vocab
    programs = 16 if rows <= 16 else 4
    read = max(rows * vocab * ITEM / H200.bandwidth, vocab * ITEM / programs / WARP)
    sorting = math.ceil(rows / SORTED_AT_ONCE) * SORT
    return step.having(draw=(step.us["draw"] + 1e6 * (read + sorting), 2.0))


def windows(step: Step) -> Step:
    """Three of four layers have windows and read no other keys. A step makes as many copies: slots and tables of all
    groups of layers are in two."""
    shape, short = shard_of(SHAPE, 1), [min(context, WINDOW) for context in step.contexts]
    token_bytes, turned = 2 * shape.head_dim * ITEM, shape.layers * TURNED
    whole, within = (attention_seconds(H200, each, shape.kv_heads, token_bytes) for each in (step.contexts, short))
    share = 1 - WITH_WINDOWS + WITH_WINDOWS * within / whole
    return step.having(decode=((step.us["decode"] - turned) * share + turned, step.launches["decode"]))


def windows_without_graphs(step: Step) -> Step:
    """The host launches kernel after kernel, as long as it was measured to, whatever the batch."""
    (row,) = read_rows("preset-without-graphs-h200")
    launched = max(1e6 * row["seconds"] / row["steps"], windows(step).total)
    return replace(step, us={"host": launched}, launches={})


BF16: dict[str, Change] = {
    "rows padded to 8": pad_rows,
    "own product up to 64 rows": own_product,
    "decode merges its splits": merge_in_decode,
    "decode turns q and k": turn_in_decode,
    "a row's draw by many programs": draw_by_many,
}
# Each on top of all of those.
SETTINGS: dict[str, Change] = {
    "KV cache in 8 bits": cache_in_8_bits,
    "top-p, by one program a row": filter_in_passes,
    "top-k and top-p, by many programs": filter_by_many,
    "windows of 512 without graphs": windows_without_graphs,
    "windows of 512": windows,
}


def apply(made: Iterable[Change], step: Step) -> Step:
    for change in made:
        step = change(step)
    return step


def first_token_us(prompt: int) -> float:
    """Of one prompt alone, in a graph: the kernels of a step with so many rows, and the host."""
    step = calibrated([prompt] * prompt)
    return step.total - step.us["decode"] + PROMPT_ATTENTION * shard_of(SHAPE, 1).layers + HOST


def run(args: argparse.Namespace) -> Report:
    """A row for each change: steps of four batches, and the workload."""
    steps = [calibrated(measured_contexts(batch)) for batch in BATCHES]
    (seconds,) = (row["seconds"] for row in read_rows("preset-nano-vllm-h200"))
    names = list(BF16)
    rows: dict[str, list[Change]] = {"the model, calibrated": []}
    rows |= {name: [BF16[each] for each in names[: place + 1]] for place, name in enumerate(names)}
    rows |= {name: [*BF16.values(), change] for name, change in SETTINGS.items()}
    found: list[list[Any]] = [["measured before these changes", *map(measured_us, BATCHES), seconds]]
    for name, made in rows.items():
        last = workload_seconds(lambda contexts, made=made: apply(made, calibrated(contexts)).total)  # type: ignore[misc]
        found.append([name, *(apply(made, step).total for step in steps), last])
    pairs = zip(found[0][1:], found[1][1:], strict=True)
    *errors, of_workload = (f"{after / before - 1:+.1%}" for before, after in pairs)
    found.insert(1, ["the host beside it", *map(host_us, BATCHES), workload_seconds(lambda contexts: 0.0)])
    columns = ["change", *(f"us_{batch}" for batch in BATCHES), "workload_s"]
    lines: list[Line] = [(dict(zip(columns, each, strict=True)), {}) for each in found]
    notes = [
        "A prediction: only the first row was measured. Microseconds of a decode step of 1, 8, 64 and 256 sequences of "
        "some 1,100 tokens. Each row has the changes of those above it, and the last "
        f"{len(SETTINGS)} have one of their own each. They are the device's; a step takes as long as it or the host, "
        "whichever is longer, and the workload is the sum of such steps.",
        f"The model is off by {', '.join(errors[1:])} for 8, 64 and 256 sequences (one sequence fixes what a launch "
        f"takes), and by {of_workload} for the workload.",
    ]
    shape, longest = shard_of(SHAPE, 1), [32_768]
    beside = [
        1e3 * shape.layers * attention_seconds(H200, longest, shape.kv_heads, 2 * shape.head_dim * ITEM, room)
        for room in (256, FEW_DECODES)
    ]
    notes.append(
        f"Attention of one decode of {longest[0]:,} tokens beside a prompt: {beside[0]:.1f} ms in a graph with room "
        f"for 256 decodes, {beside[1]:.1f} in one for {FEW_DECODES}."
    )
    return Report.of(args, "What each change should bring on an H200, predicted", columns, lines, notes)
