"""A case of the campaign: one model, one engine, and the requests that come to it, as plain data.

A case is what is drawn, played, judged and made smaller. Written as JSON, it can be played again
anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from folovllm import PoolingParams, SamplingParams
from folovllm.outputs import RequestOutput


@dataclass(frozen=True)
class ModelSpec:
    """A random model. `text`: it has a tokenizer whose token i is byte i, EOS 256 and BOS 257. `quantization`: how the
    engine rounds its layers' weights when it loads them. `int8_cache`: keys and values are codes of 8 bits.
    `transformers`: its layers are computed by transformers' code. `window`: of some layers, or of all. `tables`: how
    many groups of layers there are, each with blocks of its own. `pooling`: its answer is a vector, made of the last
    row or of the mean; None: it draws tokens."""

    kind: str = "llama"
    vocab_size: int = 32
    num_layers: int = 1
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 8
    tied: bool = False
    eos: tuple[int, ...] = ()
    text: bool = False
    quantization: str | None = None
    int8_cache: bool = False
    transformers: bool = False
    window: int | None = None
    tables: int = 1
    pooling: Literal["LAST", "MEAN"] | None = None

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim


@dataclass
class Asked:
    """One request: when it comes, what it asks, and when it is aborted; times are numbers of steps.

    `params` are keywords of SamplingParams, or of PoolingParams where the model pools. `voice`: the adapter that
    answers. `refused`: the engine has to say no when it comes.
    """

    name: str
    prompt: list[int]
    params: dict[str, Any] = field(default_factory=dict)
    at: int = 0
    abort_at: int | None = None
    priority: int = 0
    salt: str | None = None
    voice: str | None = None
    refused: bool = False

    def sampling_params(self) -> SamplingParams:
        return SamplingParams(**self.params)

    def pooling_params(self) -> PoolingParams:
        return PoolingParams(**self.params)


@dataclass
class Case:
    """`engine` holds keywords of EngineConfig.from_kwargs. The swap space and the tiers behind the pool, host memory
    and a folder, are counted in blocks, as their size in GiB depends on the model; 0: there is none. `resets`: the
    steps at which the prefix cache is reset. `restarts`: those at which the engine is gone; the next one has the same
    folder, and what was unfinished is asked again."""

    model: ModelSpec = ModelSpec()
    engine: dict[str, Any] = field(default_factory=dict)
    swap_blocks: int = 0
    requests: list[Asked] = field(default_factory=list)
    host_blocks: int = 0
    folder_blocks: int = 0
    resets: list[int] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """The length at which every sequence ends: the model's limit, or all blocks there are. Where windows give
        blocks back, the engine may know a longer one."""
        blocks = self.engine["num_kv_blocks"] // (1 if self.engine.get("tensor_parallel_size") else self.model.tables)
        return int(min(self.engine["max_model_len"], blocks * self.engine["block_size"]))

    @property
    def max_num_seqs(self) -> int:
        budget = self.engine.get("max_num_batched_tokens") or 2**30
        return int(min(self.engine["max_num_seqs"], budget))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Case:
        data = json.loads(text)
        model = data["model"]
        requests = data["requests"] = [Asked(**asked) for asked in data["requests"]]
        for asked in requests:  # the keys of a JSON object are strings
            if bias := asked.params.get("logit_bias"):
                asked.params["logit_bias"] = {int(token): value for token, value in bias.items()}
        model["eos"] = tuple(model["eos"])
        return cls(**{**data, "model": ModelSpec(**model)})

    @classmethod
    def read(cls, path: str | Path) -> Case:
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


@dataclass
class Life:
    """A request in one engine. begun, ended: by its steps; output: the newest."""

    asked: Asked
    begun: int
    ended: float = math.inf
    output: RequestOutput | None = None

    def texts(self) -> list[list[int]]:
        """All that may have been computed for it."""
        said = [] if self.output is None else [completion.token_ids for completion in self.output.outputs]
        return [self.asked.prompt, *(self.asked.prompt + token_ids for token_ids in said)]


class Wrong(AssertionError):  # noqa: N818  "raise Wrong" says it
    """What the campaign looks for. `kind` says what sort of thing is wrong: a case is made smaller only as long as
    the same sort stays wrong."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass
class Tally:
    """What has been looked at so far."""

    engines: int = 0
    requests: int = 0
    refused: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    tier_tokens: int = 0  # of those, found behind the pool
    file_blocks: int = 0
    restarts: int = 0
    tokens: int = 0  # compared with the reference
    hf_tokens: int = 0  # compared with Hugging Face's generate
    vectors: int = 0
    voiced: int = 0  # answers by adapters
    beams: int = 0
    logprobs: int = 0
    ties: int = 0
    draws: list[float] = field(default_factory=list)
    """Of each unseeded draw, where it fell: uniform in [0, 1) if the distribution is the right one."""

    def add(self, other: Tally) -> None:
        for one in dataclasses.fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
