"""`--watch`: what the engine is doing now, drawn in the terminal while a command runs.

    running 8 · waiting 3 · swapped 0 · 412 tokens/s · step 96
    KV cache 45% of 64 blocks   ██████▓▓██░░····
    request-3  … and the little fox ran into the

On a terminal the view has the screen to itself: what the command prints is held back, and comes when the view is gone.
Without one it is a line a second on stderr.

vLLM: none
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from folovllm.core.group_tables import get_block_ids
from folovllm.core.step_record import StepRecord
from folovllm.engine.stats import EngineStats
from folovllm.request import SequenceStatus

LIVE_SECONDS, LINE_SECONDS = 0.1, 1.0
CELL_ROWS, TEXT_ROWS, TEXT_TOKENS = 4, 6, 200
# Okabe and Ito's colours, which colour-blind people can tell apart; shapes tell the kinds without any.
OWNERS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
OWNED, SHARED, FINDABLE, FREE = "█", "▓", "░", "·"
LEGEND = f"{OWNED} of one sequence  {SHARED} shared  {FINDABLE} free, can be found  {FREE} free"


class Watcher:
    """Looks at engines within a block: `with Watcher() as watcher: watcher.look_at(engine)`"""

    def __init__(self) -> None:
        self._shown_at = float("-inf")
        self._tokens: dict[str, list[int]] = {}  # the last ones of sequences, the newest sequence last
        self._top = 1  # no block beyond it was ever used
        self._live: Live | None = None
        self._held: list[tuple[IO[str], str]] = []
        self._streams: tuple[Any, Any] | None = None
        self._last: str | None = None

    def __enter__(self) -> Watcher:
        if sys.stderr.isatty():
            self._streams = sys.stdout, sys.stderr
            console = Console(file=sys.stderr)
            sys.stdout, sys.stderr = _Held(sys.stdout, self._held), _Held(sys.stderr, self._held)  # type: ignore[assignment]
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            for stream, text in self._held:
                stream.write(text)
                stream.flush()
        elif self._last is not None:
            print(self._last, file=sys.stderr)

    def look_at(self, engine: Any) -> Callable[[], None]:
        """From here on, after each step, until what this returns is called."""
        return engine.core.listen(lambda record: self.stepped(engine, record))  # type: ignore[no-any-return]

    def stepped(self, engine: Any, record: StepRecord) -> None:
        now = time.monotonic()
        line = self._live is None
        if now - self._shown_at < (LINE_SECONDS if line else LIVE_SECONDS):
            if line:
                self._last = summary_line(engine.stats()) if record.ended else None
            return
        self._shown_at, self._last = now, None
        if self._live is None:
            print(summary_line(engine.stats()), file=sys.stderr, flush=True)
        else:
            for seq in record.output.scheduled_seqs[-TEXT_ROWS:]:
                name = seq.request_id if seq.sampling_params.best_of == 1 else seq.seq_id
                self._tokens.pop(name, None)
                self._tokens[name] = seq.data.output_token_ids[-TEXT_TOKENS:]
            while len(self._tokens) > TEXT_ROWS:
                del self._tokens[next(iter(self._tokens))]
            self._live.update(self.view(engine, self._live.console.width - 4), refresh=True)

    def view(self, engine: Any, width: int) -> RenderableType:
        """All of it, for a terminal so wide."""
        stats = engine.stats()
        decode = (lambda ids: f"{len(ids)} tokens") if engine.tokenizer is None else engine.tokenizer.decode
        texts = [_text_row(name, decode(ids), width) for name, ids in self._tokens.items()]
        cells = self.cells(engine.scheduler, width)
        lines = [Text(summary_line(stats), style="bold"), *cells, Text(LEGEND, style="dim")]
        return Panel(Group(*lines, *texts), title=f"step {stats.steps:,}", title_align="left")

    def cells(self, scheduler: Any, width: int) -> list[Text]:
        """The blocks that are or were in use, one character each, or one for several where there are too many."""
        owner: dict[int, int] = {}
        shared: set[int] = set()
        running = [seq for request in scheduler.running for seq in request.get_seqs(SequenceStatus.RUNNING)]
        for number, seq in enumerate(running):
            for block in get_block_ids(seq):
                if block in owner:
                    shared.add(block)
                owner[block] = number
        pool, self._top = scheduler.kv.pool, max([self._top, *owner])
        per_cell = -(-self._top // (width * CELL_ROWS))
        rows = [Text()]
        for first in range(1, self._top + 1, per_cell):
            blocks = range(first, min(first + per_cell, self._top + 1))
            if len(rows[-1]) >= width:
                rows.append(Text())
            rows[-1].append(*_cell(blocks, owner, shared, pool))
        return rows


def _cell(blocks: range, owner: dict[int, int], shared: set[int], pool: Any) -> tuple[str, str]:
    """(character, style) of the block that says most about them."""
    for block in blocks:
        if block in shared:
            return SHARED, "bold"
    for block in blocks:
        if block in owner:
            return OWNED, OWNERS[owner[block] % len(OWNERS)]
    if any(map(pool.is_cached, blocks)):
        return FINDABLE, "#009e73"
    return FREE, "dim"


def _text_row(name: str, text: str, width: int) -> Text:
    """The end of a text, in one line; what a model writes is no markup, and no control character."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    row = Text(f"{name}  ", style="cyan", no_wrap=True, overflow="crop")
    room = max(8, width - row.cell_len - 2)
    tail = Text(plain[-room:], style="default")
    while tail.cell_len > room:
        tail = Text(tail.plain[1:], style="default")
    return row.append("…" if len(tail.plain) < len(plain) else "", style="dim").append_text(tail)


def summary_line(stats: EngineStats) -> str:
    used = stats.kv_blocks_used
    text = f"running {stats.running} · waiting {stats.waiting} · swapped {stats.swapped}"
    text += f" · {stats.tokens_per_s:,.0f} tokens/s"
    text += f" · KV {used / stats.kv_blocks_total:.0%}, {used:,} of {stats.kv_blocks_total:,} blocks"
    if stats.kv_blocks_shared:
        text += f", {stats.kv_blocks_shared:,} shared"
    if stats.prefix_cache_queries:
        text += f" · found {stats.prefix_hit_rate:.0%}"
    if stats.spec_decode is not None:
        text += f" · {stats.spec_decode.acceptance_length:.2f} tokens a draft"
    return text + (f" · preempted {stats.preemptions}" if stats.preemptions else "")


class _Held:
    """A stream that keeps what is written, in order with the other one's."""

    def __init__(self, stream: IO[str], held: list[tuple[IO[str], str]]) -> None:
        self._stream, self._list = stream, held

    def write(self, text: str) -> int:
        self._list.append((self._stream, text))
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
