"""One caller at a time: whose outputs a step brings is never a question."""

from __future__ import annotations

import pytest
import torch

from folovllm import LLM
from tests.m1.support import assert_empty, params, run, scripted

BUSY = r"^the engine has unfinished requests: {}; step it, or read its stream, to the end, or abort them$"


def test_a_stream_beside_another_request_is_refused(engine):
    engine.add_request("r", "x", scripted("hello"))
    with pytest.raises(RuntimeError, match=BUSY.format("r")):
        engine.generate_stream("y", scripted("hello"))
    assert run(engine)[0]["r"].outputs[0].text == "hello"


def test_of_two_streams_the_second_to_begin_is_refused(engine):
    first, second = engine.generate_stream("y", scripted("one")), engine.generate_stream("z", scripted("two"))
    next(first)
    with pytest.raises(RuntimeError, match=BUSY.format("stream-0")):
        next(second)
    first.close()
    assert_empty(engine)


def test_generate_beside_a_stream_is_refused_and_leaves_the_stream_whole(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu")
    stream = llm.engine.generate_stream("x", scripted("hello"))
    text = next(stream).outputs[0].text
    with pytest.raises(RuntimeError, match=BUSY.format("stream-0")):
        llm.generate("y", scripted("other"), use_tqdm=False)
    assert text + "".join(out.outputs[0].text for out in stream) == "hello"
    assert llm.generate("y", scripted("other"), use_tqdm=False)[0].outputs[0].text == "other"


def test_an_interrupted_step_can_be_asked_for_again(engine, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    seeded = params(seed=3, max_tokens=8, ignore_eos=True)
    engine.add_request("whole", "x", seeded)
    whole = run(engine)[0]["whole"].outputs[0].token_ids
    engine.add_request("again", "x", seeded)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "compute_logits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert run(engine)[0]["again"].outputs[0].token_ids == whole


def test_running_out_of_memory_for_the_cache_takes_one_request_down(engine, monkeypatch):
    def reserve_one_layer(shape, _empty=torch.empty, _left=[1], **kwargs):  # noqa: B006  counts its calls
        if _left[0] == 0:
            raise RuntimeError("out of memory")
        _left[0] -= 1
        return _empty(shape, **kwargs)

    short, long = (params(max_tokens=n, ignore_eos=True) for n in (3, 50))
    engine.add_request("first", "x", short)
    run(engine)
    engine.add_request("long", "x", long)
    with monkeypatch.context() as patch:
        patch.setattr("folovllm.worker.kv_cache.torch.empty", reserve_one_layer)
        with pytest.raises(RuntimeError, match="out of memory"):
            run(engine)
    engine.add_request("next", "x", short)
    assert len(run(engine)[0]["next"].outputs[0].token_ids) == 3
