"""What a model says, in the panel of the trace page: shown as it is, and never run.

python -m pytest -m browser tests/browser
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folovllm.tracing.page import make_page
from folovllm.tracing.reader import read_trace
from folovllm.tracing.texts import texts_of
from tests.browser.chromium import Chromium, find_chromium
from tests.tracing.support import Simulated

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: apt-get install chromium"),
]

SAID = '</script><img src=x onerror="window.ran=1;alert(1)"><script>window.ran=2</script><!--{{DATA}}\u2028&lt;b>\'"'
"""Token 7, which is the only one that a Simulated draws."""
ASKED = "<svg onload=window.ran=3></textarea></title>"


class HostileWords:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(SAID if token_id == 7 else ASKED for token_id in token_ids)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as page:
        yield page


@pytest.fixture
def page(tmp_path: Path) -> Path:
    load = Simulated(tmp_path / "run.gz")
    load.add("a", [1], 3)
    load.run()
    trace = read_trace(tmp_path / "run.gz")
    path = tmp_path / "run.html"
    path.write_text(make_page([trace], [texts_of(trace, HostileWords())]), encoding="utf-8")
    return path


def shown(browser: Chromium) -> str:
    return str(browser.run("document.querySelector('.texts').textContent"))


def test_a_hostile_answer_is_shown_and_not_run(browser: Chromium, page: Path) -> None:
    """Also the piece that this step added, which has an element of its own."""
    browser.console.clear()
    for step, count in ((1, 1), (3, 3)):
        browser.open(page, f"lang=en&step={step}")
        browser.frames(4)
        assert shown(browser).count(SAID) == count
        assert ASKED in shown(browser)
        assert browser.run("window.ran") is None
        assert browser.run("document.querySelectorAll('.texts script, .texts img, .texts svg').length") == 0
        assert browser.run("document.querySelectorAll('img, svg, script:not([type])').length") == 1  # the page's own
    assert not [line for line in browser.console if line.startswith("dialog")]


def test_a_hostile_answer_leaves_the_page_in_order(browser: Chromium, page: Path) -> None:
    browser.open(page, "lang=en&step=1")
    browser.press("End")
    assert str(browser.run("document.querySelector('#where').textContent")).startswith("step 3 of 3")
    browser.run("document.getElementById('language').click()")
    browser.frames()
    assert shown(browser).count(SAID) == 3
