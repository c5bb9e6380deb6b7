"""Wrong solutions as learners write them: each is one change of the milestone's own code.

(what is replaced, what by, the mistakes whose message would be true)
"""

from __future__ import annotations

SLIPS: dict[str, list[tuple[str, str, set[str]]]] = {
    "m0/transition": [
        ("to not in TRANSITIONS[self.status]", "self.status not in TRANSITIONS[to]", {"looks-up-the-other-one"}),
        ("to not in TRANSITIONS[self.status]", "to is self.status", set()),
    ],
    "m0/fork": [
        ("list(self.block_ids)", "self.block_ids", {"shares-the-blocks"}),
        ("list(self.data.output_token_ids)", "self.data.output_token_ids", {"shares-the-tokens"}),
        ("seq_id=new_seq_id", "seq_id=new_seq_id, cumulative_logprob=0.0", set()),
        ("seq_id=new_seq_id", "seq_id=new_seq_id, status=SequenceStatus.WAITING", {"starts-from-scratch"}),
    ],
    "m1/rms-norm": [
        ("x + residual", "x - residual", set()),
        ("F.rms_norm(residual,", "F.rms_norm(x,", set()),
        ("F.rms_norm(residual, weight.shape, weight,", "F.layer_norm(residual, weight.shape, weight, None,",
         {"takes-the-mean-off"}),
    ],
    "m1/rotary": [
        ("(-sin, sin)", "(sin, -sin)", {"turns-the-other-way", "keeps-the-sign-back"}),
        ("(-sin, sin)", "(sin, sin)", {"keeps-the-sign-back"}),
        ("roll(x.shape[-1] // 2", "roll(1", {"pairs-neighbours"}),
    ],
    "m1/attention": [
        ("ones.tril(seq_len - num_queries)", "ones.tril()", {"mask-from-the-left"}),
        ("scale=self.scale,\n            enable_gqa", "scale=1.0,\n            enable_gqa", {"forgets-the-scale"}),
    ],
    "m1/sorted-prefix": [
        ("cumulative - weights < filters", "cumulative < filters", {"drops-the-boundary"}),
        ("cumulative - weights < filters", "cumulative - weights <= filters", {"goes-beyond-the-line"}),
        ("weights >= filters.min_p", "weights > filters.min_p", {"leaves-min-p-out"}),
        (".clamp(min=1).minimum", ".minimum", {"keeps-none"}),
        (") / filters.temperature", ") * filters.temperature", set()),
        (".minimum(limit)", ".minimum(limit[0])", set()),
    ],
    "m1/race": [
        ("(weights / noise).argmax", "(weights / noise).argmin", set()),
        ("(weights / noise).argmax", "(weights * noise).argmax", {"the-slowest-wins"}),
        ("columns >= candidates.keep", "columns > candidates.keep", set()),
    ],
    "m1/penalties": [
        ("torch.where(values > 0, values / penalty, values * penalty)", "values / penalty", {"divides-all"}),
        ("(counts > 0)", "counts", set()),
        ("params = row.params", "params = self.rows[0].params", {"one-setting-for-all"}),
    ],
    "m1/stop-strings": [
        ("min(found, key=lambda hit: hit[0])", "found[0]", {"first-in-the-list"}),
        ("self.holdback == 0 or ", "", {"minus-zero"}),
        ("num_added - len(stop) + 1", "num_added", {"looks-at-the-new-text"}),
    ],
    "m1/half-a-character": [
        ("whole if final else whole.removesuffix(REPLACEMENT)", "whole", {"shows-half-characters"}),
        ("if added and not final", "if not final", {"moves-for-nothing"}),
    ],
    "m2/the-line": [
        ("is entry", "is not None", {"a-name-is-enough"}),
        ("heapq.heapify(self._heap)", "pass", {"sweeps-without-order"}),
        ("2 * len(self._entries) + 16", "2 * len(self._entries)", {"sweeps-at-another-size"}),
        ("while not self._is_live", "if not self._is_live", set()),
    ],
    "m2/joining": [
        ("self.num_running_seqs >= self", "self.num_running_seqs > self", set()),
        ("num_tokens > self.max_num", "num_tokens >= self.max_num", {"full-is-too-full"}),
    ],
    "m2/a-step": [
        ("num_computed_tokens += num_tokens", "num_computed_tokens = num_tokens", set()),
        ("if token_id is not None", "if token_id", set()),
    ],
    "m2/the-batch": [
        ("self.num_tokens[rows] += 1", "self.num_tokens[rows] += inputs.num_new", set()),
        ("self._free_rows.append(row)", "pass", {"rows-that-are-lost"}),
    ],
    "m2/leaving": [("self.num_running_seqs -= 1", "pass", set())],
    "m3/block-pool": [
        ("count > self.num_free", "count >= self.num_free", {"keeps-the-last"}),
        ("self.num_free -= count", "pass", {"forgets-to-count"}),
    ],
    "m3/copy-on-write": [("self.pool.free_blocks([shared])", "pass", {"keeps-its-reference"})],
    "m3/who-gives-way": [("running[-1:]", "running[:1]", {"the-first-gives-way"})],
    "m3/paged-attention": [(".tril(seq_len - num_queries)", ".tril()", {"upper-left-corner"})],
    "m4/online-softmax": [
        ("acc * rescale[:, None]", "acc", {"repairs-the-sum-only"}),
        ("[None, :] <= last_seen", "[None, :] < last_seen", {"misses-its-last-key"}),
    ],
    "m4/merge-splits": [
        ("tl.exp2(lse - tl.max(lse, 0))", "tl.exp2(lse)", {"too-large-for-float32"}),
        ("head * stride_outh", "head * HEAD_SIZE", set()),
    ],
    "m4/graph-sizes": [("index < len(sizes)", "index <= len(sizes)", set())],
    "m4/run-ahead": [("num_output + 1 >= max_tokens", "num_output >= max_tokens", {"one-token-late"})],
    "m5/threshold": [("-(-num_tokens // 2)", "num_tokens // 2", {"rounds-down"})],
    "m6/block-hash": [("self._hashes[-1] + array", "array", {"tokens-alone"})],
    "m6/longest-prefix": [
        ("(seq.get_len() - 1) // ", "seq.get_len() // ", {"takes-the-last-block"}),
        ("self.pool.touch(block_ids)", "pass", {"never-touches"}),
        ("chain.cache_salt)", "None)", set()),
    ],
    "m7/round-to-nearest": [
        ("(grouped / scale[..., None]).round()", "(grouped / scale[..., None]).floor()", set()),
        ("(grouped / scale[..., None]).round()", "(grouped / scale[..., None]).trunc()", {"cuts-off"}),
        ("/ highest", "/ (highest + 1)", {"divides-by-sixteen"}),
        ("(lowest - low / scale).round()", "(lowest - low / scale).floor()", set()),
        ("(lowest - low / scale).round()", "(lowest - low / scale)", {"cuts-off"}),
    ],
    "m7/pack-and-unpack": [(" & (2**bits - 1)", "", {"without-the-mask"})],
    "m7/awq-scales": [("scheme, stored)", "scheme, torch.float32)", set())],
    "m7/round-rows": [
        ("amax(1, keepdim=True)", "amax().expand(len(x), 1)", {"one-scale-for-all"}),
        (".round(), scale", ".floor(), scale", set()),
        ("(codes * scale).to(x.dtype)", "codes.to(x.dtype) * scale.to(x.dtype)", set()),
    ],
    "m7/grouped-product": [
        ("self.zero * grouped.sum(2)[:, None]", "self.zero", {"one-zero-for-the-group"}),
        (
            "        grouped = x.float()",
            "        return x.float() @ self.dequantize().T\n        grouped = x",
            {"makes-the-weight"},
        ),
    ],
    "m8/prompt-lookup": [("ends[-1] : ends[-1] + count", "ends[0] : ends[0] + count", {"the-earliest"})],
    "m8/verify": [
        ("if token_id is None:\n                continue\n", "", {"keeps-none"}),
        ("if token_id is None", "if not token_id", {"zero-is-nothing"}),
    ],
    "m8/rejection-sampling": [
        ("Candidates(residual), rest", "Candidates(target), rest", {"draws-from-the-target"}),
        ("uniform < ratio", "uniform <= ratio", set()),
        ("ratio = wanted / had", "ratio = (wanted.float() / had.float()).double()", set()),
    ],
    "m8/best-length": [
        ("costs.of_step(num_seqs, k)", "(1 + num_seqs * (k + 1) / costs.ridge)", {"forgets-the-draft"}),
        ("alpha**i", "alpha", {"counts-every-guess"}),
    ],
}  # fmt: skip
