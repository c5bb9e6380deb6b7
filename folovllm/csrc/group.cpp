// Sums over the ranks of a group: processes of one machine that share a piece of memory.
//
//     | arrived, a line for each rank | slots of even turns, one for each rank | slots of odd turns |
//
// In a turn each rank writes its numbers into its slot, says so, waits until all have, and adds up the slots in the order
// of the ranks. So the sum has the same bits on every rank: those of one process that adds the same parts. A slot is
// written again two turns later. Whoever begins that turn has seen that all wrote in the turn between, and so had read.
//
// A rank that has ended closes its socket, and one that hangs passes the time limit. Either ends the waiting here, and
// every turn that follows returns at once, without a result: the caller asks for `failed`.
//
// vLLM: csrc/cpu/shm.cpp

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels.h"
#include "panels.h"

#ifndef POLLRDHUP
#define POLLRDHUP POLLHUP  // macOS: says it, and only to who asks
#endif

namespace {

constexpr int SPINS = 2000;       // looks before the core is given to another thread: some 50 us
constexpr int LOOKS = 1024;       // between two questions whether all are still there

std::atomic<int64_t> &arrived(const Group &g, int64_t rank) {
    return *(std::atomic<int64_t> *)(g.memory + rank * LINE);
}

char *slot(const Group &g, int64_t rank) {
    return g.memory + g.size * LINE + ((g.turn & 1) * g.size + rank) * g.slot_bytes;
}

int64_t now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Whether a socket has been closed at its other end: 1 + its number, or 0.
int64_t closed(const Group &g) {
    for (int64_t i = 0; i < g.num_sockets; i++) {
        pollfd asked = {g.sockets[i], POLLRDHUP, 0};
        if (poll(&asked, 1, 0) > 0) return i + 1;
    }
    return 0;
}

// Writes `bytes` of `mine` into this rank's slot of the next turn; true when all ranks have.
bool take_turn(Group &g, const void *mine, int64_t bytes) {
    if (g.failed) return false;
    g.turn++;
    memcpy(slot(g, g.rank), mine, bytes);
    arrived(g, g.rank).store(g.turn, std::memory_order_release);  // after its slot, and after it read the last turn's
    int64_t began = 0;
    for (int64_t rank = 0; rank < g.size; rank++)
        // Before its slot is read, and before this rank's slot of the turn before last is written again.
        for (int64_t looks = 1; arrived(g, rank).load(std::memory_order_acquire) < g.turn; looks++) {
            if (looks < SPINS) {
                pause_core();
                continue;
            }
            sched_yield();
            if (looks % LOOKS) continue;
            if (!began) began = now();
            g.failed = now() - began > g.timeout_ms ? -1 - rank : closed(g);
            // What it wrote before it ended counts.
            if (g.failed && arrived(g, rank).load(std::memory_order_acquire) < g.turn) return false;
            g.failed = 0;
        }
    return true;
}

template <typename T>
void all_reduce(Group &g, T *x, int64_t count) {
    const int64_t most = g.slot_bytes / (int64_t)sizeof(T);
    g.sums++, g.bytes += count * sizeof(T);
    for (; count > 0; x += most, count -= most) {
        const int64_t size = std::min(count, most);
        if (!take_turn(g, x, size * sizeof(T))) return;
        for (int64_t i = 0; i < size; i += LANES) {  // a slot is whole vectors
            vec total = load((const T *)slot(g, 0) + i);
            for (int64_t rank = 1; rank < g.size; rank++) total += load((const T *)slot(g, rank) + i);
            T lanes[LANES];
            store(lanes, total);
            memcpy(x + i, lanes, std::min<int64_t>(LANES, size - i) * sizeof(T));
        }
    }
}

}  // namespace

extern "C" {

void all_reduce_float32(Group *group, float *x, int64_t count) { all_reduce(*group, x, count); }
void all_reduce_bfloat16(Group *group, bf16 *x, int64_t count) { all_reduce(*group, x, count); }

// Every rank's bytes, sizes[rank] of them, to outs[rank]. Null: this rank does not want them.
void all_gather_bytes(Group *group, const char *mine, const int64_t *sizes, char *const *outs) {
    Group &g = *group;
    const int64_t largest = *std::max_element(sizes, sizes + g.size);
    for (int64_t at = 0; at < largest; at += g.slot_bytes) {
        auto bytes = [&](int64_t rank) { return std::clamp<int64_t>(sizes[rank] - at, 0, g.slot_bytes); };
        if (!take_turn(g, mine + at, bytes(g.rank))) return;
        for (int64_t rank = 0; outs && rank < g.size; rank++) memcpy(outs[rank] + at, slot(g, rank), bytes(rank));
    }
}
}
