"""The engine around the scheduler: aborts at any moment, and failures of a step."""

from __future__ import annotations

import pytest

from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import params, run, scripted
from tests.m2.support import assert_idle, make_engine


def during_execute(engine, monkeypatch, action):
    """Have `action` run once, inside the next step, after the model has computed it."""
    execute = engine.runner.execute_model

    def and_act(scheduled):
        result = execute(scheduled)
        monkeypatch.setattr(engine.runner, "execute_model", execute)
        action()
        return result

    monkeypatch.setattr(engine.runner, "execute_model", and_act)


def break_forward(engine, monkeypatch, error):
    """Have the next forward raise `error`."""

    def forward(*args):
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(engine.runner.model, "forward", forward)


def texts(done):
    return {name: output.outputs[0].text for name, output in done.items()}


@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_abort_during_a_step_frees_once_and_is_silent(engine, monkeypatch, steps_before):
    engine.add_request("gone", "x", scripted("text", "more", n=2))
    engine.add_request("stays", "x", scripted("text"))
    for _ in range(steps_before):
        engine.step()
    during_execute(engine, monkeypatch, lambda: engine.abort_request("gone"))
    assert [out.request_id for out in engine.step()] == ["stays"]
    engine.scheduler.check_invariants()
    assert engine.stats().running_seqs == 1
    done, seen = run(engine)
    assert texts(done) == {"stays": "text"}
    assert {out.request_id for out in seen} == {"stays"}
    assert_idle(engine)


@pytest.mark.parametrize("during", [False, True])
def test_a_request_id_used_again_right_after_an_abort_is_a_new_request(engine, monkeypatch, during):
    """With its own row, its own generator and its own text, although the worker has not yet heard of the abort."""
    engine.add_request("alone", "zz", params(seed=3, max_tokens=9))
    alone = run(engine)[0]["alone"].outputs[0].token_ids
    engine.add_request("r", "longer than that", params(seed=3, max_tokens=30, ignore_eos=True))
    engine.add_request("other", "x", scripted("stays"))
    engine.step()
    engine.step()

    def again():
        engine.abort_request("r")
        engine.add_request("r", "zz", params(seed=3, max_tokens=9))

    if during:
        during_execute(engine, monkeypatch, again)
    else:
        again()
    done, _ = run(engine)
    assert done["r"].outputs[0].token_ids == alone
    assert done["other"].outputs[0].text == "stays"
    assert_idle(engine)


def test_a_request_id_used_again_after_a_broken_step_is_a_new_request(engine, monkeypatch):
    engine.add_request("alone", "zz", params(seed=3, max_tokens=9))
    alone = run(engine)[0]["alone"].outputs[0].token_ids
    engine.add_request("r", "x", params(seed=3, max_tokens=2, ignore_eos=True))
    run(engine)
    engine.add_request("other", "x", scripted("text"))
    monkeypatch.setattr(engine.runner, "_update_batch", lambda scheduled: 1 / 0)  # before it forgets who has ended
    with pytest.raises(ZeroDivisionError):
        engine.step()
    monkeypatch.undo()
    engine.add_request("r", "zz", params(seed=3, max_tokens=9))
    assert run(engine)[0]["r"].outputs[0].token_ids == alone


def test_a_broken_step_fails_those_who_took_part_and_nobody_who_waits(text_model_folder, monkeypatch):
    engine = make_engine(text_model_folder, max_num_seqs=2)
    for name in "abc":
        engine.add_request(name, "x", scripted("text"))
    engine.step()
    break_forward(engine, monkeypatch, MemoryError("no memory"))
    errors = []
    done = {}
    while engine.has_unfinished_requests():
        try:
            done |= {out.request_id: out for out in engine.step() if out.finished}
        except MemoryError as error:
            errors.append(str(error))
    assert errors == ["no memory"] * 2  # one for each that took part
    assert texts(done) == {"c": "text"}
    assert_idle(engine)


def test_a_new_request_under_the_name_of_an_aborted_one_outlives_the_broken_step(engine, monkeypatch):
    def again(scheduled):
        monkeypatch.undo()
        engine.abort_request("r")
        engine.add_request("r", "x", scripted("new"))
        raise MemoryError("no memory")

    engine.add_request("r", "x", scripted("old"))
    monkeypatch.setattr(engine.runner, "execute_model", again)
    assert engine.step() == []
    assert texts(run(engine)[0]) == {"r": "new"}


@register_logits_processor("m2_aborts")
class Aborts(LogitsProcessor):
    """Calls extra_args["m2_aborts"] at a row's second token: a user's code that reaches back into the engine."""

    def apply(self, logits):
        for row in self.rows:
            if len(row.output_token_ids) == 1:
                row.params.extra_args["m2_aborts"]()
        return logits


def test_a_processor_may_abort_its_own_request(engine):
    class Abort:
        def __deepcopy__(self, memo):
            return self  # the engine keeps a copy of the parameters: an engine in there would be copied along

        def __call__(self):
            engine.abort_request("r")

    engine.add_request("r", "x", params(extra_args={"m2_aborts": Abort()}))
    engine.add_request("other", "x", scripted("text"))
    assert texts(run(engine)[0]) == {"other": "text"}
    assert_idle(engine)


@register_logits_processor("m2_fails_for_the_second")
class FailsForTheSecond(LogitsProcessor):
    """Of two siblings with seeds 7 and 8."""

    def apply(self, logits):
        if any(row.generator.initial_seed() == 8 for row in self.rows):
            raise ValueError("the second")
        return logits


def test_a_token_of_a_request_that_fails_in_the_same_step_is_not_counted(engine):
    """One of two siblings fails; the other has drawn its token, which nothing will come of."""
    engine.add_request("r", "x", params(n=2, seed=7, extra_args={"m2_fails_for_the_second": 1}))
    with pytest.raises(ValueError, match="^the second$"):
        engine.step()
    assert engine.stats().output_tokens == 0
    assert_idle(engine)
