"""The file of a trace: what is cut off, wrong, or of another version, and what no file can be made of."""

from __future__ import annotations

import pytest

from folovllm.tracing.attach import TraceFile
from folovllm.tracing.reader import TraceFormatError, read_trace
from folovllm.tracing.writer import TraceWriter
from tests.tracing.support import Simulated


def test_a_torn_last_line_is_passed_over(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1] * 10, 5)
    load.run()
    whole = (tmp_path / "sim.gz").read_bytes()
    seen = set()
    for size in range(len(whole) - 150, len(whole) + 1):
        (tmp_path / "torn.gz").write_bytes(whole[:size])
        trace = read_trace(tmp_path / "torn.gz")
        assert trace.steps == read_trace(tmp_path / "sim.gz").steps[: len(trace.steps)]
        seen.add((len(trace.steps), trace.end is not None, trace.is_torn))
    assert {(4, False, True), (4, False, False), (5, False, False), (5, False, True), (5, True, False)} <= seen


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"type":"step","step":0,"t":1}', "line 2: times must have 5 numbers, got []"),
        ('{"type":"step","step":0,"t":"1","times":[]}', "line 2: t must be <class 'int'>, got '1'"),
        (
            '{"type":"step","times":[0,0,0,0,0],"rows":[]}',
            "line 2: Step.got an unexpected keyword argument 'rows'",
        ),
        ('{"type":"step","times":[0,0,0,0,0],"seq_ids":["a"]}', "line 2: its lists must have 1 rows"),
        ('{"type":"step","times":[0,0,0,0,0],"arrived":[{"id":"a"}]}', "line 2: arrived: "),
        ('{"type":"end"}', "line 2: End"),
        ('{"type":"line"}', "line 2: must be a header, and behind it steps and an end, got 'line'"),
        ('{"type":"header"}', "line 2: must be a header, and behind it steps and an end, got 'header'"),
        ("[]", "line 2: must be a header"),
        ("{", "line 2: is not JSON"),
        ("[" * 100_000, "line 2: is not to be read as JSON: it is nested too deeply"),
        ('{"type":[]}', "line 2: must be a header"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path, line: str, text: str) -> None:
    path = tmp_path / "sim.gz"
    Simulated(path).tracer.writer.write(line + "\n")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert text in str(caught.value)


def test_another_version_is_refused_by_its_number(tmp_path) -> None:
    writer = TraceWriter(tmp_path / "sim.gz")
    writer.write('{"type":"header","version":3}\n')
    with pytest.raises(TraceFormatError, match="version must be 4, got 3"):
        read_trace(tmp_path / "sim.gz")


@pytest.mark.parametrize(("path", "text"), [("", "be the path of a file"), ("no/such/run.gz", "can be written")])
def test_a_path_that_cannot_be_written_is_refused(path: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"trace must .*{text}"):
        TraceFile(path)
