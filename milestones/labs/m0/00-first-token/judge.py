from folovllm.outputs import RequestMetrics
from lab_judge import expect, invariant


@invariant(1)
def test_half_a_second():
    expect(RequestMetrics(arrival_time=10.0, first_token_time=10.5).ttft, 0.5)


@invariant(1)
def test_the_end_has_no_part_in_it():
    expect(RequestMetrics(arrival_time=10.0, first_token_time=10.5, finished_time=13.0).ttft, 0.5)


@invariant(1)
def test_it_is_not_rounded_and_may_be_asked_again():
    metrics = RequestMetrics(arrival_time=10.0, first_token_time=10.03125)
    expect((metrics.ttft, metrics.ttft), (0.03125, 0.03125))


@invariant(1)
def test_asking_changes_no_time():
    metrics = RequestMetrics(arrival_time=10.0, first_token_time=10.5)
    assert metrics.ttft == 0.5
    expect((metrics.arrival_time, metrics.first_token_time, metrics.finished_time), (10.0, 10.5, None))


@invariant(2)
def test_no_token_yet():
    expect(RequestMetrics(arrival_time=10.0).ttft, None)


@invariant(2)
def test_asking_makes_no_token():
    metrics = RequestMetrics(arrival_time=10.0)
    expect((metrics.ttft, metrics.ttft, metrics.first_token_time), (None, None, None))


@invariant(2)
def test_a_clock_that_began_at_zero():
    expect(RequestMetrics(arrival_time=0.0, first_token_time=0.0).ttft, 0.0)
