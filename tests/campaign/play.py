"""Plays a case: requests come and go while an engine runs, every step is watched, and every answer is judged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from folovllm import LLMEngine
from folovllm.engine import ranks
from folovllm.outputs import RequestOutput
from tests.campaign.case import Asked, Case, Life, Tally, Wrong
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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        player = Player(case, model, Path(folder))
        try:
            player.play()
        except Wrong:
            raise
        except Exception as error:  # the engine's own, where none was due
            raise Wrong(f"crash, {type(error).__name__}", str(error)) from error
        return player.judge_all()


class Player:
    """Plays one case. folder: for the blocks that outlive an engine."""

    def __init__(self, case: Case, model: Model, folder: Path) -> None:
        self.case, self.model, self.folder = case, model, folder
        self.tally = Tally()
        self.lives: dict[str, Life] = {}  # the newest of each request
        self.gone: list[Life] = []  # those that ended with their engine
        self.open: dict[str, Asked] = {}
        self.failed: set[str] = set()
        self.step = self.longest = 0
        self._files: dict[bytes, dict[int, int]] = {}

    def play(self) -> None:
        self._begin()
        case, coming = self.case, sorted(self.case.requests, key=lambda asked: asked.at)
        for self.step in range(_most_steps(case)):
            if self.step in case.restarts:
                coming = self._restart() + coming
            if self.step in case.resets:
                self.engine.reset_prefix_cache()
            for asked in [asked for asked in coming if asked.at <= self.step]:
                coming.remove(asked)
                self._add(asked)
            for asked in case.requests:
                if asked.abort_at == self.step:
                    self.engine.abort_request(asked.name)
                    self.tally.aborted += self._close(asked.name)
            outputs = self._step()
            self.watch.look(set(self.open), outputs)
            if not coming and not self.engine.has_unfinished_requests():
                break
        else:
            raise Wrong("stuck", f"after {_most_steps(case)} steps {sorted(self.open)} are not done")
        try:
            assert_idle(self.engine)
        except AssertionError as error:
            raise Wrong("left behind", str(error)) from error
        self._end()

    def _begin(self) -> None:
        self.engine = _build(self.case, self.model, self.folder, self.tally.engines)
        self.tally.engines += 1
        self.watch = Watch(self.engine, self._files)
        least, most = self.case.longest, self.case.engine["max_model_len"]
        self.longest = self.engine.max_model_len
        if not least <= self.longest <= (least if self.case.model.window is None else most):
            raise Wrong("longest", f"sequences end at {self.longest} tokens: {least} fit, {most} were asked for")

    def _end(self) -> None:
        if (flushed := self.engine.core.flush()) is not None:
            flushed.result()
        stats, tally = self.engine.stats(), self.tally
        tally.steps, tally.preemptions = tally.steps + stats.steps, tally.preemptions + stats.preemptions
        tally.tier_tokens += stats.external_prefix_cache_hits
        tally.file_blocks += stats.kv_offload_tiering_chunk_hits

    def _restart(self) -> list[Asked]:
        """Another engine has the folder; returns what comes to it again."""
        self._end()
        lost = list(self.open.values())
        for asked in lost:
            self._close(asked.name)
            self.gone.append(self.lives.pop(asked.name))
        self._begin()
        self.tally.restarts += 1
        return lost

    def _close(self, name: str) -> bool:
        """Whether this request was open."""
        if name in self.open:
            self.lives[name].ended = self.step
        return self.open.pop(name, None) is not None

    def _add(self, asked: Asked) -> None:
        prompt = {"prompt_token_ids": asked.prompt, **({} if asked.salt is None else {"cache_salt": asked.salt})}
        lora = None if asked.voice is None else self.model.adapter(asked.voice)
        try:
            params = asked.pooling_params() if self.case.model.pooling else asked.sampling_params()
            self.engine.add_request(asked.name, prompt, params, priority=asked.priority, lora_request=lora)
        except ValueError as error:
            if not asked.refused:
                raise Wrong("refused", f"{asked.name}: {error}") from error
            self.tally.refused += 1
        else:
            if asked.refused:
                raise Wrong("accepted", f"{asked.name} has to be refused")
            self.open[asked.name], self.lives[asked.name] = asked, Life(asked, self.step)

    def _step(self) -> list[RequestOutput]:
        engine = self.engine
        try:
            outputs = engine.step()
        except RuntimeError as error:
            if str(error) != "campaign_raise":
                raise
            outputs = engine._take(set(engine._changed))  # what came of the others in this step
            ended = {output.request_id for output in outputs if output.finished}
            for name in self.open.keys() - engine.requests.keys() - ended:
                if "campaign_raise" not in (self.open[name].params.get("extra_args") or {}):
                    raise Wrong("failed", f"{name} ends in an error that another request made") from error
                self._close(name)
                self.failed.add(name)
        for output in outputs:
            if output.request_id not in self.open:
                raise Wrong("outputs", f"{output.request_id} is told of, and it is not open")
            self.lives[output.request_id].output = output
            if output.finished:
                self._close(output.request_id)
        return outputs

    def judge_all(self) -> Tally:
        judges = dict[str | None, Judge]()
        for asked in self.case.requests:
            output = self.lives[asked.name].output if asked.name in self.lives else None
            if output is not None:
                if asked.voice not in judges:
                    judges[asked.voice] = Judge(self.case, self.model.with_voice(asked.voice), self.longest)
                judges[asked.voice].judge(asked, output)
                self.tally.voiced += asked.voice is not None
                self.tally.cached_tokens += output.num_cached_tokens or 0
            elif not asked.refused and asked.abort_at is None and asked.name not in self.failed:
                raise Wrong("requests", f"{asked.name} never got an answer")
        if self._is_told():
            check_cached_tokens(self.case, [*self.lives.values(), *self.gone])
        self.tally.requests, self.tally.failed = len(self.case.requests), len(self.failed)
        for judge in judges.values():
            self.tally.add(judge.tally)
        return self.tally

    def _is_told(self) -> bool:
        """Whether all that was computed is known: beams and the losers of best_of compute what nobody sees."""
        all_params = [asked.params for asked in self.case.requests if not asked.refused]
        return not any(params.get("use_beam_search") or params.get("best_of") for params in all_params)


def _most_steps(case: Case) -> int:
    """Far more than any load of this size takes: each preemption can cost a prefill, each token a step."""
    tokens = sum(len(asked.prompt) + asked.params.get("max_tokens", 16) for asked in case.requests if not asked.refused)
    return 1000 + 20 * tokens


def _build(case: Case, model: Model, folder: Path, number: int) -> LLMEngine:
    """number: of the engine in its case. Two with one seed would draw with the same noise."""
    kwargs: dict[str, Any] = {"skip_tokenizer_init": model.tokenizer is None, **case.engine}
    spec = case.model
    head_bytes = spec.head_dim + 4 if spec.int8_cache else 4 * spec.head_dim
    size = case.engine.get("tensor_parallel_size", 1)
    num_kv_heads = -(-spec.num_kv_heads // size)
    block_bytes = 2 * spec.num_layers * num_kv_heads * head_bytes * case.engine["block_size"]
    if case.engine.get("speculative_config", {}).get("method") == "mtp":  # the head's are not rounded
        block_bytes += 2 * num_kv_heads * 4 * spec.head_dim * case.engine["block_size"]
    kwargs["swap_space"] = (case.swap_blocks + 0.5) * block_bytes / GIB if case.swap_blocks else 0.0
    kwargs["seed"] = case.engine.get("seed", 0) + number
    if case.host_blocks:
        kwargs["kv_offloading_size"] = (case.host_blocks + 0.5) * block_bytes * size / GIB
    if case.folder_blocks:
        kwargs |= {"kv_offloading_path": str(folder), "kv_offloading_path_size": case.folder_blocks * block_bytes / GIB}
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
