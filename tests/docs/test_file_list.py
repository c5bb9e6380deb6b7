"""The list of files says what their heads say first, and has a Chinese line for each."""

from __future__ import annotations

from milestones.site.file_list import chinese, files_of, render


def test_each_file_up_to_m6_has_one_line_in_both_languages() -> None:
    assert chinese().keys() == set(files_of("m6"))
    for lang in ("en", "zh"):
        rows = render("m6", lang).splitlines()[2:]
        assert len(rows) == len(files_of("m6"))
        assert all(len(row.replace("\\|", "").strip("| ").split(" | ")) == 3 for row in rows)
