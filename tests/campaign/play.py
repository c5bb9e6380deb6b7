"""Plays a case: requests come and go while an engine runs, every step is watched, and every answer is judged."""

from __future__ import annotations

from typing import Any
from unittest import mock

from folovllm import LLMEngine
from folovllm.engine import ranks
from folovllm.outputs import RequestOutput
from tests.campaign.case import Asked, Case, Tally, Wrong
from tests.campaign.invariants import Watch
from tests.campaign.judge import Judge, check_cached_tokens
from tests.campaign.models import Model, Models
from tests.m2.support import assert_idle, make_engine
from tests.m9.ranks_support import start_thread

GIB = 1 << 30


def examine(case: Case, models: Models) -> Tally:
    """Raises Wrong where anything is not as it has to be; else says what was looked at."""
    model = models.get(case.model, case.engine.get("tensor_parallel_size", 1))
    model.forget()
    player = Player(case, model)
    try:
        player.play()
    except Wrong:
        raise
    except Exception as error:  # the engine's own, where none was due
        raise Wrong(f"crash, {type(error).__name__}", str(error)) from error
    return player.judge_all()


class Player:
    """Plays one case."""

    def __init__(self, case: Case, model: Model) -> None:
        self.case, self.model = case, model
        self.tally = Tally(engines=1)
        self.last: dict[str, RequestOutput] = {}  # of each request, its newest output
        self.texts: dict[str, list[list[int]]] = {}
        self.open: dict[str, Asked] = {}
        self.failed: set[str] = set()
        self.longest = 0

    def play(self) -> None:
        engine, least, most = _build(self.case, self.model), self.case.longest, self.case.engine["max_model_len"]
        self.longest = engine.max_model_len
        if not least <= self.longest <= (least if self.case.model.window is None else most):
            raise Wrong("longest", f"sequences end at {self.longest} tokens: {least} fit, {most} were asked for")
        watch = Watch(engine)
        coming = sorted(self.case.requests, key=lambda asked: asked.at)
        leaving = [asked for asked in self.case.requests if asked.abort_at is not None]
        for step in range(_most_steps(self.case)):
            for asked in [asked for asked in coming if asked.at <= step]:
                coming.remove(asked)
                self._add(engine, asked)
            for asked in leaving:
                if asked.abort_at == step:
                    engine.abort_request(asked.name)
                    self.tally.aborted += self.open.pop(asked.name, None) is not None
            outputs = self._step(engine)
            watch.look(set(self.open), outputs)
            if not coming and not engine.has_unfinished_requests():
                break
        else:
            raise Wrong("stuck", f"after {_most_steps(self.case)} steps {sorted(self.open)} are not done")
        try:
            assert_idle(engine)
        except AssertionError as error:
            raise Wrong("left behind", str(error)) from error
        stats = engine.stats()
        self.tally.steps, self.tally.preemptions = stats.steps, stats.preemptions

    def _add(self, engine: LLMEngine, asked: Asked) -> None:
        prompt = {"prompt_token_ids": asked.prompt, **({} if asked.salt is None else {"cache_salt": asked.salt})}
        try:
            engine.add_request(asked.name, prompt, asked.sampling_params(), priority=asked.priority)
        except ValueError as error:
            if not asked.refused:
                raise Wrong("refused", f"{asked.name}: {error}") from error
            self.tally.refused += 1
        else:
            if asked.refused:
                raise Wrong("accepted", f"{asked.name} has to be refused")
            self.open[asked.name] = asked

    def _step(self, engine: LLMEngine) -> list[RequestOutput]:
        try:
            outputs = engine.step()
        except RuntimeError as error:
            if str(error) != "campaign_raise":
                raise
            outputs = engine._take(set(engine._changed))  # what came of the others in this step
            ended = {output.request_id for output in outputs if output.finished}
            for name in self.open.keys() - engine.requests.keys() - ended:
                if "campaign_raise" not in (self.open.pop(name).params.get("extra_args") or {}):
                    raise Wrong("failed", f"{name} ends in an error that another request made") from error
                self.failed.add(name)
        for output in outputs:
            if output.request_id not in self.open:
                raise Wrong("outputs", f"{output.request_id} is told of, and it is not open")
            self.last[output.request_id] = output
            if output.finished:
                del self.open[output.request_id]
        return outputs

    def judge_all(self) -> Tally:
        judge = Judge(self.case, self.model, self.longest)
        for asked in self.case.requests:
            output = self.last.get(asked.name)
            if output is not None:
                judge.judge(asked, output)
            elif not asked.refused and asked.abort_at is None and asked.name not in self.failed:
                raise Wrong("requests", f"{asked.name} never got an answer")
        if self._is_told():
            check_cached_tokens(self.case, self.last, self._texts)
        self.tally.cached_tokens = sum(output.num_cached_tokens for output in self.last.values())
        self.tally.requests, self.tally.failed = len(self.case.requests), len(self.failed)
        self.tally.add(judge.tally)
        return self.tally

    def _texts(self, name: str) -> list[list[int]]:
        asked = next(asked for asked in self.case.requests if asked.name == name)
        said = [completion.token_ids for completion in self.last[name].outputs] if name in self.last else []
        return [asked.prompt, *(asked.prompt + token_ids for token_ids in said)]

    def _is_told(self) -> bool:
        """Whether all that was computed is known: beams and the losers of best_of compute what nobody sees."""
        all_params = [asked.params for asked in self.case.requests if not asked.refused]
        return not any(params.get("use_beam_search") or params.get("best_of") for params in all_params)


def _most_steps(case: Case) -> int:
    """Far more than any load of this size takes: each preemption can cost a prefill, each token a step."""
    tokens = sum(len(asked.prompt) + asked.params.get("max_tokens", 16) for asked in case.requests if not asked.refused)
    return 1000 + 20 * tokens


def _build(case: Case, model: Model) -> LLMEngine:
    kwargs: dict[str, Any] = {"skip_tokenizer_init": model.tokenizer is None, **case.engine}
    spec = case.model
    head_bytes = spec.head_dim + 4 if spec.int8_cache else 4 * spec.head_dim
    num_kv_heads = -(-spec.num_kv_heads // case.engine.get("tensor_parallel_size", 1))
    block_bytes = 2 * spec.num_layers * num_kv_heads * head_bytes * case.engine["block_size"]
    kwargs["swap_space"] = (case.swap_blocks + 0.5) * block_bytes / GIB if case.swap_blocks else 0.0
    kwargs["quantization"] = spec.quantization
    if spec.transformers:
        kwargs["model_impl"] = "transformers"
    if spec.int8_cache:
        kwargs["kv_cache_dtype"] = "int8"
    with mock.patch.object(ranks, "start_process", start_thread):
        engine = make_engine(model.folder, **kwargs)
    if engine.scheduler.drafts.length is not None:
        engine.scheduler.drafts.length.costs = None  # as many guesses as there is room for, on every machine
    return engine
