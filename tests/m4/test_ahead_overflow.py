"""A row that overflows while steps run ahead of its tokens: it fails by name, once, and nobody else notices."""

from __future__ import annotations

from folovllm import EngineConfig, LLMEngine
from folovllm.errors import LogitsNotFiniteError
from tests.m1.overflow import BOMB, make_overflow_model
from tests.m1.support import params, run
from tests.m2.support import assert_idle
from tests.m4.ahead_support import Watch, told


def test_a_token_that_overflows_later_is_fed_to_a_step_ahead(tmp_path):
    """`bad` draws BOMB. The step after it overflows, and the one after that is launched before this is known."""
    folder = make_overflow_model(tmp_path, max_position_embeddings=64)
    config = {"async_scheduling": True, "dtype": "float16", "device": "cpu"}
    engine = LLMEngine(EngineConfig.from_kwargs(model=str(folder), **config))
    wanted = {
        "greedy": params(temperature=0, max_tokens=9, ignore_eos=True),
        "drawn": params(seed=3, max_tokens=9, ignore_eos=True, logprobs=2),
    }
    alone = {}
    for name, one in wanted.items():
        engine.add_request(name, "good", one)
        alone |= run(engine)[0]
    watch = Watch(engine)
    engine.add_request("bad", "good", params(temperature=0, logit_bias={BOMB: 100.0}))
    for name, one in wanted.items():
        engine.add_request(name, "good", one)
    errors, done = [], {}
    while engine.has_unfinished_requests():
        try:
            done |= {output.request_id: output for output in engine.step() if output.finished}
        except LogitsNotFiniteError as error:
            errors.append(str(error))
    assert len(errors) == 1
    assert errors[0].startswith("request 'bad': its logits are not finite")
    assert any(seq.request_id == "bad" for step in watch.ahead for seq in step.scheduled_seqs)
    for name in wanted:
        assert told(done[name]) == told(alone[name])
    assert_idle(engine)
