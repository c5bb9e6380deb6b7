// The hand-off of folovllm/csrc/pool.cpp for CDSChecker, a model checker, which tries every interleaving and every value
// that C++11 lets a load see. An emulator on x86 shows only those that x86 lets it see. Names and orders are pool.cpp's;
// `current`, which that copies with memcpy, is two relaxed atomics here, so that a torn copy can be seen.
//
//     github.com/computersforpeace/model-checker, made with -std=gnu++11 and USE_MPROTECT_SNAPSHOT 0 in its config.h
//     g++ -std=gnu++11 -I$CDS/include workshop/arm/handoff.cc -L$CDS -lmodel -o handoff
//     LD_LIBRARY_PATH=$CDS ./handoff -m 2
//
// What must hold: a region is read whole or not at all; a task is committed once, with its own region's numbers; the
// caller sees what was committed; nobody reads what is freed after wait_idle(). It does in all 2,712 executions of one
// region with two looks, and in all 2,701 of two regions with one. With one order made relaxed it does not: LOOK, COMMIT,
// DONE, END and IDLE show it in the first of the two, COPIED and WRITING in the second. TAKE showed it where the caller
// waited idle between two regions, in 5 of 92,462. PUBLISH shows nothing: CDSChecker counts a store behind a release
// fence as one before it.
#include <threads.h>

#include <atomic>

#include "librace.h"
#include "model-assert.h"

const std::memory_order relaxed = std::memory_order_relaxed, acquire = std::memory_order_acquire,
                        release = std::memory_order_release, seq_cst = std::memory_order_seq_cst;

const std::memory_order LOOK = acquire, COPIED = acquire, WRITING = release, PUBLISH = seq_cst, COMMIT = release,
                        DONE = acquire, TAKE = seq_cst, END = seq_cst, IDLE = seq_cst;
const int REGIONS = 1;
const int LOOKS = 2;  // of a helper for a region, of the caller for a commit; then an execution ends, and shows nothing

std::atomic<unsigned> published, next, state, begun_ended, current[2];
std::atomic<unsigned> input;                    // what a task reads; the caller may be writing the next region's
unsigned memory, result, commits[REGIONS + 1];  // plain: the checker reports a race

bool take(unsigned region) {  // the one task of a region
    unsigned value = next.load(TAKE);
    while (value == region << 4)
        if (next.compare_exchange_weak(value, value + 1, TAKE, relaxed)) return true;
    return false;
}

void do_task(unsigned region) {
    const unsigned computed = input.load(relaxed) + load_32(&memory);
    unsigned seen = state.load(seq_cst);
    do {
        if (seen >= 2 * region) return;
    } while (!state.compare_exchange_weak(seen, 2 * region, seq_cst, relaxed));
    MODEL_ASSERT(computed == region);
    store_32(&commits[region], load_32(&commits[region]) + 1);
    store_32(&result, computed);
    state.store(2 * region + 1, COMMIT);
}

void help(void *) {
    unsigned seen = 0;
    for (int looks = 0; looks < LOOKS; looks++) {
        const unsigned newest = published.load(LOOK);
        if (newest == seen || newest % 2) continue;
        seen = newest;
        const unsigned first = current[0].load(relaxed), second = current[1].load(relaxed);
        std::atomic_thread_fence(COPIED);
        if (published.load(relaxed) != seen) continue;
        MODEL_ASSERT(first == seen / 2 && second == seen / 2);
        for (bool taken = true; taken;) {
            begun_ended.fetch_add(1, seq_cst);
            if ((taken = take(seen / 2))) do_task(seen / 2);
            begun_ended.fetch_add(1, END);
        }
    }
}

bool run(unsigned region) {
    input.store(region, relaxed);
    published.store(2 * region - 1, relaxed);
    std::atomic_thread_fence(WRITING);
    for (auto &word : current) word.store(region, relaxed);
    next.store(region << 4, seq_cst);
    published.store(2 * region, PUBLISH);
    while (take(region)) do_task(region);
    for (int looks = 0; state.load(DONE) < 2 * region + 1; looks++) {
        if (looks == LOOKS) return false;
        if (state.load(relaxed) < 2 * region) do_task(region);
    }
    MODEL_ASSERT(load_32(&result) == region && load_32(&commits[region]) == 1);
    return true;
}

bool wait_idle() {
    const unsigned before = begun_ended.load(IDLE);
    for (int looks = 0; before % 2 && begun_ended.load(IDLE) == before; looks++)
        if (looks == LOOKS) return false;
    return true;
}

int user_main(int, char **) {
    std::atomic<unsigned> *all[] = {&published, &next, &state, &begun_ended, &input, &current[0], &current[1]};
    for (auto *each : all) std::atomic_init(each, 0u);
    thrd_t helper;
    thrd_create(&helper, (thrd_start_t)&help, 0);
    unsigned region = 1;
    while (region <= REGIONS && run(region)) region++;
    if (region > REGIONS && wait_idle()) store_32(&memory, 1);  // it was freed, and is another's
    thrd_join(helper);
    return 0;
}
