// Threads that share the tasks of one region of work, and wait for the work and not for one another.
//
// An OpenMP region ends when each of its threads has come by. Where another program wants a core, one of them may not
// run for milliseconds, and a step of a model has hundreds of regions. Here a region ends when its tasks are done:
//
//   - a thread that is not running takes no task, and nobody waits for it;
//   - a task in the hands of a thread that has stopped running is computed again by the calling thread.
//
// So a task that may be computed twice has two halves. compute() writes to memory of its thread only. Then the first
// thread that is through with it, and no other, may commit(). A thread that wakes up long after its region has ended
// finds that there is nothing to commit. What compute() reads must stay mapped until then, though not unchanged:
// wait_idle() says when.
//
// vLLM: none, its loops are OpenMP's

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#ifdef __aarch64__
inline void pause_core() { asm volatile("isb"); }  // `yield` does nothing on many cores
inline uint64_t ticks() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
#else
inline void pause_core() { __builtin_ia32_pause(); }
inline uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#endif

namespace pool {

extern int (*threads)();  // how many share a region, the calling one included

class Task {
public:
    Task(const std::atomic<uint64_t> &state, uint64_t committed) : state(state), committed(committed) {}
    // Another thread has done it, or is about to: compute() may return early.
    bool settled() const { return state.load(std::memory_order_relaxed) >= committed; }

private:
    const std::atomic<uint64_t> &state;
    const uint64_t committed;
};

struct Region {
    static constexpr int MOST = 192;
    int64_t tasks, first;  // `first` is added to their numbers
    void (*compute)(const void *body, int64_t task, const Task &state);  // may be null
    void (*commit)(const void *body, int64_t task);
    alignas(16) char body[MOST];  // copied, because a late thread may read it after the region has ended
};

// Returns when every task has been committed. One region at a time: a second caller does its tasks alone, and so does
// any where it is not `worth` waking a thread.
void run(Region region, bool worth);

// Returns when no thread is inside a task of a region that has ended.
void wait_idle();

// Memory that compute() may read, from the start of a cache line on. It is given back when no thread can be reading it.
class Buffer {
    static constexpr std::align_val_t LINE{64};

public:
    ~Buffer() { release(); }
    void *reserve(size_t bytes) {
        if (bytes > capacity) {
            release();
            data = (char *)::operator new(capacity = bytes, LINE);
        }
        return data;
    }

private:
    void release() {
        wait_idle();
        ::operator delete(data, LINE);
    }
    char *data = nullptr;
    size_t capacity = 0;
};

template <typename Body>
Region region_of(int64_t tasks, const Body &body) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= Region::MOST);
    Region region = {};
    region.tasks = tasks;
    memcpy(region.body, &body, sizeof body);
    return region;
}

// body(task), each once.
template <typename Body>
void each(int64_t tasks, bool worth, const Body &body) {
    Region region = region_of(tasks, body);
    region.commit = [](const void *body, int64_t task) { (*(const Body *)body)(task); };
    run(region, worth);
}

// body(row), each once, for rows of `size` numbers. A row is little work, so a task is several.
template <typename Body>
void each_row(int64_t rows, int64_t size, const Body &body) {
    constexpr int64_t TASK = 1 << 13, ENOUGH = 1 << 15;  // numbers; waking a thread takes longer than a few rows
    const int64_t together = std::max<int64_t>(1, TASK / size);
    each((rows + together - 1) / together, rows * size > ENOUGH, [&body, rows, together](int64_t task) {
        for (int64_t row = task * together; row < std::min(rows, (task + 1) * together); row++) body(row);
    });
}

// body.compute(task, state), perhaps by several threads, then body.commit(task) by one of them.
template <typename Body>
void each_twice(int64_t tasks, bool worth, const Body &body) {
    Region region = region_of(tasks, body);
    region.compute = [](const void *body, int64_t task, const Task &state) {
        ((const Body *)body)->compute(task, state);
    };
    region.commit = [](const void *body, int64_t task) { ((const Body *)body)->commit(task); };
    run(region, worth);
}

}  // namespace pool
