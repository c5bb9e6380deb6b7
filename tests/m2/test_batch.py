"""One forward for the whole batch, and each row its own: what one asks for, or does, is nobody else's business."""

from __future__ import annotations

import pytest

from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import EOS, params, run, scripted
from tests.m2.support import assert_idle, counting_forwards, make_engine


@pytest.fixture(scope="module")
def engine(text_model_folder):
    """Room for twelve sequences; every test leaves it empty."""
    engine = make_engine(text_model_folder, max_num_seqs=12)
    yield engine
    assert_idle(engine)


def endless(**kwargs):
    return params(**{"ignore_eos": True, **kwargs})


def test_five_prefills_and_seven_decodes_are_one_forward(engine):
    for i in range(7):
        engine.add_request(f"decode{i}", [1] * (i + 1), endless(max_tokens=4))
    engine.step()
    for i in range(5):
        engine.add_request(f"prefill{i}", [2] * (i + 3), endless(max_tokens=2))
    with counting_forwards(engine) as sizes:
        engine.step()
        assert sizes == [7 + 3 + 4 + 5 + 6 + 7]
        engine.step()
        assert sizes[1:] == [12]
    run(engine)


def test_a_step_without_requests_runs_nothing(engine):
    with counting_forwards(engine) as sizes:
        assert engine.step() == []
    assert sizes == []


def test_what_a_forward_computes_is_each_sequences_next_tokens_at_their_positions(engine):
    """Read off the model's own arguments: two paths of ours that are both off by one would still agree."""
    seen = []
    handle = engine.runner.model.register_forward_pre_hook(
        lambda module, args: seen.append((args[0].tolist(), args[1].tolist()))
    )
    engine.add_request("a", [10, 11, 12], scripted("abc", max_tokens=3))
    engine.step()
    engine.add_request("b", [20, 21], scripted("xyz", max_tokens=2))
    run(engine)
    handle.remove()
    a, b, _ = b"abc"  # the last token that a sequence draws is never fed back
    assert seen == [
        ([10, 11, 12], [0, 1, 2]),
        ([a, 20, 21], [3, 0, 1]),
        ([b, ord("x")], [4, 2]),
    ]


def test_every_row_has_its_own_parameters(engine):
    engine.add_request("short", "x", scripted("abcdef", max_tokens=2))
    engine.add_request("stop string", "x", scripted("abcdef", stop=["de"]))
    engine.add_request("keeps stop", "x", scripted("abcdef", stop=["de"], include_stop_str_in_output=True))
    engine.add_request("stop id", "x", scripted("abcdef", stop_token_ids=[ord("c")]))
    engine.add_request("eos", "x", scripted("ab"))
    engine.add_request("past eos", "x", scripted("ab", ignore_eos=True, max_tokens=5))
    engine.add_request("no text", "x", scripted("ab", detokenize=False))
    engine.add_request("at least", "x", params(min_tokens=5, max_tokens=5, logit_bias={EOS: 100.0}, temperature=0))
    engine.add_request("only", "x", endless(allowed_token_ids=[65], max_tokens=3))
    engine.add_request("two", "x", scripted("one", "two", n=2))
    done, _ = run(engine)
    completions = {name: output.outputs[0] for name, output in done.items()}
    at_least = completions.pop("at least").token_ids
    assert {name: (c.text, c.finish_reason, c.stop_reason) for name, c in completions.items()} == {
        "short": ("ab", "length", None),
        "stop string": ("abc", "stop", "de"),
        "keeps stop": ("abcde", "stop", "de"),
        "stop id": ("ab", "stop", ord("c")),
        "eos": ("ab", "stop", None),
        "past eos": ("ab", "length", None),
        "no text": ("", "stop", None),
        "only": ("AAA", "length", None),
        "two": ("one", "stop", None),
    }
    assert completions["past eos"].token_ids == [*b"ab", EOS, EOS, EOS]
    assert completions["no text"].token_ids == [*b"ab", EOS]
    assert (len(at_least), EOS in at_least) == (5, False)
    assert done["two"].outputs[1].text == "two"


def test_more_sequences_than_places_all_end(text_model_folder):
    engine = make_engine(text_model_folder, max_num_seqs=2)
    scripts = ("a", "bbb", "cc", "d", "eeee")
    engine.add_request("r", "x", scripted(*scripts, n=5))
    engine.add_request("other", "x", scripted("f"))
    done, _ = run(engine)
    assert tuple(c.text for c in done["r"].outputs) == scripts
    assert done["other"].outputs[0].text == "f"
    assert_idle(engine)


def seeded(**kwargs):
    return endless(**{"seed": 7, "max_tokens": 12, **kwargs})


def test_a_seeded_request_draws_the_same_in_any_company(engine):
    engine.add_request("alone", "x", seeded())
    alone = run(engine)[0]["alone"].outputs[0].token_ids
    assert len(set(alone)) > 4  # another draw at every step
    engine.add_request("before", "yy", endless(max_tokens=5))
    engine.step()
    engine.add_request("r", "x", seeded())
    for i in range(3):
        engine.add_request(f"noise{i}", "z" * i, endless(seed=i, top_p=0.5, max_tokens=2 + i))
        engine.step()
    assert run(engine)[0]["r"].outputs[0].token_ids == alone


def test_logprobs_are_cut_to_what_each_request_asked_for(engine):
    for k in (None, 0, 2, 5):
        engine.add_request(str(k), "x", endless(logprobs=k, temperature=0, max_tokens=3))
    done, _ = run(engine)
    completions = {name: output.outputs[0] for name, output in done.items()}
    assert completions["None"].logprobs is None
    assert completions["None"].cumulative_logprob is None
    for k in (0, 2, 5):
        entries = completions[str(k)].logprobs
        assert [len(entry) for entry in entries] == [max(k, 1)] * 3  # the chosen one is the likeliest: greedy
        assert [next(iter(entry)) for entry in entries] == completions[str(k)].token_ids


@register_logits_processor("m2_breaks")
class Breaks(LogitsProcessor):
    """Raises once a row has said extra_args["m2_breaks"] tokens; returns nothing if that is None."""

    def apply(self, logits):
        for row in self.rows:
            limit = row.params.extra_args["m2_breaks"]
            if limit is None:
                return None
            if len(row.output_token_ids) == limit:
                raise RuntimeError("boom")
        logits[:, 65] += 1.0
        return logits


@pytest.mark.parametrize("limit", [0, 3, None])
def test_a_failing_logits_processor_takes_down_its_own_request_and_changes_no_ones_draws(engine, limit):
    """Some neighbours are edited by the same processor, which then runs on them twice."""
    edited = {"extra_args": {"m2_breaks": 99}}
    company = {"plain": {}, "edited": edited, "top-k": {"top_k": 9, "seed": 3}, "n": {"n": 2}}
    alone = {}
    for name, kwargs in company.items():
        engine.add_request(name, "x", seeded(**kwargs))
        alone |= run(engine)[0]
    for name, kwargs in company.items():
        engine.add_request(name, "x", seeded(**kwargs))
    engine.add_request("bad", "y", seeded(extra_args={"m2_breaks": limit}))
    done, errors = {}, []
    while engine.has_unfinished_requests():
        try:
            done |= {out.request_id: out for out in engine.step() if out.finished}
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert "boom" in errors[0] or "logits processor Breaks must return a tensor, got NoneType" in errors[0]
    assert set(done) == set(company)
    for name in company:
        said = [[c.token_ids for c in output.outputs] for output in (done[name], alone[name])]
        assert said[0] == said[1], name


@register_logits_processor("m2_lonely")
class Lonely(LogitsProcessor):
    """Fails wherever it has more than one row: alone, nobody is the culprit."""

    def apply(self, logits):
        if len(logits) > 1:
            raise RuntimeError("crowded")
        return logits


def test_where_no_culprit_is_found_only_those_with_processors_of_their_own_fail(engine):
    company = {"plain": {}, "edited": {"logit_bias": {65: 1.0}}, "top-k": {"top_k": 9, "seed": 3}}
    alone = {}
    for name, kwargs in company.items():
        engine.add_request(name, "x", seeded(**kwargs))
        alone |= run(engine)[0]
    lonely = [engine.generate_stream("x", params(extra_args={"m2_lonely": 1})) for _ in range(2)]
    for name, kwargs in company.items():
        engine.add_request(name, "x", seeded(**kwargs))
    for stream in lonely:
        with pytest.raises(RuntimeError, match="crowded"):
            list(stream)
    done, _ = run(engine)
    for name in company:
        assert done[name].outputs[0].token_ids == alone[name].outputs[0].token_ids
