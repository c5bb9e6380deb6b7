"""What the engine can hold of a single request. A load that is too large waits; a request that is too large by itself
would wait for ever, so it is refused when it comes.

vLLM: v1/engine/input_processor.py
"""

from __future__ import annotations

from dataclasses import dataclass

from folovllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Room:
    """Sequences end at max_model_len tokens, which never exceeds the KV cache's num_blocks * block_size."""

    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def check(self, prompt_len: int, params: SamplingParams) -> None:
        """Sampled sequences can run one after the other, and one alone always fits. Beams must run together.

        Raises:
            ValueError: more beams than sequences in a batch, or than the KV cache can hold.
        """
        if not params.use_beam_search:
            return
        width = params.best_of or params.n
        if width > self.max_num_seqs:
            raise ValueError(
                f"best_of must be at most {self.max_num_seqs} with use_beam_search=True, got {width}: beams run "
                f"together; raise max_num_seqs"
            )
        longest = min(prompt_len + (params.max_tokens or self.max_model_len), self.max_model_len)
        shared = prompt_len // self.block_size  # at worst the beams have only the prompt's full blocks in common
        needed = shared + width * (-(-longest // self.block_size) - shared)
        if needed > self.num_blocks:
            raise ValueError(
                f"best_of must be small enough for its beams to fit into the KV cache, got {width}: {width} sequences "
                f"of up to {longest} tokens may need {needed} blocks of {self.num_blocks}; lower best_of or "
                f"max_tokens, or raise num_kv_blocks"
            )
