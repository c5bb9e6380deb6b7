"""How long a frame of the trace page takes, with 10,000 steps of 256 sequences: python -m tests.browser.frames

A frame is one whole drawing of all canvases, after a move of the slider, a zoom or a scroll, in headless Chromium
without a GPU.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from folovllm.tracing.page import make_page
from folovllm.tracing.reader import read_trace
from tests.browser.chromium import Chromium
from tests.tracing.support import Simulated

STEPS, SEQS = 10_000, 256

MEASURE = """(() => {
  const times = [];
  const measure = (act) => {
    act();
    const start = performance.now();
    app.draw();
    times.push(performance.now() - start);
  };
  ACTS
  times.sort((a, b) => a - b);
  return [times.length, times[times.length >> 1], times[Math.floor(times.length * 0.95)], times[times.length - 1]];
})()"""
ACTS = {
    "slider, one step on": "for (let i = 0; i < 200; i++) measure(() => app.select(5000 + i));",
    "slider, anywhere": "for (let i = 0; i < 100; i++) measure(() => app.select((i * 7919) % 10000));",
    "zoom in and out": "app.select(5000);for (let i = 0; i < 100; i++) measure(() => app.zoom(i % 20 < 10 ? 0.5 : 2));",
    "scroll, all of it": "app.show(0, 10000); const box = app.panels[0].parts[0].box;"
    "for (let i = 0; i < 100; i++) measure(() => { box.scrollTop = i * 700; });",
    "drag, 100 steps wide": "for (let i = 0; i < 100; i++) measure(() => app.show(4000 + 7 * i, 4100 + 7 * i));",
    "axis of time": "app.setAxis(true); for (let i = 0; i < 100; i++) measure(() => app.select(i * 97));",
}


def make_trace(path: Path, num_steps: int = STEPS, num_seqs: int = SEQS) -> None:
    """As many sequences as can run, new ones as others end, until there are so many steps."""
    draw = random.Random(0)
    load = Simulated(path, num_blocks=num_seqs * 24, max_num_seqs=num_seqs, budget=2 * num_seqs)
    names = iter(range(10**9))
    for _ in range(num_steps):
        while len(load.scheduler.running) + len(load.scheduler.waiting) < num_seqs + 4:
            prompt = [draw.randrange(50)] * 32 + [draw.randrange(1000) for _ in range(draw.randrange(10, 300))]
            load.add(f"r{next(names)}", prompt, draw.randrange(20, 600))
        load.step()
    load.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "run.gz", Path(folder) / "run.html"
        make_trace(trace)
        page.write_text(make_page([read_trace(trace)]), encoding="utf-8")
        print(f"trace {trace.stat().st_size / 1e6:.1f} MB, page {page.stat().st_size / 1e6:.1f} MB")
        with Chromium() as browser:
            browser.open(page)
            browser.frames()
            lanes = browser.run("app.panels[0].trace.lanes.length")
            print(f"{browser.run('app.panels[0].trace.count'):,} steps, {lanes:,} lanes; ms of a frame:")
            for name, acts in ACTS.items():
                count, median, high, most = browser.run(MEASURE.replace("ACTS", acts))
                print(f"  {name:24} median {median:5.1f}   95% {high:5.1f}   longest {most:5.1f}   ({count} frames)")
            for problem in browser.console:
                print("console:", problem)


if __name__ == "__main__":
    main()
