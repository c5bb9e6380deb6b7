"""The file of a trace: what is cut off, wrong, or of another version, and what no file can be made of."""

from __future__ import annotations

import json

import pytest

from folovllm.tracing.attach import TraceFile
from folovllm.tracing.reader import read_trace
from folovllm.tracing.schema import TraceFormatError
from folovllm.tracing.summary import summarize
from tests.tracing.support import Simulated


def test_a_torn_last_line_is_passed_over(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.jsonl")
    load.add("a", [1] * 10, 5)
    load.run()
    whole = (tmp_path / "sim.jsonl").read_bytes()
    (tmp_path / "torn.jsonl").write_bytes(whole[: whole.rindex(b'"step":5') + 20])
    trace = read_trace(tmp_path / "torn.jsonl")
    assert (len(trace.steps), trace.end, trace.is_torn) == (4, None, True)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"type":"step","step":0,"t":1}', "line 2: times is missing"),
        ('{"type":"step","step":0,"t":1,"times":[1]}', "line 2: times must have 5 numbers, got [1]"),
        ('{"type":"step","step":0,"t":"1","times":[]}', "line 2: t must be int, got '1'"),
        ('{"type":"step","step":0,"t":1,"times":[0,0,0,0,0],"rows":[]}', "line 2: unknown field 'rows'"),
        ('{"type":"step","step":0,"t":1,"times":[0,0,0,0,0],"ended":[[0,"gone"]]}', "ended must say one of"),
        ('{"type":"line"}', 'line 2: must be an object with a "type" of header, step, end'),
        ("[]", "line 2: must be an object"),
        ("{", "line 2: is not JSON"),
        ("[" * 100_000, "line 2: is not to be read as JSON: it is nested too deeply"),
        ('{"type":[]}', 'line 2: must be an object with a "type"'),
        (f'{{"type":"step","step":0,"t":{10**400},"times":[0,0,0,0,0]}}', "line 2: t must be int"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path, line: str, text: str) -> None:
    path = tmp_path / "sim.jsonl"
    Simulated(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert text in str(caught.value)


def test_another_version_is_refused_by_its_number(tmp_path) -> None:
    path = tmp_path / "sim.jsonl"
    Simulated(path)
    path.write_text(path.read_text().replace('"version":3', '"version":4'))
    with pytest.raises(TraceFormatError, match="version must be 1 or 2 or 3, got 4"):
        read_trace(path)


def test_version_1_can_still_be_read(tmp_path) -> None:
    """Its header and arrivals have fewer fields; tokens and prompts are there."""
    path = tmp_path / "sim.jsonl"
    load = Simulated(path)
    load.add("a", [1] * 10, 3)
    load.run()
    first, second, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    first = {name: value for name, value in first.items() if name not in ("tokenizer", "texts")} | {"version": 1}
    for name in ("prompt_ids", "context"):
        del second["arrived"][0][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second, *rest)))
    trace = read_trace(path)
    assert (trace.header.version, trace.header.texts, trace.steps[1].tokens) == (1, True, [7])


@pytest.mark.parametrize("field", ['"found":[[9,1]]', '"decode":[9]', '"forks":[[9,9]]', '"ended":[[9,"stop"]]'])
def test_a_step_that_names_a_sequence_no_record_has_is_named(tmp_path, field: str) -> None:
    path = tmp_path / "sim.jsonl"
    Simulated(path)
    path.write_text(path.read_text() + f'{{"type":"step","step":4,"t":1,"times":[0,0,0,0,0],{field}}}\n')
    with pytest.raises(TraceFormatError, match="^step 4: "):
        summarize(read_trace(path))


@pytest.mark.parametrize(("path", "text"), [("", "be the path of a file"), ("no/such/run.jsonl", "can be written")])
def test_a_path_that_cannot_be_written_is_refused(path: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"trace must .*{text}"):
        TraceFile(path)
