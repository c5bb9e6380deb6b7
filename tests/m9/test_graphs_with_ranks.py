"""CUDA graphs and ranks, on the stand-in for a GPU: a group of one, whose messages another runner repeats afterwards.
The stand-in takes one thread at a time, so two ranks cannot record there together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine import llm_engine
from folovllm.worker.follower import Command, Follower
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner import make_mover
from tests.fake_cuda import FakeCuda
from tests.m4.conftest import fake_cuda, patch_once_a_launch  # noqa: F401
from tests.m8.test_speculation_cuda import PROMPTS, SMALL, folder  # noqa: F401

pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # interpreted: some seconds each


class Alone:
    """What all of one rank do together."""

    address = None

    def all_reduce(self, x: torch.Tensor) -> None: ...

    def gather(self, x: torch.Tensor, widths: list[int]) -> list[torch.Tensor]:
        return [x]

    def broadcast(self, x: torch.Tensor) -> None: ...

    def failed(self) -> None: ...


class Told(GroupCoordinator):
    """Of one rank, which keeps what it would send."""

    def __init__(self) -> None:
        super().__init__(0, 1, {}, Alone())  # type: ignore[arg-type]
        self.messages: list[tuple[list[int], torch.Tensor | None]] = []

    def lead(self, message: list[int], x: torch.Tensor | None, work: Callable[[], Any]) -> Any:
        self.messages.append(([int(number) for number in message], None if x is None else x.clone()))
        return super().lead(message, x, work)


class Repeated:
    """The same messages, as another rank's group has them."""

    def __init__(self, messages: list[tuple[list[int], torch.Tensor | None]]) -> None:
        self.links, self.tensor, self._messages = {0: self}, None, iter(messages)

    def receive(self, *args: Any) -> Any:
        if args:
            return args[0].copy_(self.tensor)
        try:
            message, self.tensor = next(self._messages)
        except StopIteration:
            raise EOFError from None
        return message


def clear(kv_cache: KVCache) -> None:
    for tensor in kv_cache.tensors:
        tensor.zero_()


def test_steps_are_replayed_by_all_from_the_arrays_of_rank_0(
    folder: Path,  # noqa: F811
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    group = Told()
    with monkeypatch.context() as patch:
        patch.setattr(llm_engine, "start_ranks", lambda *args: group)
        led = LLM(str(folder), **SMALL)
    clear(led.engine.runner.kv_cache)
    said = [output.outputs[0].token_ids for output in led.generate(PROMPTS, asked, use_tqdm=False)]
    plain = LLM(str(folder), **SMALL)
    assert said == [output.outputs[0].token_ids for output in plain.generate(PROMPTS, asked, use_tqdm=False)]
    assert {message[0] for message, _ in group.messages} == {Command.FORWARD, Command.LOGITS, Command.REPLAY}

    other = LLM(str(folder), **SMALL).engine.runner
    clear(other.kv_cache)
    other_group: Any = Repeated(group.messages)
    follower = Follower(
        other.model, make_mover(other.kv_cache, 0, other.device), other.graphs, other_group, other.device
    )
    with pytest.raises(EOFError):
        follower.run()
    for mine, theirs in zip(led.engine.runner.kv_cache.tensors, other.kv_cache.tensors, strict=True):
        assert mine[:, 1:].any()
        assert torch.equal(mine[:, 1:].cpu(), theirs[:, 1:].cpu())  # but for the null block's
