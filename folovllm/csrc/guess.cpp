// A small decoder's greedy run in one call: each token is the likeliest one after the tokens before it.
//
//     token ─ embed ─ layers (decoder.cpp) ─ norm ─ LM head ─ largest logit ─▶ the next token
//       ▲                                                                            │
//       └────────────────────────────────────────────────────────────────────────────┘
//
// A head that reads the target (spec_decode/eagle.py) has a hidden state before each token: the target's, then its own.
//
//     hidden state before ─ norm ─┐
//     token ─ embed ─ norm ───────┴─ fc ─ layers ─ norm ─┬─ LM head ─ largest logit ─▶ the next token
//                                                        └──────────────────────────▶ the hidden state before it
//
// A forward of one layer takes ten microseconds. Called one by one from Python, it would take ten times as long.
//
// The first forward has all tokens that are known and have no keys yet: each is a query of its own with a length of its
// own. From there on each forward has one token of each sequence.
//
// vLLM: none, each forward of a draft model is launched from Python (v1/spec_decode/llm_base_proposer.py)

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels.h"

// models/greedy_run.py fills it in, field by field in the same order.
struct Run {
    const Shape *shape;
    const Layer *layers;
    const void *decoder, *lm_head, *fc;                // functions: of all layers, of the last product, and fc's
    const void *embedding, *lm_weight, *fc_weight;     // [vocab, hidden], and packed
    const float *norm, *cos_sin;                       // cos_sin [positions, 2, head_size / 2]
    const float *hidden_norm, *token_norm;             // of a head
    const char *before;                                // [num_known, hidden] numbers; null: no head
    int64_t num_layers, vocab, scratch;                // scratch: numbers of a token
    int64_t num_seqs, num_known, most, max_blocks;     // num_known: tokens of all sequences
    const int64_t *tokens, *known, *starts, *counts;   // [num_known]; [num_seqs]: how many, from which position; guesses
    const int32_t *tables;                             // [num_seqs, max_blocks]
    int64_t *guesses;                                  // [num_seqs, most]
};

namespace {

template <typename T>
int64_t largest(const T *x, int64_t size) {
    const int64_t whole = size / LANES * LANES;
    vec most = splat(get(x));
    for (int64_t i = 0; i < whole; i += LANES) {
        const vec here = load(x + i);
        most = here > most ? here : most;
    }
    float best = max(most);
    for (int64_t i = whole; i < size; i++) best = get(x + i) > best ? get(x + i) : best;
    for (int64_t i = 0; i < size; i++)
        if (get(x + i) == best) return i;
    return 0;  // all of them are NaN
}

template <typename T, typename E>
void guess(const Run &r) {
    const Shape &s = *r.shape;
    const int64_t hidden = s.hidden, half = s.head_size / 2, most_rows = r.num_known;
    using Product = void (*)(const T *, const void *, const float *, T *, int64_t, int64_t, int64_t);
    const auto decoder = (void (*)(const Shape *, const Step *, const Layer *, int64_t, int64_t, int64_t, const float *,
                                   T *, T *, T *))r.decoder;
    const auto normed = [&](const T *x, const float *weight, T *out) {
        if constexpr (sizeof(T) == sizeof(float))
            add_rms_norm_float32(x, nullptr, weight, out, 1, hidden, s.eps);
        else
            add_rms_norm_bfloat16(x, nullptr, weight, out, 1, hidden, s.eps);
    };
    std::vector<T> x(most_rows * hidden), out(most_rows * hidden), scratch(most_rows * r.scratch);
    std::vector<T> pairs(r.before ? most_rows * 2 * hidden : 0), last(r.num_seqs * hidden);
    const std::unique_ptr<T[]> logits(new T[r.num_seqs * r.vocab]);  // not cleared
    std::vector<float> cos(most_rows * s.head_size), sin(most_rows * s.head_size);
    std::vector<int64_t> slots(most_rows), numbers(most_rows), at(r.num_seqs);  // at: of each sequence, its row
    std::vector<int32_t> lens(most_rows), tables(most_rows * r.max_blocks);
    std::iota(numbers.begin(), numbers.end(), 0);
    for (int64_t place = 0; place < r.most; place++) {
        int64_t rows = 0, going = 0;
        const auto add = [&](int64_t i, int64_t token, int64_t position, const T *before) {
            const E *embedded = (const E *)r.embedding + token * hidden;
            for (int64_t j = 0; j < hidden; j++) put(&x[rows * hidden + j], get(embedded + j));
            if (r.before) {
                normed(before, r.hidden_norm, &pairs[rows * 2 * hidden]);
                normed(&x[rows * hidden], r.token_norm, &pairs[rows * 2 * hidden + hidden]);
            }
            const float *angles = r.cos_sin + position * 2 * half;
            for (int64_t j = 0; j < half; j++) {
                float *c = &cos[rows * s.head_size + j], *d = &sin[rows * s.head_size + j];
                c[0] = c[half] = angles[j];
                d[0] = -(d[half] = angles[half + j]);
            }
            const int32_t *table = r.tables + i * r.max_blocks;
            memcpy(&tables[rows * r.max_blocks], table, r.max_blocks * sizeof(int32_t));
            slots[rows] = table[position / s.block_size] * s.block_size + position % s.block_size;
            lens[rows++] = position + 1;
        };
        for (int64_t i = 0, first = 0; i < r.num_seqs; first += r.known[i++]) {
            if (place >= r.counts[i]) continue;
            for (int64_t j = first; place == 0 && j < first + r.known[i]; j++)
                add(i, r.tokens[j], r.starts[i] + j - first, (const T *)(r.before + (r.before ? j * hidden * sizeof(T) : 0)));
            if (place)
                add(i, r.guesses[i * r.most + place - 1], r.starts[i] + r.known[i] + place - 1, &last[at[i] * hidden]);
            at[i] = rows - 1;
        }
        if (r.before) ((Product)r.fc)(pairs.data(), r.fc_weight, nullptr, x.data(), rows, 2 * hidden, hidden);
        const Step step = {rows, rows, 0, r.max_blocks, 0, cos.data(), sin.data(), slots.data(), numbers.data(),
                           numbers.data(), nullptr, nullptr, lens.data(), tables.data(), nullptr};
        decoder(&s, &step, r.layers, 0, r.num_layers, r.num_layers, r.norm, x.data(), scratch.data(), out.data());
        for (int64_t i = 0; i < r.num_seqs; i++) {
            if (place >= r.counts[i]) continue;
            memcpy(&last[going * hidden], &out[at[i] * hidden], hidden * sizeof(T));
            at[i] = going++;
        }
        ((Product)r.lm_head)(last.data(), r.lm_weight, nullptr, logits.get(), going, hidden, r.vocab);
        for (int64_t i = 0; i < r.num_seqs; i++)
            if (place < r.counts[i]) r.guesses[i * r.most + place] = largest(&logits[at[i] * r.vocab], r.vocab);
    }
}

}  // namespace

extern "C" {

#define GUESS(NAME, T, E) \
    void guess_##NAME(const Run *run) { guess<T, E>(*run); }

GUESS(float32_float32, float, float)
GUESS(float32_bfloat16, float, bf16)
GUESS(bfloat16_bfloat16, bf16, bf16)
}
