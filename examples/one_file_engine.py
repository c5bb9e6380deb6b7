"""A whole LLM inference engine in one file, from a prompt to streamed text. Read it from top to bottom: an hour.

    text ─ tokenizer ─▶ Request ─ schedule() ─▶ plan: which request computes how many tokens in this step
                          ▲                      │
                          └─ one more token ─ sample() ◀─ logits ─ Qwen3.forward() ⇄ keys and values in blocks

It schedules continuously, cuts long prompts into chunks, keeps keys and values in blocks of one pool, finds shared
prefixes again, makes room by preemption, and draws with temperature and top-p.
Run it: python examples/one_file_engine.py
"""

from __future__ import annotations

import argparse
import hashlib
import json
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.columns import Columns
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

EMBEDDED = Path(str(files("folovllm") / "assets" / "embedded"))  # a Qwen3 of 1.2 million parameters


# 1. A request ---------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Request:
    """What one user asked for, and how far it is."""

    prompt: list[int]
    max_tokens: int = 64
    temperature: float = 0.0  # 0: the likeliest token, always
    top_p: float = 1.0
    seed: int = 0
    output: list[int] = field(default_factory=list)
    num_computed: int = 0  # tokens whose keys and values are in the cache
    blocks: list[int] = field(default_factory=list)  # where they are: `size` tokens in each, in order
    names: list[bytes] = field(default_factory=list)  # of its full blocks, see name_of()

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


# 2. Memory: a pool of blocks ------------------------------------------------------------------------------------------
class Pool:
    """Blocks of the cache, by number. A block is free, or some requests refer to it.

    A free block keeps its keys and values until it is taken for others. So a block whose name comes again is found, and
    its tokens need not be computed: this is prefix caching.
    """

    def __init__(self, num_blocks: int) -> None:
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))  # the one that was free for the longest time comes first
        self.by_name: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}

    def take(self) -> int:
        """A block to write to; whatever it held is forgotten."""
        block, _ = self.free.popitem(last=False)
        if (name := self.names.pop(block, None)) is not None:
            del self.by_name[name]
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more request refers to a block that was found by its name."""
        self.free.pop(block, None)
        self.refs[block] += 1

    def give_back(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free[block] = None

    def remember(self, block: int, name: bytes) -> None:
        """A block has been filled. Where another has the same name already, that one is enough."""
        if name not in self.by_name:
            self.by_name[name], self.names[block] = block, name


def name_of(before: bytes, tokens: list[int]) -> bytes:
    """A block's name says what its tokens are and what came before them: keys and values depend on both."""
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


# 3. Time: what the next step computes ---------------------------------------------------------------------------------
class Scheduler:
    """Decides for each step which requests compute how many tokens, under two limits: tokens in a step, and blocks."""

    def __init__(self, pool: Pool, block_size: int, max_tokens_in_step: int) -> None:
        self.pool, self.block_size, self.max_tokens_in_step = pool, block_size, max_tokens_in_step
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order in which they were admitted

    def add(self, request: Request) -> None:
        """Raises ValueError: the request could never run, not even alone."""
        if not request.prompt:
            raise ValueError("prompt must have at least one token, got none")
        needed = self.blocks_for(len(request.prompt) + request.max_tokens)
        if needed > len(self.pool.refs):
            raise ValueError(
                f"prompt and max_tokens must fit into {len(self.pool.refs)} blocks, got {len(request.prompt)} + "
                f"{request.max_tokens} tokens, which need {needed}: shorten one of them or make a larger pool"
            )
        self.waiting.append(request)

    def schedule(self) -> dict[Request, int]:
        """How many tokens each request computes. A decode is one token; a prompt may come in several chunks."""
        plan: dict[Request, int] = {}
        budget = self.max_tokens_in_step
        while budget and len(plan) < len(self.running):
            request = self.running[len(plan)]
            wanted = min(len(request.tokens) - request.num_computed, budget)
            if not self.make_room(request, wanted):
                break  # it has been preempted itself, and it was the last
            plan[request] = wanted
            budget -= wanted
        while self.waiting and budget:
            request = self.waiting[0]
            self.find_prefix(request)
            missing = len(request.tokens) - request.num_computed
            if not self.reserve(request, missing):  # all of it now, or its next chunk would have no room
                self.release(request)
                break  # those behind it wait too: first come, first served
            self.running.append(self.waiting.popleft())
            plan[request] = min(missing, budget)
            budget -= plan[request]
        return plan

    def make_room(self, request: Request, wanted: int) -> bool:
        """Take blocks for `wanted` more tokens; from the newest requests where none are free. False: it was the newest.

        Who is preempted loses its blocks and keeps its tokens. It computes them again later.
        """
        while not self.reserve(request, wanted):
            newest = self.running.pop()
            self.release(newest)
            self.waiting.appendleft(newest)
            if newest is request:
                return False
        return True

    def reserve(self, request: Request, wanted: int) -> bool:
        """Take the blocks that `wanted` more tokens need; none, if there are too few."""
        missing = self.blocks_for(request.num_computed + wanted) - len(request.blocks)
        if missing > len(self.pool.free):
            return False
        request.blocks += [self.pool.take() for _ in range(missing)]
        return True

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)  # rounded up

    def find_prefix(self, request: Request) -> None:
        """Refer to blocks that hold the beginning of this request already. One token has to remain: without a token to
        compute there are no logits."""
        size, tokens, name = self.block_size, request.tokens, b""
        for start in range(0, (len(tokens) - 1) // size * size, size):
            name = name_of(name, tokens[start : start + size])
            if (block := self.pool.by_name.get(name)) is None:
                return
            self.pool.share(block)
            request.blocks.append(block)
            request.names.append(name)
            request.num_computed += size

    def computed(self, request: Request, num_tokens: int) -> None:
        """The step is done: count its tokens, and give the blocks that are full now their names."""
        request.num_computed += num_tokens
        tokens, size = request.tokens, self.block_size
        while len(request.names) < request.num_computed // size:
            number = len(request.names)
            before = request.names[-1] if request.names else b""
            request.names.append(name_of(before, tokens[number * size : (number + 1) * size]))
            self.pool.remember(request.blocks[number], request.names[-1])

    def release(self, request: Request) -> None:
        """The last block first: it is the first to be taken, and a beginning serves more requests than an end."""
        for block in reversed(request.blocks):
            self.pool.give_back(block)
        request.blocks, request.names, request.num_computed = [], [], 0


# 4. The model ---------------------------------------------------------------------------------------------------------
class Qwen3:
    """A Qwen3 decoder over flat tokens: those of all requests of a step lie in one row, [num_tokens, hidden]."""

    def __init__(self, folder: Path, num_blocks: int, block_size: int) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] != "qwen3":
            raise ValueError(f"folder must hold a Qwen3 model, got model_type {config['model_type']!r} in {folder}")
        self.weights: dict[str, Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self.weights |= {name: tensor.float() for name, tensor in load_file(path).items()}
        self.num_layers, self.eps = config["num_hidden_layers"], config["rms_norm_eps"]
        self.head_size, self.block_size = config["head_dim"], block_size
        self.head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        base = (config.get("rope_parameters") or config)["rope_theta"]
        self.frequencies = base ** -(torch.arange(0, self.head_size, 2).float() / self.head_size)
        # Slot s is place s % block_size of block s // block_size. 0: keys, 1: values.
        shape = (num_blocks * block_size, config["num_key_value_heads"], self.head_size)
        self.cache = torch.zeros(self.num_layers, 2, *shape)

    @torch.inference_mode()
    def forward(self, plan: dict[Request, int]) -> Tensor:
        """Compute the planned tokens; logits [len(plan), vocabulary] of the last one of each request."""
        spans = {request: range(request.num_computed, request.num_computed + n) for request, n in plan.items()}
        ids = torch.tensor([request.tokens[at] for request, span in spans.items() for at in span])
        angles = torch.tensor([at for span in spans.values() for at in span])[:, None] * self.frequencies
        cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]  # [num_tokens, 1, head_size]
        slots = [self.slots(request, span.stop) for request, span in spans.items()]  # of all tokens so far
        counts = list(plan.values())
        new = torch.cat([own[-n:] for own, n in zip(slots, counts, strict=True)])  # of those that are computed here

        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.num_layers):
            h = self.norm(x, layer, "input_layernorm")
            q, k, v = (self.heads(h, layer, name) for name in "qkv")
            keys, values = self.cache[layer]
            keys[new], values[new] = rotate(k, cos, sin), v
            queries = rotate(q, cos, sin).split(counts)
            attended = [attend(own_q, keys[own], values[own]) for own_q, own in zip(queries, slots, strict=True)]
            x = x + self.linear(torch.cat(attended).flatten(1), layer, "self_attn.o_proj")
            h = self.norm(x, layer, "post_attention_layernorm")
            gate, up = self.linear(h, layer, "mlp.gate_proj"), self.linear(h, layer, "mlp.up_proj")
            x = x + self.linear(F.silu(gate) * up, layer, "mlp.down_proj")
        last = torch.tensor(counts).cumsum(0) - 1
        return F.rms_norm(x[last], x.shape[1:], self.weights["model.norm.weight"], self.eps) @ self.head.T

    def slots(self, request: Request, end: int) -> Tensor:
        """Where the first `end` tokens of a request are in the cache."""
        blocks = torch.tensor(request.blocks)[:, None]
        return (blocks * self.block_size + torch.arange(self.block_size)).flatten()[:end]

    def heads(self, x: Tensor, layer: int, name: str) -> Tensor:
        """[num_tokens, heads, head_size]; Qwen3 normalises those of q and k."""
        heads = self.linear(x, layer, f"self_attn.{name}_proj").unflatten(1, (-1, self.head_size))
        return heads if name == "v" else self.norm(heads, layer, f"self_attn.{name}_norm")

    def linear(self, x: Tensor, layer: int, name: str) -> Tensor:
        return x @ self.weights[f"model.layers.{layer}.{name}.weight"].T

    def norm(self, x: Tensor, layer: int, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"model.layers.{layer}.{name}.weight"], self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: turn each pair (x[i], x[i + half]) by an angle that grows with the token's position."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of one request's new tokens, q [new, heads, size], to all of its tokens so far, k [all, ...]."""
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))  # a token sees itself and what was before
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


# 5. One token out of the logits ---------------------------------------------------------------------------------------
def sample(logits: Tensor, request: Request) -> int:
    """logits [vocabulary]. top_p keeps the fewest likeliest tokens whose probabilities reach it together."""
    if request.temperature == 0:
        return int(logits.argmax())
    probabilities, ids = (logits / request.temperature).softmax(dim=-1).sort(descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities  # the sum of all that are likelier
    probabilities[before >= request.top_p] = 0.0
    return int(ids[torch.multinomial(probabilities, 1, generator=request.generator)])


# 6. The engine --------------------------------------------------------------------------------------------------------
class Engine:
    """Requests go in; each step() computes some tokens of some of them."""

    def __init__(
        self, folder: Path = EMBEDDED, *, num_blocks: int = 64, block_size: int = 16, max_tokens_in_step: int = 64
    ) -> None:
        self.model = Qwen3(folder, num_blocks, block_size)
        self.scheduler = Scheduler(Pool(num_blocks), block_size, max_tokens_in_step)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        endings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
        self.endings = {endings} if isinstance(endings, int) else set(endings)

    def step(self) -> dict[Request, int]:
        """One forward pass. Returns the plan that it has carried out; empty: everything is finished."""
        plan = self.scheduler.schedule()
        if not plan:
            return {}
        logits = self.model.forward(plan)
        for row, (request, num_tokens) in zip(logits, plan.items(), strict=True):
            self.scheduler.computed(request, num_tokens)
            if request.num_computed < len(request.tokens):
                continue  # a chunk of a prompt: its logits say only what the prompt itself says next
            token = sample(row, request)
            request.output.append(token)
            if token in self.endings or len(request.output) == request.max_tokens:
                self.scheduler.running.remove(request)
                self.scheduler.release(request)
        return plan

    def text(self, request: Request) -> str:
        """The answer so far. Half of a character is kept back until its other half is there."""
        return self.tokenizer.decode(request.output, skip_special_tokens=True).rstrip("\ufffd")


# 7. See it ------------------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description="Stream answers side by side.")
    parser.add_argument("prompts", nargs="*", default=["Once upon a time", "A kernel is"], metavar="PROMPT")
    parser.add_argument("--model", type=Path, default=EMBEDDED, help="a folder with a Qwen3 model")
    defaults = {"blocks": 64, "tokens-in-step": 64, "max-tokens": 48, "temperature": 0.0, "top-p": 1.0}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"(default: {default})")
    parser.add_argument("--steps", action="store_true", help="print what each step computed, and no text")
    args = parser.parse_args()
    engine = Engine(args.model, num_blocks=args.blocks, max_tokens_in_step=args.tokens_in_step)
    prompts = [engine.tokenizer(prompt)["input_ids"] for prompt in args.prompts]
    requests = [Request(ids, args.max_tokens, args.temperature, args.top_p) for ids in prompts]
    for request in requests:
        engine.scheduler.add(request)
    if args.steps:
        for number, plan in enumerate(iter(engine.step, {}), 1):
            shares = "".join(f"{plan.get(request, '·'):>5}" for request in requests)
            free = len(engine.scheduler.pool.free)
            print(f"step {number:>3}   tokens of each request: {shares}   free blocks: {free:>3}")
        return
    with Live(auto_refresh=False) as screen:
        while engine.step():
            texts = [Text(p + engine.text(r), overflow="fold") for p, r in zip(args.prompts, requests, strict=True)]
            screen.update(Columns(Panel(text, width=38) for text in texts), refresh=True)  # fold: Chinese has no spaces


if __name__ == "__main__":
    main()
