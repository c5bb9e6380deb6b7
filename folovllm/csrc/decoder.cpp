// The layers of a decoder in one call, from the first norm to the last.
//
//     x ─┬─ norm ─ qkv ─ rope ─ attention ─ o ─▶ (+) ─┬─ norm ─ gate·up ─ silu ─ down ─▶ (+) ─▶ … ─ norm ─▶ hidden
//        └────────────── residual ─────────────┘     └──────────── residual ────────────┘
//
// Every operator is a kernel of the other files. What a call from Python costs each of them is not its few instructions: a
// product of milliseconds has pushed Python's code and data out of the caches.
//
// A layer with experts has, where gate·up and down are, those of the few experts that its router chooses for a row. Their
// rows lie side by side while a product reads them. Then each goes back to its token, and the parts are added in the order
// in which the router named them.
//
// Adapters add to four of a layer's products, each to the rows that name it: the rows of one are gathered, multiplied by
// its two thin matrices, and added where they came from. Nothing else in a step knows of them.
//
// The last layer may be asked for some rows only, since a prompt's next token depends on its last row alone. What follows
// its attention is then computed for these.
//
// vLLM: none, its layers are compiled one by one (compilation/)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace {

// The same functions, found by the types of what they take.

template <typename T>
struct Between;  // between the products
#define OF_ACTIVATION(NAME, T)                                                                                        \
    template <>                                                                                                       \
    struct Between<T> {                                                                                               \
        static constexpr auto add_rms_norm = add_rms_norm_##NAME;                                                     \
        static constexpr auto norm_rotary = norm_rotary_##NAME;                                                       \
        static constexpr auto silu_mul = silu_mul_##NAME;                                                             \
        static constexpr auto all_reduce = all_reduce_##NAME;                                                         \
    };
EACH_ACTIVATION(OF_ACTIVATION)

template <typename T, typename C>
struct Paged;
#define OF_CACHE(NAME, T, C)                                                                                          \
    template <>                                                                                                       \
    struct Paged<T, C> {                                                                                              \
        static constexpr auto store_kv = store_kv_##NAME;                                                             \
        static constexpr auto decode = decode_##NAME;                                                                 \
        static constexpr auto prefill = prefill_##NAME;                                                               \
    };
EACH_CACHE(OF_CACHE)

template <typename T, typename W>
struct Multiply;
#define OF_WEIGHT(NAME, T, W)                                                                                         \
    template <>                                                                                                       \
    struct Multiply<T, W> {                                                                                           \
        static constexpr auto linear = linear_##NAME;                                                                 \
    };
EACH_LINEAR(OF_WEIGHT)

template <typename T>
void keep_rows(T *x, const int64_t *rows, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; i++) memmove(x + i * size, x + rows[i] * size, size * sizeof(T));
}

// A row's experts: of the largest `logits`, of equal ones the lower number first; and how much each counts.
void choose(float *logits, const ExpertsOfLayer &e, int64_t *chosen, float *weights) {
    const float most = *std::max_element(logits, logits + e.count), taken = -1;
    float total = 0, kept = 0;
    for (int64_t i = 0; i < e.count; i++) total += logits[i] = expf(logits[i] - most);
    for (int64_t i = 0; i < e.count; i++) logits[i] /= total;
    for (int64_t place = 0; place < e.top_k; place++) {
        int64_t best = -1;
        for (int64_t i = 0; i < e.count; i++)
            if (logits[i] != taken && (best < 0 || logits[i] > logits[best])) best = i;
        kept += weights[place] = logits[best];
        logits[best] = taken;
        chosen[place] = best;
    }
    for (int64_t place = 0; e.renormalize && place < e.top_k; place++) weights[place] /= kept;
}

template <typename T, typename W, typename C>
struct Decoder {
    const Shape &s;
    const Step &step;
    T *residual;           // [tokens, hidden]
    T *x, *branch, *wide;  // [tokens, hidden] twice; [tokens, what attention or the MLP needs]

    static void linear(const T *x, const Product &product, T *out, int64_t rows, int64_t in, int64_t outs) {
        Multiply<T, W>::linear(x, (const W *)product.weight, product.bias, out, rows, in, outs);
    }

    static void linear(const T *x, const Product &product, T *out, int64_t rows, int64_t in, int64_t outs,
                       const Rows &adapted) {
        linear(x, product, out, rows, in, outs);
        for (int64_t g = 0, first = 0; product.adapters && g < adapted.num_groups; first = adapted.ends[g++]) {
            const Adapter &adapter = product.adapters[adapted.slots[g]];
            if (adapter.is_bfloat16)
                adapt<bf16>(x, adapter, out, adapted.rows + first, adapted.ends[g] - first, in, outs);
            else if (adapter.a)
                adapt<float>(x, adapter, out, adapted.rows + first, adapted.ends[g] - first, in, outs);
        }
    }

    // out += B A x for these rows, in float32.
    template <typename A>
    static void adapt(const T *x, const Adapter &adapter, T *out, const int64_t *rows, int64_t count, int64_t in,
                      int64_t outs) {
        static thread_local pool::Buffer spaces[3];
        const auto space = [](int64_t which, int64_t size) { return (float *)spaces[which].reserve(size * sizeof(float)); };
        float *mine = space(0, count * in), *low = space(1, count * adapter.rank), *high = space(2, count * outs);
        for (int64_t r = 0; r < count; r++) {
            const T *from = x + rows[r] * in;
            float *to = mine + r * in;
            int64_t i = 0;
            for (; i + LANES <= in; i += LANES) store(to + i, load(from + i));
            for (; i < in; i++) to[i] = get(from + i);
        }
        Multiply<float, A>::linear(mine, (const A *)adapter.a, nullptr, low, count, in, adapter.rank);
        Multiply<float, A>::linear(low, (const A *)adapter.b, nullptr, high, count, adapter.rank, outs);
        for (int64_t r = 0; r < count; r++) {
            const float *from = high + r * outs;
            T *to = out + rows[r] * outs;
            int64_t i = 0;
            for (; i + LANES <= outs; i += LANES) store(to + i, load(to + i) + load(from + i));
            for (; i < outs; i++) put(to + i, get(to + i) + from[i]);
        }
    }

    // The products of o and down have read some columns only, where other ranks have the rest.
    void reduce_branch(int64_t rows) const {
        if (s.group) Between<T>::all_reduce(s.group, branch, rows * s.hidden);
    }

    void norm(const T *x, T *residual, const float *weight, T *out, int64_t rows) const {
        Between<T>::add_rms_norm(x, residual, weight, out, rows, s.hidden, s.eps);
    }

    // x -> attended, [tokens, num_heads * head_size]
    T *attend(const Layer &layer) const {
        const int64_t q = s.num_heads * s.head_size, kv = s.num_kv_heads * s.head_size, all = q + 2 * kv;
        T *heads = wide, *attended = wide + step.tokens * all;
        linear(x, layer.qkv, heads, step.tokens, s.hidden, all, step.adapted);
        Between<T>::norm_rotary(heads, layer.q_norm, layer.k_norm, step.cos, step.sin, step.tokens, all, s.num_heads,
                                s.num_kv_heads, s.head_size, s.eps);
        C *keys = (C *)layer.keys, *values = (C *)layer.values;
        Paged<T, C>::store_kv(heads + q, heads + q + kv, all, all, keys, values, step.slots, step.tokens, s.block_size,
                              s.num_kv_heads, s.head_size);
        if (step.num_decodes)
            Paged<T, C>::decode(heads, all, keys, values, step.queries, step.decodes, step.seq_lens, step.tables,
                                step.max_blocks, step.num_decodes, s.block_size, s.num_heads, s.num_kv_heads,
                                s.head_size, s.scale, layer.extras, attended);
        if (step.num_prefills)
            Paged<T, C>::prefill(heads, all, keys, values, step.spans, step.prefills, step.seq_lens, step.tables,
                                 step.max_blocks, step.num_prefills, s.block_size, s.num_heads, s.num_kv_heads,
                                 s.head_size, s.scale, layer.extras, attended);
        return attended;
    }

    // `space` is for 3 * size numbers a row.
    void mlp(const T *in, const Product &gate_up, const Product &down, int64_t size, T *space, T *out, int64_t rows,
             const Rows &adapted = {}) const {
        T *product = space + rows * 2 * size;
        linear(in, gate_up, space, rows, s.hidden, 2 * size, adapted);
        Between<T>::silu_mul(space, product, rows, size);
        linear(product, down, out, rows, size, s.hidden, adapted);
    }

    // x -> branch. A row has `parts`, one of each of its experts and at last that of the shared one, if there is one.
    // They are numbered row * parts + place.
    void experts(const ExpertsOfLayer &e, int64_t rows) const {
        const int64_t hidden = s.hidden, parts = e.top_k + (e.shared_size > 0), bytes = hidden * sizeof(T);
        float *x_wide = (float *)wide, *logits = x_wide + rows * hidden, *weights = logits + rows * e.count;
        T *mine = (T *)(weights + rows * parts), *done = mine + rows * hidden, *space = done + rows * parts * hidden;
        for (int64_t i = 0; i < rows * hidden; i++) x_wide[i] = get(x + i);

        static thread_local std::vector<int64_t> chosen, order, ends;
        chosen.resize(rows * parts), order.resize(rows * parts), ends.assign(e.count + 1, 0);
        Multiply<float, float>::linear(x_wide, (const float *)e.gate.weight, nullptr, logits, rows, hidden, e.count);
        for (int64_t row = 0; row < rows; row++) {
            choose(logits + row * e.count, e, &chosen[row * parts], weights + row * parts);
            for (int64_t place = 0; place < e.top_k; place++) ends[chosen[row * parts + place] + 1]++;
        }
        for (int64_t i = 0; i < e.count; i++) ends[i + 1] += ends[i];  // where the rows of expert i begin: at ends[i]
        for (int64_t row = 0; row < rows; row++)
            for (int64_t part = row * parts; part < row * parts + e.top_k; part++) order[ends[chosen[part]]++] = part;

        for (int64_t i = 0, first = 0; i < e.count; first = ends[i++]) {
            const int64_t count = ends[i] - first, *its = order.data() + first;
            if (count == 0) continue;
            for (int64_t r = 0; r < count; r++) memcpy(mine + r * hidden, x + its[r] / parts * hidden, bytes);
            mlp(mine, e.products[2 * i], e.products[2 * i + 1], e.size, space, mine, count);
            for (int64_t r = 0; r < count; r++) memcpy(done + its[r] * hidden, mine + r * hidden, bytes);
        }
        if (e.shared_size) {
            Multiply<float, float>::linear(x_wide, (const float *)e.shared_gate.weight, nullptr, logits, rows, hidden,
                                           1);
            mlp(x, e.shared_gate_up, e.shared_down, e.shared_size, space, mine, rows);
            for (int64_t row = 0; row < rows; row++) {
                weights[row * parts + e.top_k] = 1 / (1 + expf(-logits[row]));
                memcpy(done + (row * parts + e.top_k) * hidden, mine + row * hidden, bytes);
            }
        }
        T *out = branch;
        pool::each_row(rows, parts * hidden, [=](int64_t row) {
            const T *from = done + row * parts * hidden;
            const float *weight = weights + row * parts;
            int64_t i = 0;
            for (; i + LANES <= hidden; i += LANES) {
                vec total = {};
                for (int64_t part = 0; part < parts; part++) total += weight[part] * load(from + part * hidden + i);
                store(out + row * hidden + i, total);
            }
            for (; i < hidden; i++) {
                float total = 0;
                for (int64_t part = 0; part < parts; part++) total += weight[part] * get(from + part * hidden + i);
                put(out + row * hidden + i, total);
            }
        });
    }

    // The layers [first, end) of all. `out` gets the hidden states behind the last one, at their rows.
    void run(const Layer *layers, int64_t first, int64_t end, int64_t all, const float *final_norm, T *out) const {
        int64_t rows = step.tokens;
        const Rows *adapted = &step.adapted;
        for (int64_t i = first; i < end; i++) {
            const Layer &layer = layers[i];
            if (i == 0)
                norm(residual, nullptr, layer.input_norm, x, rows);
            else
                norm(branch, residual, layer.input_norm, x, rows);
            T *attended = attend(layer);
            if (i == all - 1 && step.wanted) {
                rows = step.num_wanted, adapted = &step.adapted_wanted;
                keep_rows(attended, step.wanted, rows, s.num_heads * s.head_size);
                keep_rows(residual, step.wanted, rows, s.hidden);
            }
            linear(attended, layer.o, branch, rows, s.num_heads * s.head_size, s.hidden, *adapted);
            reduce_branch(rows);
            norm(branch, residual, layer.post_norm, x, rows);
            if (layer.experts)
                experts(*layer.experts, rows);
            else
                mlp(x, layer.gate_up, layer.down, s.intermediate, wide, branch, rows, *adapted);
            reduce_branch(rows);
        }
        if (end < all) return;
        norm(branch, residual, final_norm, step.wanted ? x : out, rows);
        if (step.wanted)
            for (int64_t i = 0; i < rows; i++)
                memcpy(out + step.wanted[i] * s.hidden, x + i * s.hidden, s.hidden * sizeof(T));
    }
};

}  // namespace

extern "C" {

#define DECODER(NAME, T, W, C)                                                                                        \
    void decoder_##NAME(const Shape *shape, const Step *step, const Layer *layers, int64_t first, int64_t end,        \
                        int64_t all, const float *final_norm, T *residual, T *scratch, T *out) {                      \
        T *x = scratch, *branch = x + step->tokens * shape->hidden, *wide = branch + step->tokens * shape->hidden;    \
        Decoder<T, W, C>{*shape, *step, residual, x, branch, wide}.run(layers, first, end, all, final_norm, out);     \
    }

EACH_DECODER(DECODER)
}
