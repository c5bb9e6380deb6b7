// A small decoder's greedy run in one call: each token is the likeliest one after the tokens before it.
//
//     token ─ embed ─ layers (decoder.cpp) ─ norm ─ head ─ largest logit ─▶ the next token
//       ▲                                                                        │
//       └────────────────────────────────────────────────────────────────────────┘
//
// A forward of one layer takes ten microseconds. Called one by one from Python, it would take ten times as long.
//
// Some tokens of a sequence may be known that have no keys yet. They come first, and all sequences come to their last
// known token in the same forward, [most_known - 1]. From there on each forward guesses.
//
// vLLM: none, each forward of a draft model is launched from Python (v1/spec_decode/llm_base_proposer.py)

#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"

// models/greedy_run.py fills it in, field by field in the same order.
struct Run {
    const Shape *shape;
    const Layer *layers;
    const void *decoder, *head;                   // functions: of all layers, and of the last product
    const void *embedding, *head_weight;          // [vocab, hidden], and packed
    const float *norm, *cos_sin;                  // cos_sin [positions, 2, head_size / 2]
    int64_t num_layers, vocab, scratch;           // scratch: numbers of a token
    int64_t num_seqs, most_known, most, max_blocks;
    const int64_t *known, *starts, *counts;       // [num_seqs]: known tokens, position of the first one, guesses
    const int64_t *tokens;                        // [num_seqs, most_known]
    const int32_t *tables;                        // [num_seqs, max_blocks]
    int64_t *guesses;                             // [num_seqs, most]
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
    const int64_t hidden = s.hidden, half = s.head_size / 2, n = r.num_seqs;
    const auto decoder = (void (*)(const Shape *, const Step *, const Layer *, int64_t, int64_t, int64_t, const float *,
                                   T *, T *, T *))r.decoder;
    const auto head = (void (*)(const T *, const void *, const float *, T *, int64_t, int64_t, int64_t))r.head;
    std::vector<T> x(n * hidden), out(n * hidden), scratch(n * r.scratch);
    const std::unique_ptr<T[]> logits(new T[n * r.vocab]);  // not cleared
    std::vector<float> cos(n * s.head_size), sin(n * s.head_size);
    std::vector<int64_t> slots(n), queries(n), seqs(n);
    std::vector<int32_t> lens(n);
    for (int64_t forward = 0; forward < r.most_known + r.most - 1; forward++) {
        int64_t rows = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t done = forward - (r.most_known - r.known[i]), guessed = done - r.known[i];
            if (done < 0 || guessed + 1 >= r.counts[i]) continue;
            const int64_t token = guessed < 0 ? r.tokens[i * r.most_known + done] : r.guesses[i * r.most + guessed];
            const int64_t position = r.starts[i] + done;
            const E *embedded = (const E *)r.embedding + token * hidden;
            if constexpr (sizeof(T) == sizeof(E))
                memcpy(&x[rows * hidden], embedded, hidden * sizeof(T));
            else
                for (int64_t j = 0; j < hidden; j++) x[rows * hidden + j] = get(embedded + j);
            const float *angles = r.cos_sin + position * 2 * half;
            for (int64_t j = 0; j < half; j++) {
                float *c = &cos[rows * s.head_size + j], *d = &sin[rows * s.head_size + j];
                c[0] = c[half] = angles[j];
                d[0] = -(d[half] = angles[half + j]);
            }
            slots[rows] = r.tables[i * r.max_blocks + position / s.block_size] * s.block_size + position % s.block_size;
            lens[i] = position + 1;
            queries[rows] = rows;
            seqs[rows++] = i;
        }
        const Step step = {rows, rows, 0, r.max_blocks, 0, cos.data(), sin.data(), slots.data(), queries.data(),
                           seqs.data(), nullptr, nullptr, lens.data(), r.tables, nullptr};
        decoder(&s, &step, r.layers, 0, r.num_layers, r.num_layers, r.norm, x.data(), scratch.data(), out.data());
        const int64_t place = forward - (r.most_known - 1);
        if (place < 0) continue;
        head(out.data(), r.head_weight, nullptr, logits.get(), rows, hidden, r.vocab);
        for (int64_t row = 0; row < rows; row++)
            r.guesses[seqs[row] * r.most + place] = largest(&logits[row * r.vocab], r.vocab);
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
