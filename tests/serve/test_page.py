"""The page at /, in headless Chromium: it talks, stops, copies, remembers, and shows the engine."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.routing import RoundRobin
from tests.serve.browser import PROGRAM, Browser
from tests.serve.fleet import LocalFleet, facts_of
from tests.serve.support import Running, first_tokens_only, running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here")]

LAST = "[...document.querySelectorAll('.message')].at(-1)"
ANSWER = f"{LAST}.querySelector('.body').textContent"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture
def page(tab: Browser, server: Running) -> Browser:
    tab.look(1280, 800)
    tab.open(server.url)
    tab.run("localStorage.clear()")
    tab.open(f"{server.url}/?again")
    tab.problems.clear()
    return tab


def ask(page: Browser, text: str) -> None:
    page.run("$('question').focus()")
    page.type(text)
    page.press_enter()


def test_it_talks_with_the_model(page: Browser, server: Running) -> None:
    ask(page, "What is prefix caching?")
    wait_for(lambda: page.run(f"!!{LAST}?.querySelector('.copy')"))
    text = page.run(ANSWER)
    assert "KV" in text
    assert re.fullmatch(
        r"Copy\d+ tokensfirst after [\d,]+ ms[\d,]+ tokens/s.*", page.run(f"{LAST}.querySelector('footer').textContent")
    )
    assert page.run("$('model').textContent") == "embedded"
    page.run("Object.defineProperty(navigator, 'clipboard', {value: {writeText: (t) => { window.copied = t; }}})")
    page.run(f"{LAST}.querySelector('.copy').click()")
    assert page.run("window.copied") == text
    ask(page, "说说分页 KV 缓存")
    wait_for(lambda: page.run("document.querySelectorAll('.copy').length") == 2)
    page.keep("light")
    page.run("$('clear').click()")
    assert page.run("document.querySelectorAll('.message').length") == 0
    assert page.problems == []


def test_it_stops_and_the_engine_with_it(page: Browser, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth step takes until the stop has been clicked; the answer has no sixth."""
    runner, steps = server.llm.engine.runner, itertools.count(1)
    begun, clicked = threading.Event(), threading.Event()
    real = runner.execute_model

    def slowly(scheduled: Any) -> Any:
        if next(steps) >= 5:
            begun.set()
            clicked.wait()
        return real(scheduled)

    monkeypatch.setattr(runner, "execute_model", slowly)
    try:
        ask(page, "What is prefix caching?")
        wait_for(lambda: page.run(f"({LAST}?.querySelector('.body').textContent.length || 0) > 0"))
        wait_for(begun.is_set)  # the page may show the first step's text before the fifth has begun
        page.run("$('stop').click()")
        wait_for(lambda: page.run("$('stop').hidden"))
        wait_for(lambda: server.app.state.serving.gate.num_inside == 0)
        server.client().models.list()  # by its answer the event loop has handed the abort to the step thread
    finally:
        clicked.set()
    wait_for(server.is_idle)
    assert page.run(f"{LAST}.querySelector('footer').textContent").endswith("stopped")
    assert next(steps) == 6


def test_settings_are_sent_and_kept(page: Browser) -> None:
    page.run("$('settings-toggle').click()")
    page.run("[$('max_tokens').value = 3, $('max_tokens').dispatchEvent(new Event('change'))]")
    page.run("[$('key').value = 'secret', $('key').dispatchEvent(new Event('change'))]")
    page.keep("settings")
    ask(page, "What is prefix caching?")
    wait_for(lambda: page.run(f"!!{LAST}?.querySelector('.copy')"))
    assert page.run(f"{LAST}.querySelector('footer').textContent").startswith("Copy3 tokens")
    kept = page.run("JSON.stringify(localStorage)")
    assert '"3"' in kept
    assert "secret" not in kept


def test_a_refusal_is_shown(page: Browser) -> None:
    page.run("$('temperature').value = -1")
    ask(page, "hello")
    wait_for(lambda: page.run(f"{LAST}?.classList.contains('error')"))
    assert page.run(ANSWER).startswith("temperature must be non-negative")


def test_it_speaks_both_languages(page: Browser, server: Running) -> None:
    english = page.run("document.body.innerText")
    page.run("$('language').click()")
    assert page.run("document.documentElement.lang") == "zh"
    assert page.run("$('send').textContent") == "发送"
    chinese = page.run("document.body.innerText")
    assert not {word for word in ("Send", "Settings", "Running", "free") if word in chinese}
    assert "Send" in english
    page.open(f"{server.url}/?third")
    assert page.run("$('send').textContent") == "发送"


def test_the_engine_is_seen_live(page: Browser, server: Running) -> None:
    wait_for(lambda: page.run("$('v-running').textContent") == "0")
    stream = server.client().completions.create(
        model="embedded", prompt="a", n=20, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    wait_for(lambda: page.run("$('v-running').textContent") == "1")
    wait_for(lambda: page.run("Number($('v-speed').textContent.replace(/\\D/g, ''))") > 0)
    wait_for(lambda: "u" in page.run("newest.block_map"))
    page.run("$('language').click()")
    page.look(1280, 800, dark=True)
    page.run("draw()")
    page.keep("dark")
    stream.close()
    wait_for(lambda: page.run("$('v-running').textContent") == "0")
    assert page.run("$('v-blocks').textContent") == "0 / 4,096"


def test_an_answer_between_two_looks_is_counted(page: Browser) -> None:
    """It takes a fraction of the half second between two of them."""
    wait_for(lambda: page.run("$('v-running').textContent") == "0")
    page.run("[window.most = 0, window.ran = 0]")
    page.run(
        "window.seen = setInterval(() => { most = Math.max(most, newest.speed); ran = Math.max(ran, newest.running); })"
    )
    ask(page, "What is prefix caching?")
    wait_for(lambda: page.run("!$('walk').hidden && most > 0 && ran === 1"))
    page.run("clearInterval(window.seen)")
    first, last = (
        int(each.replace(",", "")) for each in re.findall(r"[\d,]+", page.run("$('v-range').textContent"))[:2]
    )
    assert 1 <= first < last <= 4096


def test_the_last_answers_steps_are_walked_through(page: Browser) -> None:
    ask(page, "What is prefix caching?")
    wait_for(lambda: page.run("walk.isDone && ownSteps().length > 20 && ownSteps().length === walk.answers[0].tokens"))
    text, last = page.run(ANSWER), page.run("ownSteps().length")
    assert page.run("$('walk-said').textContent").startswith(f"Step {last} of {last} · 1 in the batch")
    page.run("goTo(0)")
    assert page.run("$('walk-rows').textContent").startswith("prefill: ")
    first = page.run(ANSWER)
    for step in range(1, last):
        page.run("$('walk-forward').click()")
        assert page.run("$('walk-rows').textContent") == f"decode: token {step + 1}"
        assert page.run(f"{LAST}.querySelector('.body').textContent").startswith(first)
    assert page.run(ANSWER) == text
    assert len(first) < len(text)
    page.run("$('walk-back').click()")
    assert page.run("$('walk-said').textContent").startswith(f"Step {last - 1} of {last}")


def test_eight_at_once_are_one_batch(page: Browser, server: Running) -> None:
    with first_tokens_only(server.llm.engine):
        page.run("$('eight').click()")
        wait_for(lambda: page.run("$('v-running').textContent") == "8")
        page.keep("eight")
    wait_for(lambda: page.run("document.querySelectorAll('.grid .copy').length") == 8)
    wait_for(lambda: page.run("ownSteps().length") > 20)
    page.run("goTo(10)")
    assert page.run("$('walk-said').textContent").endswith("8 in the batch")
    assert (
        page.run("[...document.querySelectorAll('#walk-rows b')].map((each) => each.textContent).join('')")
        == "12345678"
    )
    assert page.problems == []


def test_slow_motion_shows_a_step_after_the_other(page: Browser) -> None:
    page.run("$('slow').click()")
    page.run("setInterval(() => { if (walk.at === 2) stopWalk(); })")  # however late this test looks
    ask(page, "What is prefix caching?")
    wait_for(lambda: page.run(f"!!{LAST}?.querySelector('.copy') && walk.at === 2"))
    whole, shown = page.run("[walk.answers[0].text, walk.answers[0].shown]")
    assert whole.startswith(shown)
    assert len(shown) < len(whole)
    page.run("endSlow()")
    assert page.run(ANSWER) == whole


def test_markdown_is_shown_and_no_html_of_a_text_is_run(page: Browser) -> None:
    written = """# Head
Some **bold** and *slanted* and `co<b>de`.

- one
  - inner
- two

1. first

| a | b |
|---|---|
| 1 | 2 |

> said

```html
<script>window.ran = 1</script>
```
<img src=x onerror="window.ran = 1"><script>window.ran = 1</script>
[good](https://example.org/a) [bad](javascript:window.ran=1) [worse](data:text/html,x) **<i>x</i>**"""
    page.run(f"document.body.append(window.box = element('div', markdown({json.dumps(written)})))")
    count = {
        name: page.run(f"box.querySelectorAll('{name}').length") for name in ("h3", "strong", "em", "ul", "ol", "td")
    }
    assert count == {"h3": 1, "strong": 2, "em": 1, "ul": 2, "ol": 1, "td": 2}
    assert page.run("box.querySelectorAll('pre code, blockquote p, th').length") == 4
    assert page.run("box.querySelectorAll('script, img, i, b').length") == 0
    assert page.run("[...box.querySelectorAll('a')].map((a) => a.href)") == ["https://example.org/a"]
    for text in (
        "<script>window.ran = 1</script>",
        '<img src=x onerror="window.ran = 1">',
        "co<b>de",
        "[bad](javascript:",
    ):
        assert text in page.run("box.textContent")
    assert page.run("typeof window.ran") == "undefined"
    page.run("box.remove()")


# What a model may break off anywhere, and what is no Markdown at all.
@pytest.mark.parametrize(
    "text", ["```py\nx = 1", "**half", "- ", "|", "| a", "# ", "1. a\n\n2. b", "a * b * c", "`", "> ", ""]
)
def test_half_of_markdown_loses_no_word(page: Browser, text: str) -> None:
    said = page.run(f"element('div', markdown({json.dumps(text)})).textContent")
    assert [word for word in re.findall(r"\w+", text) if word not in said and word not in ("py", "1", "2")] == []


def test_each_replica_has_its_name_and_one_that_is_down_says_so(tab: Browser) -> None:
    fleet = LocalFleet(2, dtype="float32", num_kv_blocks=256, max_num_seqs=4)
    with running(llm=ReplicatedLLM(fleet, RoundRobin(), facts_of(fleet))) as server:
        tab.look(1280, 800)
        tab.open(server.url)
        text = "[...row.children].map((each) => each.textContent).join(': ')"
        rows = f"[...document.querySelectorAll('#replicas li')].map((row) => {text})"
        wait_for(lambda: tab.run(rows) == ["replica-0: 0 running, 0 waiting", "replica-1: 0 running, 0 waiting"])
        fleet.dead.add("replica-0")
        wait_for(lambda: tab.run(rows) == ["replica-0: down", "replica-1: 0 running, 0 waiting"])
        tab.keep("replicas")
        tab.call("Page.navigate", url="about:blank")  # its stream ends, and the server with it


def test_one_engine_has_no_list_of_replicas(page: Browser) -> None:
    wait_for(lambda: page.run("$('v-running').textContent") == "0")
    assert page.run("[$('replicas-title').hidden, $('replicas').children.length]") == [True, 0]


def test_an_empty_field_says_what_it_stands_for(page: Browser) -> None:
    """The embedded model is asked greedily, and its makers' limit of tokens is 200."""
    wait_for(lambda: page.run("$('temperature').placeholder") == "0")
    assert page.run("FIELDS.map((name) => $(name).placeholder)") == [
        "0", "1", "200", "random", "none is sent", "only where the server asks for one"
    ]  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_on_a_phone_the_header_is_one_row(page: Browser, lang: str) -> None:
    page.look(390, 800)
    if lang == "zh":
        page.run("$('language').click()")
    wait_for(lambda: page.run("$('model').textContent") == "embedded")
    shown = "[...document.querySelectorAll('header h1, header #model, header button')]"
    boxes = f"{shown}.map((each) => each.getBoundingClientRect())"
    assert page.run(f"{boxes}.every((box) => box.top < 30 && box.bottom > 20 && box.height < 40)")
    assert page.run(f"{boxes}.every((box, i, all) => box.width && (!i || box.left >= all[i - 1].right))")
    assert page.run("$('model').clientWidth") > 40  # and the model's name can be told


@pytest.mark.parametrize("width", [320, 390])
def test_it_fits_a_phone(page: Browser, width: int) -> None:
    page.look(width, 800)
    page.run("$('eight').click()")
    wait_for(lambda: page.run("document.querySelectorAll('.copy').length") == 8)
    end, above = (f"{each}.getBoundingClientRect()" for each in (f"{LAST}.querySelector('footer')", "$('ask')"))
    assert page.run(f"{end}.bottom <= {above}.top")  # nothing is behind the input
    assert page.run(f"{above}.bottom <= innerHeight")
    assert page.run("[...document.querySelectorAll('.body')].every((e) => e.scrollWidth <= e.clientWidth + 1)")
    for opened in (False, True):
        if opened:
            page.run("$('panel-toggle').click()")
            page.run("$('settings-toggle').click()")
        assert page.run("document.documentElement.scrollWidth") <= width
        page.keep(f"phone-{width}-{'open' if opened else 'closed'}")
        outside = "[...document.querySelectorAll('button, input, textarea')].filter((e) => e.getClientRects().length)"
        assert page.run(f"{outside}.every((e) => e.getBoundingClientRect().right <= {width})")
