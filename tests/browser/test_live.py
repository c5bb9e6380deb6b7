"""The scheduler alive in a page, opened from the disk: each step is the one that CPython takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milestones.site import live
from milestones.site.live import box
from tests.browser.live_support import Driver
from tests.browser.test_pages import local

pytestmark = pytest.mark.browser

TRACE = "document.querySelector('.live').live.trace"


@pytest.fixture(scope="session")
def alive(built: dict[str, Path]) -> Path:
    """The site as the last builder made it."""
    site = built["mkdocs"]
    if not (site / "live/python.js").is_file():
        pytest.skip(live.build())
    return site


def opened(page: Any, path: Path) -> tuple[Any, list[str]]:
    """The page's box, open, and a list in which what goes wrong appears."""
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("request", lambda r: None if local(r.url) else wrong.append(f"asks for {r.url}"))
    page.goto(path.as_uri())
    found = page.locator(".live")
    assert page.evaluate("typeof folovllmPython") == "undefined"  # nothing is loaded before the click
    found.locator(".live__start button").click()
    page.locator(".live[data-state=open]").wait_for()
    page.evaluate("document.querySelector('.live').live.patience = 600")
    return found, wrong


@pytest.mark.parametrize(
    ("page", "name", "lang", "width", "scheme"),
    [
        ("m2/scheduling", "m2/budgets", "en", 1440, "light"),
        ("m3/preemption", "m3/preemption", "zh", 390, "dark"),
        ("m5/index", "m5/running", "zh", 1440, "light"),
        ("m6/eviction", "m6/eviction", "en", 390, "dark"),
    ],
)
def test_a_milestones_scheduler_takes_the_same_steps_in_a_page(
    alive: Path, open_page: Any, tmp_path: Path, page: str, name: str, lang: str, width: int, scheme: str
) -> None:
    """As it begins, and after a reader has changed a setting and a request."""
    tab = open_page(width, color_scheme=scheme)
    found, wrong = opened(tab, alive / lang / f"{page}.html")
    first = tab.evaluate(TRACE)
    found.locator("input[name=budget]").fill("34")
    cell = found.locator(".live__requests tr").nth(1).locator("input").first
    cell.fill("9")
    tab.wait_for_function(f"{TRACE}.settings.max_num_batched_tokens === 34 && {TRACE}.requests[0][1] === 9")
    spec = box.spec(name)
    requests = [list(request) for request in spec["requests"]]  # type: ignore[attr-defined]
    requests[0][1] = 9
    answers = Driver(tmp_path, name[:2])(spec, {**spec, "budget": 34, "requests": requests})
    assert [first, tab.evaluate(TRACE)] == [answer["found"]["trace"] for answer in answers]
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert wrong == []


def test_a_reader_predicts_steps_back_and_rewrites_the_code(alive: Path, open_page: Any) -> None:
    """On the page of M3, by keyboard where there is one."""
    page = open_page()
    found, wrong = opened(page, alive / "en/m3/preemption.html")
    told, ask = found.locator(".live__told"), found.locator(".live__ask")

    found.locator(".live__picture").press("ArrowRight")
    assert "step 2 of 10" in found.locator(".live__steps").inner_text()
    found.locator("input[name=predict]").check()
    for name, tokens in {"A": "7", "B": "6", "C": "0"}.items():
        ask.locator(f"input[name={name}]").fill(tokens)
    ask.locator("input[name=C]").press("Enter")
    assert "C 5, you said 0 ✗" in " ".join(ask.inner_text().split())
    assert "2 of 3 right" in ask.inner_text()
    assert "C 5 prompt tokens, 0 to 4; it draws its next token" in told.inner_text()
    found.locator("input[name=predict]").uncheck()

    found.locator("summary").press("Enter")
    code = found.locator("textarea")
    code.fill(code.input_value().replace("self.running[-1]", "self.running[0]"))
    found.get_by_role("button", name="Run it").click()
    page.wait_for_function(f"{TRACE}.more[2].gave_way[0] === 'A'")
    code.fill("def _continue(self, request, seqs, output):\n    while True: pass")
    page.evaluate("document.querySelector('.live').live.patience = 1")
    found.get_by_role("button", name="Run it").click()
    found.get_by_text("no answer after 1 s: stopped").wait_for()
    page.evaluate("document.querySelector('.live').live.patience = 600")
    found.get_by_role("button", name="The milestone's own").click()
    page.wait_for_function(f"{TRACE}.more[2].gave_way[0] === 'C'")
    assert found.locator(".live__error").is_hidden()
    assert wrong == []


def test_two_runs_stand_one_above_the_other_and_the_address_has_the_settings(alive: Path, open_page: Any) -> None:
    """A request that gives way is computed again, and swapped."""
    page = open_page(390)
    found, wrong = opened(page, alive / "en/m3/preemption.html")
    told = found.locator(".live__told")
    assert "step 1 of 10" in found.locator(".live__steps").inner_text()
    found.get_by_role("button", name="keep above").click()
    found.locator("input[name=swap]").check()
    page.wait_for_function(f"{TRACE}.settings.preemption_mode === 'swap'")
    found.locator(".live__picture").last.press("ArrowRight")
    found.locator(".live__picture").last.press("ArrowRight")
    assert "its blocks lie in the swap space" in told.inner_text()
    shown = "p => [...p.shadowRoot.querySelectorAll('g[class]')].filter(g => g.style.opacity === '0').length"
    pictures = found.locator(".live__picture")
    assert [pictures.nth(at).evaluate(shown) > 0 for at in range(pictures.count())] == [True, True]

    found.locator("details.live__code summary").click()
    found.locator(".live__code select").select_option(label="folovllm/core/preemption.py · choose_victims")
    assert found.locator("textarea").is_hidden()  # the answer to an exercise
    found.get_by_role("button", name="Show it").click()
    assert "newest is needy" in found.locator("textarea").input_value()

    assert page.url.endswith("#live?swap=1")
    page.reload()
    page.locator(".live__start button").click()
    page.wait_for_function(f"{TRACE}?.settings.preemption_mode === 'swap'")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert wrong == []


def test_a_load_is_simulated_in_a_page(alive: Path, open_page: Any, tmp_path: Path) -> None:
    page = open_page(390)
    found, wrong = opened(page, alive / "zh/simulate-here.html")
    runs = found.locator(".live__runs tbody tr")
    assert runs.count() == 1
    found.locator("select[name=count]").select_option("200")
    found.locator("select[name=budget]").select_option("256")
    found.get_by_role("button", name="模拟").click()
    runs.nth(1).wait_for()
    first = page.evaluate("document.querySelector('.live').live.runs[0]")
    (answer,) = Driver(tmp_path, "root")(first["spec"])
    assert {"spec": first["spec"], **answer["found"]} == first
    assert found.locator(".live__plots polyline").count() == 4
    assert wrong == []
