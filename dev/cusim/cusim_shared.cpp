// Shared memory of a block, with a redzone after each variable, and cp.async, which fills it.
#include "dev/cusim/cusim_inside.h"
#include <sys/mman.h>
#include "llmc/base/integer_math.h"

namespace cusim {

static char dynamic_key;  // its address is the key of dynamic shared memory

void reset_shared(Worker& w) {
    constexpr size_t bytes = SHARED_REGION_BYTES;
#ifdef CUSIM_SANITIZE_thread
    // a fresh address for every block: blocks that run one after the other share nothing
    if (w.shared) munmap(w.shared, bytes);
    w.shared = nullptr;
#endif
    if (!w.shared) {
        w.shared = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (w.shared == MAP_FAILED) fail(NOWHERE, "no memory for shared memory");
        w.shared_used = bytes;
    }
    unpoison(w.shared, bytes);
    fill(w.shared, CANARY, w.shared_used);
    w.shared_used = 0;
    w.variables.clear();
    poison(w.shared, bytes);
    const size_t dynamic_bytes = w.kernel->shared_bytes;
    if (w.kernel->hopper) w.shared_used = 128;  // more alignment than that is not promised
    if (dynamic_bytes) shared_memory(&dynamic_key, "(dynamic)", dynamic_bytes, 128);
}

void* shared_memory(const void* key, const char* name, size_t bytes, size_t alignment) {
    Worker& w = *worker;
    size_t dynamic_bytes = 0, static_bytes = 0;
    for (const SharedVariable& v : w.variables) {
        if (v.key == key) return v.begin;
        (v.key == &dynamic_key ? dynamic_bytes : static_bytes) += v.bytes;
    }
    (key == &dynamic_key ? dynamic_bytes : static_bytes) += bytes;
    if (static_bytes > SHARED_DEFAULT_BYTES)
        fail(NOWHERE, "__shared__ variables take more than %zu bytes, with %s", SHARED_DEFAULT_BYTES, name);
    const size_t most = w.kernel->hopper ? SHARED_HOPPER_BYTES : SHARED_MOST_BYTES;
    if (dynamic_bytes + static_bytes > most)
        fail(NOWHERE, "the block takes %zu bytes of shared memory, %s %zu", dynamic_bytes + static_bytes,
             w.kernel->hopper ? "Hopper has" : "chips from sm_80 to sm_120 all have", most);
    const size_t begin = round_up(w.shared_used, alignment);
    w.shared_used = round_up(begin + bytes + REDZONE_BYTES, 16);
    if (w.shared_used > SHARED_REGION_BYTES) fail(NOWHERE, "too many __shared__ variables, with %s", name);
    char* p = w.shared + begin;
    unpoison(p, bytes);
    fill(p, POISON, bytes);
    w.variables.push_back({key, name, p, bytes});
    return p;
}
void* dynamic_shared_memory() {
    Worker& w = *worker;
    if (w.kernel->shared_bytes == 0) fail(NOWHERE, "asks for dynamic shared memory, the launch gives none");
    return w.variables[0].begin;  // reset_shared put it there
}

const SharedVariable* shared_variable_before(const Worker& w, const void* p) {
    const SharedVariable* nearest = nullptr;
    for (const SharedVariable& v : w.variables)
        if (v.begin <= p && (!nearest || v.begin > nearest->begin)) nearest = &v;
    return nearest;
}

void check_shared([[maybe_unused]] Worker& w) {
#ifndef CUSIM_SANITIZE_address
    for (const SharedVariable& v : w.variables)
        for (size_t i = 0; i < REDZONE_BYTES; i++)
            if ((unsigned char)v.begin[v.bytes + i] != CANARY)
                fail(NOWHERE, "a write beyond the end of the shared variable %s, at byte %zu of %zu", v.name,
                     v.bytes + i, v.bytes);
#endif
}

uint32_t atomic_update(uint32_t* p, uint32_t operand, uint32_t (*compute)(uint32_t, uint32_t)) {
    count_atomic(p, __builtin_return_address(0));
    uint32_t there = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &there, compute(there, operand), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return there;
}

void misaligned(const void* p, size_t bytes, Location location) {
    fail(location, "misaligned access of %zu bytes at %p", bytes, p);
}
void check_hinted(const void* p, size_t bytes, Location location) {
    check_alignment(p, bytes, location);
    const char* const shared = worker->shared;
    if (p >= shared && p < shared + SHARED_REGION_BYTES)
        fail(location,
             "a load or store with a cache hint, which is for global memory, has an address in shared memory");
}

// -------------------------------------------------------------------------------------------------
// cp.async

static void deliver(const Copy& c) {
    memcpy(c.to, c.from, c.bytes_read);
    memset((char*)c.to + c.bytes_read, 0, c.bytes - c.bytes_read);
}
void async_copy(void* to, const void* from, size_t bytes, size_t bytes_read, Location location) {
    check_alignment(to, bytes, location);
    check_alignment(from, bytes, location);
    const Copy copy{to, from, bytes, bytes_read};
    count_copy(copy, __builtin_return_address(0));
    if (seed() && random_bits(worker->random) % 2) deliver(copy);  // it may arrive at any time up to the wait
    else worker->current->fiber->copies.push_back(copy);
}
void async_commit() {
    Fiber& t = *worker->current->fiber;
    t.groups.push_back(t.copies.size());
}
void async_wait(int groups_left) {
    Fiber& t = *worker->current->fiber;
    const int done = (int)t.groups.size() - groups_left;
    if (done <= 0) return;
    const size_t end = t.groups[done - 1];
    for (size_t i = 0; i < end; i++) deliver(t.copies[i]);
    t.copies.erase(t.copies.begin(), t.copies.begin() + end);
    t.groups.erase(t.groups.begin(), t.groups.begin() + done);
    for (size_t& g : t.groups) g -= end;
}

}  // namespace cusim
