"""The trace page in headless Chromium: it steps, tells, switches, and runs nothing that a trace says.

python -m pytest -m browser tests/browser
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from folovllm.tracing.page import make_page
from folovllm.tracing.reader import read_trace
from tests.browser.chromium import Chromium, find_chromium
from tests.tracing.support import Simulated

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: apt-get install chromium"),
]

HOSTILE = "</script><img src=x onerror=alert(1)><svg onload=alert(2)>\u2028{{DATA}}'\"&lt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as page:
        yield page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`one`: three requests and a fork that copies a block; `two`: it and a shorter run."""
    folder = tmp_path_factory.mktemp("pages")
    load = Simulated(folder / "long.gz", num_blocks=30)
    load.add("a", [1] * 20, 8, n=2)
    load.add(HOSTILE, [1] * 100, 3)
    load.step()
    load.add("c", [1] * 20, 4)
    load.run()
    short = Simulated(folder / "short.gz", num_blocks=30)
    short.add("a", [1] * 20, 3)
    short.run()
    traces = {name: read_trace(folder / f"{name}.gz") for name in ("long", "short")}
    for name, shown in (("one", [traces["long"]]), ("two", [traces["long"], traces["short"]])):
        (folder / f"{name}.html").write_text(make_page(shown), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ("one", "two")}


def words(browser: Chromium) -> list[str]:
    return list(browser.run("Array.from(document.querySelectorAll('.words li'), item => item.textContent)"))


def text(browser: Chromium, selector: str) -> str:
    return str(browser.run(f"document.querySelector({selector!r}).textContent"))


def place(browser: Chromium, selector: str) -> tuple[float, float]:
    box = browser.run(
        f"(() => {{ const element = document.querySelector({selector!r}); element.scrollIntoView({{block: 'center'}});"
        "const box = element.getBoundingClientRect(); return [box.left, box.top]; })()"
    )
    return float(box[0]), float(box[1])


def test_nothing_is_fetched_and_nothing_goes_wrong(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.console.clear()
    browser.requests.clear()
    browser.open(pages["one"], "lang=en")
    browser.press("ArrowRight")
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith(("file:", "about:"))] == []


def test_keys_and_slider_step_through_the_run(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    assert text(browser, "#where") == "step 1 of 8 · 0.0 ms"
    assert "sequence 0 computes its prompt: 20 tokens" in words(browser)
    assert "sequence 2 forks from sequence 0: it shares its blocks and draws from the same logits" in words(browser)
    browser.press("ArrowRight")
    assert text(browser, "#where") == "step 2 of 8 · 10.0 ms"
    assert "sequence 0 writes into a shared block: block 2 is copied to 3" in words(browser)
    browser.press("End")
    assert text(browser, "#where").startswith("step 8 of 8")
    assert text(browser, "#slider") == ""
    assert browser.run("document.getElementById('slider').value") == "8"
    browser.run("slider.value = 4; slider.dispatchEvent(new Event('input'))")
    browser.frames()
    assert text(browser, "#where").startswith("step 4 of 8")


def test_a_request_that_comes_later_finds_what_the_first_computed(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en&step=2")
    assert "sequence 3 comes with a prompt of 20 tokens" in words(browser)
    assert "sequence 3 finds 16 tokens computed already" in words(browser)


def test_hovering_a_lane_tells_tokens_and_blocks(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en&step=1")
    left, top = place(browser, ".timeline")
    browser.move(left + 96 + 10, top + 20 + 9)
    assert text(browser, "#tip").split("\n")[:4] == [
        "sequence 0 (a-0)", "step 1", "prefill: tokens 0 to 19", "2 blocks: 1, 2"
    ]  # fmt: skip


def test_clicking_a_lane_goes_there_and_marks_its_request(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    left, top = place(browser, ".timeline")
    width = browser.run("document.querySelector('.timeline').getBoundingClientRect().width")
    browser.click(left + 96 + (width - 96) * 2.5 / 8, top + 20 + 9)
    assert text(browser, "#where").startswith("step 3 of 8")
    assert text(browser, ".chosen").startswith("a: first token after 10.0 ms")


def test_hovering_a_block_names_who_shares_it(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en&step=3")
    left, top = place(browser, ".blocks")
    browser.move(left + 8, top + 8)
    told = text(browser, "#tip").split("\n")
    assert told[0] == "block 1"
    assert {"sequence 0, place 0", "sequence 2, place 0", "sequence 3, place 0"} <= set(told)


def test_the_language_switches_and_back(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    browser.run("document.getElementById('language').click()")
    browser.frames()
    assert text(browser, "h1") == "FoloVLLM 的一次运行，逐步看"
    assert any("计算整个提示词：20 个 token" in line for line in words(browser))
    assert browser.run("document.documentElement.lang") == "zh-CN"
    browser.run("document.getElementById('language').click()")
    browser.frames()
    assert text(browser, "h1") == "A run of FoloVLLM, step by step"


def test_both_languages_have_the_same_words(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    shape = "(w => Object.keys(w).sort().map(k => [k, typeof w[k], typeof w[k] === 'object' ? Object.keys(w[k]) : 0]))"
    assert browser.run(f"{shape}(WORDS.en)") == browser.run(f"{shape}(WORDS.zh)")


def test_the_theme_follows_the_system_until_it_is_chosen(browser: Chromium, pages: dict[str, Path]) -> None:
    try:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.call("Emulation.setEmulatedMedia", features=dark)
        browser.open(pages["one"], "lang=en")
        assert browser.run("document.documentElement.dataset.theme") == "dark"
        browser.run("document.getElementById('theme').click()")
        assert browser.run("document.documentElement.dataset.theme") == "light"
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


def test_what_a_trace_says_is_shown_and_not_run(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.console.clear()
    browser.open(pages["one"], "lang=en&step=1&lane=1")
    assert HOSTILE in text(browser, ".chosen")
    left, top = place(browser, ".timeline")
    rows = browser.run("app.panels[0].parts[0].rows()")
    browser.move(left + 96 + 10, top + 20 + 18 * rows.index(1) + 9)
    assert HOSTILE in text(browser, "#tip")
    assert browser.run("document.querySelectorAll('img, svg, script:not([type])').length") == 1  # the page's own script
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.ran=1>')")
    browser.frames(4)
    assert browser.run("window.ran") is None  # were there markup, the policy would not let it run
    assert not [line for line in browser.console if line.startswith("dialog")]


def test_the_state_at_a_step_is_the_same_from_either_side(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    state = (
        "JSON.stringify([...app.panels[0].trace.stateAt(STEP).tables].sort(), [...app.panels[0].trace.stateAt(STEP)"
        ".findable].sort())"
    )
    forward = [browser.run(state.replace("STEP", str(step))) for step in range(8)]
    back = [browser.run(state.replace("STEP", str(step))) for step in reversed(range(8))]
    assert forward == back[::-1]


def test_free_blocks_that_can_be_found_are_counted_as_the_map_shows_them(
    browser: Chromium, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"], "lang=en")
    counted = browser.run(
        "(t => t.steps.t.map((_, step) => { const state = t.stateAt(step);"
        "const used = new Set([...state.tables.values()].flat());"
        "return [t.idleFindable(step), [...state.findable].filter(block => !used.has(block)).length,"
        "t.header.num_blocks - used.size, t.steps.free[step]]; }))(app.panels[0].trace)"
    )
    assert all(idle == shown and free == told for idle, shown, free, told in counted)
    assert any(idle for idle, *_ in counted)


def test_two_traces_move_together_by_step_and_by_time(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["two"], "lang=en&step=2")
    assert text(browser, "#where") == "A 2 · B 2"
    browser.press("End")
    assert text(browser, "#where") == "A 8 · B –"
    assert browser.run("document.querySelectorAll('.headline')[1].textContent") == "This trace has ended."
    browser.press("Home")
    browser.run("document.getElementById('axis').click()")
    browser.frames()
    browser.press("ArrowRight")
    assert text(browser, "#where") == "A 2 · B 2 · 10.0 ms"


@pytest.mark.parametrize("fragment", ["lang=en", "lang=zh&theme=dark&axis=time"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Chromium, pages: dict[str, Path], fragment: str) -> None:
    try:
        browser.resize(390, 844)
        browser.open(pages["two"], fragment)
        assert browser.run("document.documentElement.scrollWidth") == 390
    finally:
        browser.resize(1440, 900)


# What is written on the canvases of a panel, as [left, top, right, bottom] by part, and the lines drawn there.
WRITTEN = """(() => {
  const write = CanvasRenderingContext2D.prototype.fillText, draw = line;
  const found = app.panels[0].parts.slice(0, 4).map((part) => {
    const texts = [], lines = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most = Infinity) {
      const width = Math.min(most, this.measureText(text).width), left = x - (this.textAlign === "center") * width / 2;
      texts.push([left, y - 6, left + width, y + 6]);
    };
    line = (pen, colour, ...ends) => lines.push(ends);
    part.drawn = null;
    part.draw();
    return [part.constructor.name, part.canvas.clientWidth, texts, lines];
  });
  CanvasRenderingContext2D.prototype.fillText = write;
  line = draw;
  return found;
})()"""


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("fragment", ["lang=en&step=2", "lang=zh&step=2&axis=time"])
def test_on_a_phone_every_label_can_be_read(browser: Chromium, pages: dict[str, Path], fragment: str) -> None:
    """None is cut off, written over another one or crossed by a line, and each chart says its greatest value."""
    try:
        browser.resize(390, 844)
        browser.open(pages["one"], fragment)
        written = {name: (width, texts, lines) for name, width, texts, lines in browser.run(WRITTEN)}
    finally:
        browser.resize(1440, 900)
    for name, (width, texts, lines) in written.items():
        assert all(text[0] >= 0 and text[2] <= width for text in texts), name
        assert not [pair for pair in itertools.combinations(texts, 2) if overlap(*pair)], name
        if name != "Timeline":  # whose lines end lanes
            assert not [text for text in texts for line in lines if overlap(text, line)], name
    assert len(written["Charts"][1]) == 3
    assert len(written["Latencies"][1]) == 2 + 3  # a name under each request
    assert len([text for text in written["Timeline"][1] if text[1] < 10]) >= 3  # on the ruler


def test_zooming_shows_a_part_and_keeps_the_step_in_it(browser: Chromium, tmp_path: Path) -> None:
    load = Simulated(tmp_path / "long.gz")
    load.add("a", [1], 400)
    load.run()
    page = tmp_path / "long.html"
    page.write_text(make_page([read_trace(tmp_path / "long.gz")]), encoding="utf-8")
    browser.open(page, "lang=en&step=201")
    browser.press("+")
    browser.press("+")
    low, high = browser.run("app.range")
    assert (high - low, low <= 200 < high) == (100, True)
    browser.press("End")
    assert browser.run("app.range")[1] == 400
    browser.press("0")
    assert browser.run("app.range") == [0, 400]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_colour_means_one_thing(browser: Chromium, pages: dict[str, Path], theme: str) -> None:
    browser.open(pages["one"], f"lang=en&theme={theme}")
    kinds = browser.run("[...KINDS, 'found', 'used', 'shared', 'copy', 'free', ...PARTS]")
    legend = browser.run("Array.from(document.querySelectorAll('#legend li'), (item) => item.textContent)")
    colours = [browser.run(f"COLOURS[{kind!r}]") for kind in kinds]
    assert len(set(colours)) == len(kinds) == len(set(legend))
    strips = browser.run("app.panels[0].parts[1].strips.map((strip) => strip.parts.map(([, colour]) => colour))")
    assert strips == [["prefill", "decode"], ["used", "found"], ["schedule", "launch", "wait", "update", "output"]]


def test_numbers_that_stand_together_are_rounded_alike(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en&axis=time")
    assert browser.run("[0, 60, 8123, 123456].map((us) => milliseconds(us, 123456))") == [
        "0 ms",
        "0 ms",
        "8 ms",
        "123 ms",
    ]
    assert browser.run("[60, 8123].map((us) => milliseconds(us, 8123))") == ["0.06 ms", "8.12 ms"]
    assert browser.run("[20e3, 100e3, 240e3].map((us) => tickOf(us, 20e3))") == ["20 ms", "100 ms", "240 ms"]
    assert browser.run("[500e3, 1e6].map((us) => tickOf(us, 500e3))") == ["500 ms", "1000 ms"]
    assert browser.run("[100, 1500].map((us) => tickOf(us, 100))") == ["0.1 ms", "1.5 ms"]


def test_three_requests_have_all_of_the_chart(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], "lang=en")
    room, column = browser.run(
        "(() => { const it = app.panels[0].parts[3]; return [it.width(), it.columnWidth()]; })()"
    )
    assert 3 * column > 0.9 * room
