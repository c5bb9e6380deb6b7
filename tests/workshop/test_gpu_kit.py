"""The kit for a machine with a GPU: a part that hangs or fails costs nothing but itself, and what was found is kept."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workshop.bench.__main__ import build_parser
from workshop.bench.time_line import GPUS, contexts_of_first_full_step, predict
from workshop.gpu_kit import __main__ as kit
from workshop.gpu_kit import races, recorder, startup
from workshop.gpu_kit.page import page, table
from workshop.gpu_kit.parts import ENDING, Part, make_parts, read_json
from workshop.gpu_kit.predicted import NAMES, OTHERS, kernel_seconds, label_of
from workshop.gpu_kit.process import Ended, run_limited
from workshop.gpu_kit.profile import rows_of
from workshop.gpu_kit.record import Record


def python(code: str, tmp_path: Path, name: str = "part", limit: float = 600.0, need: float = 0.0) -> Part:
    return Part(name, f"the {name}", [sys.executable, "-c", code], limit, need, tmp_path / f"{name}.json")


def run(parts: list[Part], out: Path, minutes: float = 60.0) -> dict[str, Any]:
    record = Record("kit", minutes, "cpu", tiny=True)
    kit.run_all(parts, record, out)
    found: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    assert found == json.loads(json.dumps(record.as_dict()))
    return found


# Ending what does not end.


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    """Of a process that need not be a child of this one."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 600)[0], f"{pid} still runs"
    finally:
        os.close(process)


@pytest.fixture
def said(tmp_path: Path) -> Path:
    """A pipe: reading it waits until a process has opened it to write, and closed it again."""
    os.mkfifo(tmp_path / "said")
    return tmp_path / "said"


EndLimit = Callable[[float, Callable[[], object]], None]


@pytest.fixture
def end_limit(monkeypatch: pytest.MonkeyPatch) -> EndLimit:
    """`end_limit(3, event)`: a limit of 3 seconds is over when `event()` returns, however long that takes."""
    wait = subprocess.Popen.wait

    def set_end(limit: float, event: Callable[[], object]) -> None:
        def waited(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
            if timeout != limit:
                return wait(process, timeout)
            event()
            raise subprocess.TimeoutExpired(process.args, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", waited)

    return set_end


@pytest.mark.parametrize("own_session", [False, True])
def test_what_hangs_is_killed_with_its_children_and_its_output_is_kept(
    tmp_path: Path, own_session: bool, said: Path, end_limit: EndLimit
) -> None:
    code = (
        "import subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        f"child = subprocess.Popen(sleep, start_new_session={own_session})\n"
        "print(child.pid, flush=True)\n"
        f"open({str(said)!r}, 'w').close()\n"
        "time.sleep(600)"
    )
    end_limit(3, said.read_text)
    with (tmp_path / "log").open("w+b") as log:
        ended = run_limited([sys.executable, "-c", code], 3, log, {})
        log.seek(0)
        child = int(log.read())
    assert ended.code is None
    wait_for_end(child)


def test_what_is_left_behind_by_a_command_that_ended_is_killed_too(tmp_path: Path) -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    with (tmp_path / "log").open("w+b") as log:
        ended = run_limited([sys.executable, "-c", code], 600, log, {})
        log.seek(0)
        child = int(log.read())
    assert ended.code == 0
    wait_for_end(child)


def test_a_command_ends_where_the_kit_is_terminated(tmp_path: Path, said: Path) -> None:
    tell = f"with open({str(said)!r}, 'w') as file: print(os.getpid(), file=file)"
    hangs = f"import os, time\n{tell}\ntime.sleep(600)"
    code = (
        "import sys\n"
        "from workshop.gpu_kit.process import end_parts_when_told_to, run_limited\n"
        "end_parts_when_told_to()\n"
        f"run_limited([sys.executable, '-c', {hangs!r}], 600, open({str(tmp_path / 'log')!r}, 'wb'), {{}})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    pid = int(said.read_text())
    process.terminate()
    assert process.wait() == 143
    wait_for_end(pid)


# Parts.


def test_a_part_that_fails_or_hangs_costs_only_itself(tmp_path: Path, said: Path, end_limit: EndLimit) -> None:
    wrote = f"open({str(tmp_path / 'hangs.json')!r}, 'w').write('[7]')"
    tells = f"print('half', flush=True); open({str(said)!r}, 'w').close()"
    parts = [
        python("print('before'); raise SystemExit('it broke')", tmp_path, "fails"),
        python(f"import time; {wrote}; {tells}; time.sleep(600)", tmp_path, "hangs", limit=3),
        python("print('fine')", tmp_path, "works"),
    ]
    end_limit(3, said.read_text)
    fails, hangs, works = run(parts, tmp_path)["parts"]
    assert (fails["status"], fails["reason"], fails["tail"]) == ("failed", "it broke", ["before", "it broke"])
    assert (hangs["status"], hangs["reason"], hangs["report"]) == ("stopped", "it was not done after 3 s", [7])
    assert (works["status"], works["reason"], works["report"]) == ("passed", None, None)
    text = (tmp_path / "gpu.md").read_text()
    assert "| the hangs | stopped |" in text
    assert "it broke" in text
    assert b"half" in (tmp_path / "gpu.log").read_bytes()


def test_the_files_are_there_after_every_part(tmp_path: Path) -> None:
    second = f"import json; print(len(json.load(open({str(tmp_path / 'gpu.json')!r}))['parts']))"
    _, seen = run([python("", tmp_path, "first"), python(second, tmp_path, "second")], tmp_path)["parts"]
    assert seen["status"] == "passed"
    assert (tmp_path / "gpu.log").read_text().splitlines()[-1] == "1"


def test_a_slow_part_leaves_the_others_what_they_need(tmp_path: Path) -> None:
    parts = [
        python("import time; time.sleep(600)", tmp_path, "slow"),
        python("", tmp_path, "later", limit=3600, need=3599),
    ]
    slow, later = run(parts, tmp_path, minutes=60 + 3 * ENDING / 60)["parts"]
    assert slow["limit_s"] <= 1 + ENDING
    assert (slow["status"], later["status"]) == ("stopped", "passed")


def test_what_has_no_time_left_is_not_begun(tmp_path: Path) -> None:
    (part,) = run([replace(python("", tmp_path), need=90, limit=90)], tmp_path, minutes=0.5)["parts"]
    assert (part["status"], part["reason"]) == ("skipped", "no time was left for it")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Time that passes by commands alone: {name of a part: the seconds that it would take}; of others, their need."""
    now, takes = [0.0], {}

    def run_fake(argv: list[str], limit: float, log: Any, env: Any) -> Ended:
        taken = takes[argv[0]]
        ended = Ended(0, taken) if taken <= limit else Ended(None, limit + ENDING)
        now[0] += ended.seconds
        return ended

    monkeypatch.setattr(kit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(kit, "run_limited", run_fake)
    return takes


def rehearse(clock: dict[str, float], slow: set[str], tmp_path: Path) -> dict[str, Any]:
    """The parts of a GPU's machine, as commands that take what they need; those of `slow` never end."""
    parts = make_parts("cuda", tiny=False, folder=tmp_path)
    clock |= {part.name: 1e9 if part.name in slow else part.need for part in parts}
    named = [replace(part, argv=[part.name], read=lambda path, log: None) for part in parts]
    return run(named, tmp_path, minutes=kit.parse([]).minutes)


ALL = [part.name for part in make_parts("cuda", tiny=False, folder=Path())]


@pytest.mark.parametrize("slow", ALL)
def test_each_part_that_overruns_costs_itself_only(slow: str, clock: dict[str, float], tmp_path: Path) -> None:
    found = rehearse(clock, {slow}, tmp_path)
    assert {part["name"]: part["status"] for part in found["parts"]} == {
        name: "stopped" if name == slow else "passed" for name in ALL
    }
    assert found["seconds"] <= 600 - 15  # the last of a call of 600 s are for writing and for whoever called


def test_where_every_part_overruns_each_has_had_its_need_and_the_kit_ends_in_time(
    clock: dict[str, float], tmp_path: Path
) -> None:
    found = rehearse(clock, set(ALL), tmp_path)
    needs = {part.name: part.need for part in make_parts("cuda", tiny=False, folder=tmp_path)}
    assert [part["status"] for part in found["parts"]] == ["stopped"] * len(ALL)
    assert all(part["limit_s"] >= needs[part["name"]] for part in found["parts"])
    assert found["seconds"] <= 600 - 15


def test_a_cold_start_of_torch_and_cuda_fits_into_the_first_part(tmp_path: Path) -> None:
    first, *_ = make_parts("cuda", tiny=False, folder=tmp_path)
    assert first.name == "machine"
    assert first.need >= 40


def test_the_engines_tests_come_first_and_the_peer_last(tmp_path: Path) -> None:
    parts = make_parts("cuda", tiny=False, folder=tmp_path)
    tests = next(part.argv for part in parts if part.name == "tests")
    files = [arg for arg in tests if arg.startswith("tests/")]
    assert files == ["tests/gpu/test_engine_gpu.py", "tests/gpu/test_model_gpu.py", "tests/gpu"]
    assert tests[tests.index("-n") + 1] == "12"
    assert parts[-1].name == "beside"


def test_without_the_device_nothing_else_is_tried(tmp_path: Path) -> None:
    parts = [python("raise SystemExit('no device')", tmp_path, "machine"), python("", tmp_path, "more")]
    assert [part["name"] for part in run(parts, tmp_path)["parts"]] == ["machine"]


@pytest.mark.parametrize(
    ("ended", "said", "status"),
    [
        (Ended(0, 1.0), "done", ("passed", None)),
        (Ended(2, 1.0), "error: without must name\nwhat there is", ("refused", "without must name what there is")),
        (Ended(2, 1.0), "error: no such option (see x --help)", ("failed", "error: no such option (see x --help)")),
        (Ended(-11, 1.0), "", ("failed", "it said nothing")),
        (Ended(None, 9.0), "x", ("stopped", "it was not done after 5 s")),
    ],
)
def test_what_is_made_of_an_end(ended: Ended, said: str, status: tuple[str, str | None]) -> None:
    assert kit.judge(ended, 5, said, may_refuse=True) == status


def test_only_what_leaves_something_out_may_refuse() -> None:
    assert kit.judge(Ended(2, 1.0), 5, "error: no room", may_refuse=False) == ("failed", "error: no room")


@pytest.mark.parametrize(("device", "tiny"), [("cuda", False), ("cpu", True)])
def test_every_command_is_one_that_there_is(device: str, tiny: bool, tmp_path: Path) -> None:
    parts = make_parts(device, tiny=tiny, folder=tmp_path)
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        module, *options = part.argv[part.argv.index("-m") + 1 :]
        if module == "workshop.bench":
            build_parser().parse(options)
        else:
            assert module == "pytest" or module.startswith("workshop.gpu_kit.")


@pytest.mark.parametrize(("device", "tiny"), [("cuda", False), ("cuda", True), ("cpu", True)])
def test_what_the_parts_need_fits_into_the_minutes_of_all(device: str, tiny: bool, tmp_path: Path) -> None:
    """So that no part takes another's: the kit ends in its minutes on a GPU, and each part has had its need."""
    parts = make_parts(device, tiny=tiny, folder=tmp_path)
    args = kit.parse(["--device", device, *(["--tiny"] if tiny else [])])
    assert sum(part.need + ENDING for part in parts) <= 60 * args.minutes
    assert all(part.need <= part.limit for part in parts)


def test_a_rehearsal_is_not_cut_where_a_gpus_machine_would_be(tmp_path: Path) -> None:
    """Eight times the time of all, and of each: two cores are not sixteen."""
    on_gpu, rehearsed = (make_parts(device, tiny=True, folder=tmp_path) for device in ("cuda", "cpu"))
    assert [part.limit for part in rehearsed] == [8 * part.limit for part in on_gpu]
    assert kit.parse(["--device", "cpu", "--tiny"]).minutes == pytest.approx(8 * 9.7)
    assert kit.parse([]).minutes == 9.7
    assert kit.parse(["--device", "cpu", "--tiny", "--minutes", "3"]).minutes == 3


def test_the_cheap_part_of_a_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--device", "cpu", "--tiny", "--only", "machine", "races", "--out", str(tmp_path / "out")]
    assert kit.main(argv) == 0
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert [(part["name"], part["status"]) for part in found["parts"]] == [
        ("machine", "passed"),
        ("races", "passed"),
    ]
    text, printed = (tmp_path / "out" / "gpu.md").read_text(), capsys.readouterr()
    assert text in printed.out
    assert f"after every part: {tmp_path}/out/gpu.md to read, gpu.json, gpu.log" in printed.err
    for said in ("a rehearsal", "compute-sanitizer did not run", "| passed"):
        assert said in text


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--device", "cpu"], "add --tiny"),
        (["--device", "tpu"], "device must be cpu, cuda or cuda:<index>, got 'tpu'"),
        (["--minutes", "0"], "minutes must be positive, got 0"),
    ],
)
def test_wrong_options(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kit.main(argv)
    assert text in capsys.readouterr().err


# What parts write.


def test_tests_are_kept_one_by_one(tmp_path: Path, pytester_file: Path) -> None:
    env = {recorder.VARIABLE: str(tmp_path / "tests.jsonl")}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "workshop.gpu_kit.recorder", "-p", "no:cacheprovider",
            "-p", "no:randomly", "-c", os.devnull, "--rootdir", str(tmp_path), str(pytester_file)]  # fmt: skip
    with (tmp_path / "log").open("w+b") as log:
        assert run_limited(argv, 120, log, env).code == 9  # the last of its tests breaks off
    found = recorder.read(tmp_path / "tests.jsonl")
    assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 1, "error": 1}
    assert ["assert 1 == 2" in str(test["text"]) for test in found["wrong"]] == [True, False]


@pytest.fixture
def pytester_file(tmp_path: Path) -> Path:
    path = tmp_path / "test_some.py"
    path.write_text(
        "import os, pytest\n"
        "def test_a(): pass\n"
        "def test_b(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='no')\n"
        "def test_c(): pass\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_d(broken): pass\n"
        "def test_e(): os._exit(9)\n"
    )
    return path


def test_hazards_are_read_off_what_the_sanitizer_says() -> None:
    log = "x\n========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n"
    assert races.read({}, log) == {"hazards": {"displayed": 3, "errors": 1, "warnings": 2}}
    assert races.read({}, "no tool here") == {"hazards": None}
    assert races.read(None, log) is None


def test_what_was_half_written_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"rows": [')
    assert read_json(tmp_path / "half.json") is None
    assert read_json(tmp_path / "none.json") is None


def test_tables_are_aligned() -> None:
    assert table(["name", "n"], [["a", 7], ["long name", 1234.5]]) == [
        "| name      |     n |",
        "|-----------|------:|",
        "| a         |     7 |",
        "| long name | 1,234 |",
        "",
    ]


def test_a_page_says_which_tests_went_wrong() -> None:
    record = Record("kit", 8, "cuda", tiny=False)
    tests = {
        "counts": {"failed": 1, "passed": 2},
        "slowest": [],
        "wrong": [{"test": "t.py::a", "text": ["x", "it broke"]}],
    }
    record.parts.append({"name": "tests", "title": "tests/gpu", "status": "failed", "seconds": 3.0, "report": tests})
    text = page(record)
    assert "1 failed, 2 passed." in text
    assert "- `t.py::a`: it broke" in text
    assert "rehearsal" not in text


def test_the_page_has_predicted_beside_measured_for_every_kernel() -> None:
    gpu = GPUS["h200"]
    kernels = {"void cutlass::gemm": (113.0, 800.0), "_paged_decode": (28.0, 4000.0), "_sample_kernel": (1.0, 90.0),
               "Memcpy DtoD": (3.0, 6.0)}  # fmt: skip
    rows = rows_of(256, kernels, kernel_seconds(gpu, "qwen3-0.6b", [597] * 256))
    assert {row["kernel"] for row in rows} == {*NAMES, OTHERS}
    record = Record("kit", 9.7, "cuda", tiny=False)
    record.parts += [
        {"name": "profile", "title": "p", "status": "passed", "seconds": 1.0,
         "report": {"context": 597, "rows": rows}},
        {"name": "sampling", "title": "s", "status": "passed", "seconds": 1.0,
         "report": {"copy_gb_per_s": 4000.0,
                    "rows": [{"kernel": "greedy, 1 rows", "us": 10.0, "predicted_us": None, "gb_per_s": 30.0}]}},
    ]  # fmt: skip
    text = page(record)
    for row in rows:
        if row["us"] or row["predicted_us"]:
            assert f"| {row['kernel']}" in text
    assert "| greedy, 1 rows" in text
    assert text.count("predicted us") == 2


def test_the_page_has_the_products_with_codes_and_how_long_kernels_were_checked() -> None:
    record = Record("kit", 9.7, "cuda", tiny=False)
    row = dict.fromkeys(("imports_s", "build_s", "first_token_s", "ready_s", "later_first_token_ms"), 1.0)
    row |= dict.fromkeys(("asked_gib", "started_gib", "peak_gib", "kv_cache_gib", "graphs_gib"))
    record.parts += [
        {"name": "codes", "title": "c", "status": "passed", "seconds": 1.0,
         "report": {"copy_gb_per_s": 4000.0,
                    "rows": [{"kernel": "w4a16 o, 1 rows", "us": 5.0, "predicted_us": 4.0, "gb_per_s": 220.0}]}},
        {"name": "start-warm", "title": "s", "status": "passed", "seconds": 1.0,
         "report": {"rows": [row | {"check_s": 2.125, "check_again_s": 0.0625}]}},
    ]  # fmt: skip
    text = page(record)
    assert "## Products with codes" in text
    assert "| w4a16 o, 1 rows | 5.00 |         4.00 |" in text
    assert "of it kernel check s | check once more s" in text
    assert "2.12" in text
    assert "0.062" in text


def test_the_kernel_check_is_timed_with_and_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    now, takes = [0.0], iter([3.0, 0.25])
    monkeypatch.setattr(startup.time, "perf_counter", lambda: now[0])

    def check(*args: Any) -> Any:
        now[0] += next(takes)
        return args

    monkeypatch.setattr(startup, "check_kernels", check)
    timed = startup.TimedCheck()
    assert timed("parts") == ("parts",)
    assert (timed.first, timed.again) == (3.0, 0.25)


def test_what_is_predicted_kernel_by_kernel_adds_up_to_the_time_line() -> None:
    """But for storing K and V, whose bytes the time line leaves out, and the copy of a step's inputs from the host."""
    contexts = contexts_of_first_full_step()
    whole = {row["part"]: row["us"] for row in predict(GPUS["h200"], contexts)}
    each = {name: 1e6 * seconds for name, seconds in kernel_seconds(GPUS["h200"], "qwen3-0.6b", contexts).items()}
    assert each["decode"] == pytest.approx(whole["attention"])
    assert each["products and head"] == pytest.approx(whole["products"] + whole["head"])
    assert each["draw"] == pytest.approx(whole["sampling"])
    small = sum(each[name] for name in ("norms", "rotation", "SwiGLU"))
    assert small == pytest.approx(whole["small kernels"], rel=0.06)


@pytest.mark.parametrize(
    ("kernel", "label"),
    [
        ("_paged_decode", "decode"),
        ("_add_rms_norm_kernel", "norms"),
        ("nvjet_tst_128x64_64x8_1x2_h_bz_TNT", "products and head"),
        ("void cublasLt::splitKreduce_kernel<32>", "products and head"),
        ("Memcpy HtoD (Pinned -> Device)", OTHERS),
    ],
)
def test_kernels_are_known_by_their_names(kernel: str, label: str) -> None:
    assert label_of(kernel) == label


def test_a_command_ends_where_the_kit_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def interrupt(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        begun.append(process.pid)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt), (tmp_path / "log").open("wb") as log:
        run_limited([sys.executable, "-c", "import time; time.sleep(600)"], 600, log, {})
    assert not is_running(begun[0])
