"""The list of files says what their heads say first, and has a Chinese line for each."""

from __future__ import annotations

from pathlib import Path

from milestones.site.file_list import chinese, files_of, first_sentence, render


def test_a_head_is_its_first_sentence_up_to_where_vllm_is_named(tmp_path: Path) -> None:
    heads = {
        "a.py": ('"""One: two,\nthree. Four.\n\nFive.\n"""\n', "One: two, three."),
        "b.py": ('"""`a | b`: one. vLLM: c/d.py"""\n', "`a \\| b`: one."),
        "c.h": ("// A header (x.y).\n// More.\n//\n//     drawing\n#pragma once\n", "A header (x.y)."),
    }
    for name, (text, _) in heads.items():
        (tmp_path / name).write_text(text)
    assert {name: first_sentence(tmp_path / name) for name in heads} == {
        name: said for name, (_, said) in heads.items()
    }


def test_a_milestone_has_its_files_and_those_before_it() -> None:
    assert "request.py" in files_of("m0")
    assert "core/scheduler.py" not in files_of("m1")
    assert {"core/scheduler.py", "core/block_pool.py"} <= set(files_of("m3"))
    assert "core/block_hash.py" not in files_of("m3")


def test_each_file_up_to_m6_has_one_line_in_both_languages() -> None:
    assert chinese().keys() == set(files_of("m6"))
    for lang in ("en", "zh"):
        rows = render("m6", lang).splitlines()[2:]
        assert len(rows) == len(files_of("m6"))
        assert all(len(row.replace("\\|", "").strip("| ").split(" | ")) == 3 for row in rows)
