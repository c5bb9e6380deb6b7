"""Steps with guesses in CUDA graphs: a guess is a row as any other, and no token changes by it.

The first tests compute in place of replaying, as tests/m4/test_cuda_graph.py does; the last ones record and replay on
the stand-in for a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.worker.cuda_graph import CudaGraphs, capture_sizes
from tests.fake_cuda import FakeCuda
from tests.helpers import names, thinned
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.test_cuda_graph import copies_are_queued, with_graphs
from tests.m5.support import serve, token_ids
from tests.m6.test_parity_m6 import BLOCK, CHUNKS, PRESSURES, asked_greedily
from tests.m8.support import Prophet, guess_always, guessing_engine
from tests.m8.test_speculation_cuda import PROMPTS, SMALL, folder
from tests.m8.test_speculation_engine import answers_of, greedy_answers, num_accepted

__all__ = ["copies_are_queued", "folder"]
SIZES = capture_sizes(40)


@pytest.mark.parametrize(("chunk", "pressure"), thinned(names(CHUNKS), names(PRESSURES)))
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, chunk: str, pressure: str) -> None:
    asked = asked_greedily()
    engine = guessing_engine(
        oracle.folder, greedy_answers(oracle, asked), max_model_len=64, block_size=BLOCK, **PRESSURES[pressure],
        **CHUNKS[chunk],
    )  # fmt: skip
    graphs = with_graphs(engine, SIZES)
    assert token_ids(serve(engine, asked)) == [[oracle.greedy(prompt, params.max_tokens)] for prompt, params in asked]
    assert num_accepted(engine) > (0 if chunk == "7" else 30)
    assert any(size > 2 * num_seqs for num_seqs, size in graphs.replayed) or chunk == "7"  # steps with guesses
    assert_idle(engine)


@pytest.mark.exhaustive
def test_on_a_gpu(folder: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are recorded for rows, not for sequences. A step with guesses is one replay, and costs what one does."""
    replayed: list[tuple[int, int]] = []
    replay = CudaGraphs.replay

    def watched(self: CudaGraphs, inputs: Any, size: int, gumbel_params: Any) -> Any:
        replayed.append((len(inputs.rows), int(inputs.num_new.sum())))
        return replay(self, inputs, size, gumbel_params)

    monkeypatch.setattr(CudaGraphs, "replay", watched)
    asked = [SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0), SamplingParams(max_tokens=6, seed=3)]
    plain = LLM(str(folder), **SMALL).generate(PROMPTS, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SMALL)
    assert llm.engine.runner.graphs is not None
    assert llm.engine.runner.graphs.sizes == [1, 2, 4, 8]  # two sequences of four rows
    guess_always(llm.engine, Prophet(answers_of(plain), wrong=0.0))
    replayed.clear()
    fake_cuda.reset_counts()
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in guessed] == [output.outputs[0].token_ids for output in plain]
    assert (2, 8) in replayed
    assert sum(rows for _, rows in replayed) >= 10  # all but what came with the prompts
    assert fake_cuda.compiled == []
