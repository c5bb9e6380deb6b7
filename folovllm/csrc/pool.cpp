// How the threads of pool.h find work, finish it and fall asleep.
//
// Regions are numbered. A task's state only grows: twice the region's number while a thread commits it, one more when
// that is done, less before. So one comparison tells a late thread that its region is over.
//
// Each memory order below is there for one thing that another thread reads, as Arm shows writes in another order than
// x86. Where none is named it is sequentially consistent: of `published`, since notify_all() must see who falls asleep.
//
// vLLM: none, its loops are OpenMP's

#include "kernels.h"
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <thread>

namespace pool {
namespace {

constexpr int64_t MOST_TASKS = 1 << 14;  // of one region; more are done in several
constexpr int TASK_BITS = 16;
constexpr int MOST_HELPERS = 255;
constexpr int SPINS = 4000;     // looks for the next region before a thread falls asleep: some 100 us
constexpr int SHORT_SPIN = 64;  // looks at a commit before the core is given to another thread

Region current;                   // written while `published` is odd
int helpers_wanted;               // by the current region
uint64_t number;                  // of the current region
std::atomic<uint64_t> published;  // 2 * number, or one less while it is being written
std::atomic<uint64_t> next;       // number << TASK_BITS, plus the first task that no thread has taken
std::atomic<uint64_t> states[MOST_TASKS];

std::atomic<bool> running;      // a region
int helpers;                    // threads that have been started
pthread_t handles[MOST_HELPERS];
int away_from = -1;             // the CPU that they are kept from
std::atomic<uint64_t> begun_ended[MOST_HELPERS];  // odd while that thread is inside a task

inline uint64_t committing(uint64_t region) { return 2 * region; }
inline uint64_t committed(uint64_t region) { return 2 * region + 1; }

// A task of that region which no thread has taken, or -1.
int64_t take(uint64_t region, int64_t tasks) {
    uint64_t value = next.load();  // who finds no task left has seen each that was taken
    for (;;) {
        const int64_t task = value & ((1 << TASK_BITS) - 1);
        if (value >> TASK_BITS != region || task >= tasks) return -1;
        if (next.compare_exchange_weak(value, value + 1)) return task;
    }
}

void do_task(const Region &region, uint64_t number, int64_t task) {
    std::atomic<uint64_t> &state = states[task];
    if (region.compute) region.compute(region.body, region.first + task, Task(state, committing(number)));
    uint64_t seen = state.load();
    do {
        if (seen >= committing(number)) return;  // another thread was faster
    } while (!state.compare_exchange_weak(seen, committing(number)));
    region.commit(region.body, region.first + task);
    state.store(committed(number), std::memory_order_release);  // after what commit() wrote: the caller reads it
}

// The newest region that a helper has not seen. Looks for a while, then sleeps until there is one.
uint64_t await_region(uint64_t seen) {
    for (;;) {
        uint64_t newest = seen;
        for (int i = 0; i < SPINS; i++) {
            newest = published.load(std::memory_order_acquire);  // before `current` is read
            if (newest != seen && newest % 2 == 0) return newest;
            pause_core();
        }
        published.wait(newest);
    }
}

void help(int self) {
    for (uint64_t seen = 0;;) {
        seen = await_region(seen);
        Region region;
        memcpy(&region, &current, sizeof region);
        const bool wanted = self < helpers_wanted;
        std::atomic_thread_fence(std::memory_order_acquire);  // `current` was read before this asks again
        if (!wanted || published.load(std::memory_order_relaxed) != seen) continue;  // or it was overwritten meanwhile
        for (int64_t task = 0; task >= 0;) {
            begun_ended[self].fetch_add(1);
            task = take(seen / 2, region.tasks);
            if (task >= 0) do_task(region, seen / 2, task);
            begun_ended[self].fetch_add(1);  // after what the task read: wait_idle() lets it be freed
        }
    }
}

void start_helpers(int wanted) {
    [[maybe_unused]] static const int in_children = pthread_atfork(nullptr, nullptr, [] {  // which have the calling thread only
        helpers = 0;
        away_from = -1;
        running = false;
        for (auto &count : begun_ended) count = 0;
    });
    for (; helpers < wanted; helpers++) {
        std::thread helper(help, helpers);
        handles[helpers] = helper.native_handle();
        helper.detach();
        away_from = -1;
    }
}

// Keep the helpers from the CPU that this thread runs on. The kernel may wake them just there, to save power, and they
// would take turns with the thread that they are to help.
void keep_away() {
#ifdef __linux__  // macOS does not let a program choose
    const int mine = sched_getcpu();
    if (mine == away_from) return;
    away_from = mine;
    cpu_set_t others;
    if (sched_getaffinity(0, sizeof others, &others) != 0) return;
    CPU_CLR(mine, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (int i = 0; i < helpers; i++) pthread_setaffinity_np(handles[i], sizeof others, &others);
#endif
}

void publish(const Region &region, int wanted) {
    number++;
    published.store(2 * number - 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // whoever reads what follows sees the odd number
    memcpy(&current, &region, sizeof current);
    helpers_wanted = wanted;
    next.store(number << TASK_BITS);
    published.store(2 * number);  // after all of the above: whoever sees this number reads its region
    published.notify_all();
}

void run_shared(const Region &region, int wanted) {
    publish(region, wanted);
    uint64_t longest = 0;  // of this thread's tasks
    for (int64_t task; (task = take(number, region.tasks)) >= 0;) {
        const uint64_t start = ticks();
        do_task(region, number, task);
        longest = std::max(longest, ticks() - start);
    }
    // What is left is in the hands of other threads. One that is running is through in the time that a task takes.
    for (int64_t task = 0; task < region.tasks; task++) {
        const uint64_t start = ticks();
        for (int looks = 0;; looks++) {
            const uint64_t state = states[task].load(std::memory_order_acquire);  // before its results are read
            if (state >= committed(number)) break;
            if (state < committing(number) && region.compute && ticks() - start > longest)
                do_task(region, number, task);
            else if (looks < SHORT_SPIN || state < committing(number))
                pause_core();
            else
                sched_yield();
        }
    }
}

}  // namespace

int (*threads)() = [] { return 1; };

void run(Region region, bool worth) {
    const int wanted = std::min<int64_t>({threads(), region.tasks, MOST_HELPERS + 1}) - 1;
    if (!worth || wanted < 1 || running.exchange(true)) {
        const std::atomic<uint64_t> open(0);
        for (int64_t task = 0; task < region.tasks; task++) {
            if (region.compute) region.compute(region.body, task, Task(open, 1));
            region.commit(region.body, task);
        }
        return;
    }
    start_helpers(wanted);
    keep_away();
    const int64_t all = region.tasks;
    for (region.first = 0; region.first < all; region.first += MOST_TASKS) {
        region.tasks = std::min(all - region.first, MOST_TASKS);
        run_shared(region, wanted);
    }
    running = false;
}

void wait_idle() {
    for (auto &count : begun_ended) {
        const uint64_t before = count.load();
        while (before % 2 && count.load() == before) sched_yield();
    }
}

}  // namespace pool

void set_threads(int (*count)()) { pool::threads = count; }
void wait_idle() { pool::wait_idle(); }
