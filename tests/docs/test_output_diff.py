"""What a page shows must be what its code prints: to the letter, or but for a machine's figures, or but for lines left
out."""

from __future__ import annotations

from milestones.output_diff import difference

TIMES = """\
embedded, 24 requests
┏━━━━━━┳━━━━━━━━┓
┃ part ┃ p50 ms ┃
│ TTFT │   8.89 │
50000 loops, best of 5: 134 nsec per loop
seen [1, 6, 13, 20, 24], off by -4.7e-07
"""
OTHER_TIMES = """\
embedded, 24 requests
┏━━━━━━┳━━━━━━━━━━━━━┓
┃ part ┃      p50 ms ┃
│ TTFT │ 1,234,567.8 │
2 loops, best of 1: 1.2 usec per loop
seen [1, 24], off by 0.0
"""


def test_a_machine_has_its_own_figures_and_the_page_s_words() -> None:
    assert difference(TIMES, OTHER_TIMES, machine=True) is None
    assert difference(TIMES, OTHER_TIMES) is not None
    for word in ("requests", "ms", "TTFT", "loops", "nsec", "seen", "[", "│"):
        changed = TIMES.replace(word, "other")
        assert difference(changed, OTHER_TIMES, machine=True) is not None, word
    assert difference(TIMES.replace("24 requests", "requests"), OTHER_TIMES, machine=True) is not None


def test_figures_of_no_machine_are_held_to_the_digit_and_the_column() -> None:
    assert difference("a  12\n", "a  12   \n\n") is None
    assert difference("a  12\n", "a  13\n") == "--- the page\n+++ printed\n-a  12\n+a  13"
    assert difference("a  12\n", "a 12\n") is not None
    assert difference("a  12\n", "a  12\nb\n") is not None


def test_a_line_of_dots_leaves_lines_out_and_holds_the_others_in_their_order() -> None:
    printed = "1\n2\n3\n4\n"
    for shown in ("1\n…\n", "…\n4\n", "1\n…\n3\n…\n", "1\n…\n2\n3\n4\n"):
        assert difference(shown, printed) is None, shown
    for shown in ("2\n…\n", "…\n3\n", "1\n…\n3\n2\n…\n", "…\n5\n…\n"):
        assert difference(shown, printed) is not None, shown
