"""The kit for a machine with a GPU: a part that hangs or fails costs nothing but itself, and what was found is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch.autograd import DeviceType

from workshop.bench import rounds
from workshop.bench.__main__ import build_parser
from workshop.bench.__main__ import main as bench
from workshop.bench.gpu_kernels import GPUS, NAMES, OTHERS, kernel_seconds
from workshop.gpu_kit import __main__ as kit
from workshop.gpu_kit import ranks, serving
from workshop.gpu_kit.goals import goals_table
from workshop.gpu_kit.kernels import rows_of
from workshop.gpu_kit.page import page
from workshop.gpu_kit.parts import ENDING, Part, make_parts, read_races, read_tests
from workshop.gpu_kit.process import Record, run_limited


def python(code: str, tmp_path: Path, name: str = "part", limit: float = 600.0, need: float = 0.0) -> Part:
    return Part(name, f"the {name}", [sys.executable, "-c", code], limit, need, tmp_path / f"{name}.json")


def run(parts: list[Part], out: Path, minutes: float = 60.0) -> dict[str, Any]:
    record = Record("kit", minutes, "cpu", tiny=True)
    kit.run_all(parts, record, out)
    found: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    assert found == json.loads(json.dumps({"kit": "folovllm gpu"} | vars(record)))
    return found


# Ending what does not end.


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_end(pid: int) -> None:
    """Of a process that need not be a child of this one."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(600)


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
        code_of_end = run_limited([sys.executable, "-c", code], 3, log, {})
        log.seek(0)
        child = int(log.read())
    assert code_of_end is None
    wait_for_end(child)


# Components.


def test_a_part_that_fails_or_hangs_costs_only_itself(tmp_path: Path, said: Path, end_limit: EndLimit) -> None:
    wrote = f"open({str(tmp_path / 'hangs.json')!r}, 'w').write('[7]')"
    signals = f"print('half', flush=True); open({str(said)!r}, 'w').close()"
    parts = [
        python("print('before'); raise SystemExit('it broke')", tmp_path, "fails"),
        python(f"import time; {wrote}; {signals}; time.sleep(600)", tmp_path, "hangs", limit=3),
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


ALL = [part.name for part in make_parts("cuda", tiny=False, folder=Path())]


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
    assert sum(part.need + ENDING for part in parts if not part.only_by_name) <= 60 * args.minutes
    assert all(part.need <= part.limit for part in parts)


def test_the_cheap_part_of_a_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--device", "cpu", "--tiny", "--only", "races", "machine", "--out", str(tmp_path / "out")]
    assert kit.main(argv) == 0
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert [(part["name"], part["status"]) for part in found["parts"]] == [
        ("races", "passed"),
        ("machine", "passed"),
    ]
    text, printed = (tmp_path / "out" / "gpu.md").read_text(), capsys.readouterr()
    assert text in printed.out
    assert f"after every part: {tmp_path}/out/gpu.md to read, gpu.json, gpu.log" in printed.err
    for said in ("a rehearsal", "compute-sanitizer did not run", "| passed"):
        assert said in text


def test_what_breaks_everything_is_known_in_the_first_45_seconds(tmp_path: Path) -> None:
    machine, first, *rest = make_parts("cuda", tiny=False, folder=tmp_path)
    assert (machine.name, first.name, first.limit, rest[0].name) == ("machine", "first", 45, "preset")
    assert all(Path(word).is_file() for word in first.argv if word.startswith("tests/"))


# What parts write.


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("decode", "decode --batch-sizes 1 2 --context 8 --steps 2 --rounds 1"),
        ("ablate", "ablate --features prefix-caching trace --num-requests 2 --input-len 8 --output-len 4 --rounds 1"),
        ("run_preset", "preset nano-vllm --num-requests 2 --input-len 12 --output-len 8 --rounds 2"),
    ],
)
def test_what_a_killed_part_had_measured_is_kept(
    module: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def keep(*given: Any) -> None:
        rounds.keep(*given)
        raise KilledError

    monkeypatch.setattr(f"workshop.bench.{module}.keep", keep)
    out = tmp_path / "part.json"
    with pytest.raises(KilledError):
        bench([*command.split(), "--shape", "qwen3-tiny", "--dtype", "float32", "--json", str(out)])
    (row,), (samples,) = (json.loads(out.read_text())[name] for name in ("rows", "samples"))
    assert row["seconds" if "seconds" in row else "step_ms"] > 0
    assert all(len(values) == 1 for values in samples.values())
    assert [path.name for path in tmp_path.iterdir()] == ["part.json"]


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


def test_every_goal_is_measured_by_some_part() -> None:
    record = Record("kit", 9.7, "cuda", tiny=False)

    def add(name: str, **report: list[dict[str, Any]]) -> None:
        record.parts.append({"name": name, "title": name, "status": "passed", "seconds": 1.0, "report": report})

    add("preset", rows=[{"output_tokens_per_s": 1.0}])
    add("cache-fp8", rows=[{"output_tokens_per_s": 2.0}])
    add("decode", rows=[{"batch": batch, "output_tokens_per_s": 3.0} for batch in (1, 8, 64, 256)])
    for name, seconds in (("8b-bfloat16", 8.0), ("8b-w4a16", 2.0)):
        add(name, rows=[{"batch": batch, "step_ms": seconds} for batch in (1, 16, 256)])
    for name, rate in (("weights-bfloat16", 4.0), ("weights-w4a16", 5.0)):
        add(name, rows=[{"decode_tokens_per_s": rate}])
    add("speculation", rows=[{"requests": requests, "ratio": 1.5} for requests in (1, 8, 32)])
    filtered = [{"batch": batch, "sampling": "top-k 20, top-p 0.95", "more": 0.25} for batch in (1, 64, 256)]
    add("serving", first=[{"prompt": 32, "ms": 6.0}], filters=filtered)
    here = {row["goal"]: row["here"] for row in goals_table(record)}
    assert all(figure is not None for figure in here.values()), here
    assert here["top-k 20 with top-p 0.95, 1: % more"] == 25.0


def test_two_ranks_on_one_device_say_what_one_says() -> None:
    assert ranks.two_ranks("cpu")["same_tokens"] is True


def test_a_first_tokens_time_is_shared_out() -> None:
    """Two kernels of a step from 100 to 200 us, and one before it."""
    events = [event(serving.SPAN, 100, 200), event("a", 130, 150), event("b", 160, 190), event("early", 10, 20)]
    assert serving._time_line(events, on_gpu=False) == {
        "kernels": 2, "before_us": 30, "kernels_us": 50, "between_us": 10, "behind_us": 10
    }  # fmt: skip


def event(name: str, start: int, end: int) -> Any:
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, time_range=span, device_type=DeviceType.CPU)


def test_the_outcomes_of_tests_and_races_are_read_from_the_log() -> None:
    log = """
[gw1] [  3%] PASSED tests/gpu/a.py::one[x y]
tests/gpu/a.py::two FAILED [ 50%]
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
3.20s call     tests/gpu/a.py::one[x y]
"""
    found = read_tests(Path(), log)
    assert (found["counts"], found["wrong"]) == ({"passed": 1, "failed": 1}, ["tests/gpu/a.py::two"])
    assert found["slowest"] == [{"test": "tests/gpu/a.py::one[x y]", "seconds": 3.2}]
    assert read_races(Path(), log) == {"hazards": {"displayed": 2, "errors": 1, "warnings": 1}}
