// What the products of linear.cpp, linear_tiles.cpp and prefill.cpp share: panels, and which thread takes which.
//
// vLLM: csrc/cpu/sgl-kernels/gemm.cpp

#pragma once

#include "pool.h"
#include "vector.h"

constexpr int WIDTH = 2 * LANES;     // rows of the weight in a panel
constexpr int64_t ENOUGH = 1 << 18;  // multiply-adds for which a second thread pays
constexpr int LINE = 64;             // bytes of a cache line
constexpr int PREFETCH_BYTES = 4096; // bytes. The hardware's own prefetching ends at each page

// Memory of the calling thread for the results of a task, from the start of a cache line on.
inline float *results(size_t size) {
    struct alignas(LINE) Line {
        float numbers[LINE / sizeof(float)];
    };
    static thread_local std::vector<Line> memory;
    if (memory.size() * sizeof(Line) < size * sizeof(float)) memory.resize(size * sizeof(float) / sizeof(Line) + 1);
    return memory.data()->numbers;
}

// What one row has for one step: a float, or a pair of bfloat16 numbers, of which the last may be half.
inline float step_of(const float *row, int64_t k, int64_t) { return row[k]; }
inline bf16_pair step_of(const bf16 *row, int64_t k, int64_t in) {
    return {row[2 * k], 2 * k + 1 < in ? row[2 * k + 1] : bf16{0}};
}

// take(r), what a row has for up to LANES steps, 32 bits each: step by step the rows' side by side, from to + i * apart on.
// By four rows, the last ones first: what is written beyond the rows is written over, by the first ones of the next step.
// Behind the last step nothing is written.
template <typename X, typename Take>
inline void put_steps(X *to, int64_t apart, int64_t rows, int64_t steps, const Take &take) {
    const int64_t end = (std::min<int64_t>(LANES, steps) - 1) * apart + rows;
    for (int64_t first = (rows - 1) / 4 * 4; first >= 0; first -= 4) {
        words four[4] = {};
        for (int64_t r = first; r < std::min(rows, first + 4); r++) four[r - first] = take(r);
        exchange<1>(four);  // single lanes, then pairs: each square of four by four lanes is turned
        exchange<2>(four);
        for (int64_t i = 0, at = first; i < LANES && i < steps; i++, at += apart) {
            const X *from = (const X *)&four[i % 4] + i / 4 * 4;
            at + 4 <= end ? memcpy(to + at, from, 16) : memcpy(to + at, from, (end - at) * sizeof(X));
        }
    }
}

// Block by block of rows, and in a block the rows' numbers for one step side by side.
template <typename X, typename T>
void rearrange(const T *x, X *packed, int64_t rows, int64_t in, int64_t per_block, int64_t block) {
    static_assert(sizeof(X) == 4);
    constexpr int64_t NUMBERS = sizeof(X) / sizeof(T);  // of a row, in a step
    const int64_t first = block * per_block, count = std::min(per_block, rows - first);
    const int64_t steps = (in + NUMBERS - 1) / NUMBERS, whole = in / NUMBERS / LANES * LANES;
    const T *from = x + first * in;
    X *to = packed + first * steps;
    int64_t k = 0;
    for (; count > 1 && k < whole; k += LANES)
        put_steps(to + k * count, count, count, LANES, [=](int64_t r) {
            words found;
            memcpy(&found, from + r * in + k * NUMBERS, sizeof found);
            return found;
        });
    for (; k < steps; k++)
        for (int64_t r = 0; r < count; r++) to[k * count + r] = step_of(from + r * in, k, in);
}

// The results of one panel, [rows, WIDTH], to their columns of out [rows, outs]. The last panel may stick out.
template <typename T>
void put_results(const float *results, const float *bias, T *out, int64_t rows, int64_t outs, int64_t panel) {
    const int64_t first = panel * WIDTH, width = outs - first < WIDTH ? outs - first : WIDTH;
    float added[WIDTH] = {};
    if (bias) memcpy(added, bias + first, width * sizeof(float));
    const vec low = load(added), high = load(added + LANES);
    for (int64_t r = 0; r < rows; r++) {
        T *to = out + r * outs + first, row[WIDTH];
        T *place = width == WIDTH ? to : row;
        store(place, load(results + r * WIDTH) + low);
        store(place + LANES, load(results + r * WIDTH + LANES) + high);
        if (width < WIDTH) memcpy(to, row, width * sizeof(T));
    }
}

// Which rows of x and which panels a task multiplies. A chunk is as many rows, in blocks of `per_block`, as stay in a
// cache while all panels pass by. Threads take tasks in turn, so each has panels that follow each other: one that is
// alone with a stretch of memory, results as well as weights, is not slowed down by what the CPU fetches for another.
struct Tasks {
    int64_t rows, panels, pair;            // pair: panels of a task
    int64_t per_block, per_chunk, chunks;  // rows, rows, and how many chunks there are
    int64_t threads;                       // that take tasks

    // As many chunks as come nearest to `blocks_of_chunk`, all alike: a last one of a few rows would read every weight
    // for them.
    Tasks(int64_t rows, int64_t outs, int64_t pair, int64_t per_block, int64_t blocks_of_chunk)
        : rows(rows),
          panels((outs + WIDTH - 1) / WIDTH),
          pair(pair),
          per_block(per_block),
          threads(pool::threads()) {
        const int64_t blocks = (rows + per_block - 1) / per_block, most = std::max<int64_t>(1, blocks_of_chunk);
        chunks = std::max<int64_t>(1, (2 * blocks + most) / (2 * most));
        per_chunk = (blocks + chunks - 1) / chunks * per_block;
        chunks = (rows + per_chunk - 1) / per_chunk;
    }

    int64_t count() const { return chunks * of_chunk(); }
    int64_t of_chunk() const { return (panels + pair - 1) / pair; }
    int64_t first_row(int64_t task) const { return task / of_chunk() * per_chunk; }
    int64_t num_rows(int64_t task) const { return std::min(per_chunk, rows - first_row(task)); }
    int64_t first_panel(int64_t task) const {
        const int64_t number = task % of_chunk(), each = of_chunk() / threads;
        return (number < each * threads ? number % threads * each + number / threads : number) * pair;
    }
    int64_t num_panels(int64_t task) const { return std::min(pair, panels - first_panel(task)); }

    // What lies in results(), panel by panel: of two panels there is one block of rows.
    template <typename T>
    void put_results(int64_t task, const float *bias, T *out, int64_t outs) const {
        for (int64_t p = 0; p < num_panels(task); p++)
            ::put_results(results(0) + p * num_rows(task) * WIDTH, bias, out + first_row(task) * outs, num_rows(task),
                          outs, first_panel(task) + p);
    }
};
