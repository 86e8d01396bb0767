// What kernels for Hopper use: mbarriers, tensor maps and copies of boxes (TMA), and products that
// are on their way (wgmma). cusim_hopper.h says when copies arrive and products are computed.
#include "dev/cusim/cusim_hopper.h"
#include <sys/mman.h>
#include <algorithm>
#include <set>
#include <utility>
#include "dev/cusim/cusim_inside.h"
#include "dev/cusim/include/cuda.h"

namespace cusim {

uint32_t shared_offset(const void* p) {
    const uintptr_t offset = (uintptr_t)p - (uintptr_t)worker->shared;
    if (offset >= SHARED_REGION_BYTES) fail(NOWHERE, "%p is no address of shared memory", p);
    return (uint32_t)offset;
}

// -------------------------------------------------------------------------------------------------
// the asynchronous proxy

static AsyncProxy& async_proxy(Worker& w) {
    if (!w.async) {  // pages of zeros
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* memory = mmap(nullptr, sizeof(AsyncProxy), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) fail(NOWHERE, "no memory for copies and products");
        w.async = (AsyncProxy*)memory;
    }
    if (!w.async->used) fill(w.async->view, POISON, SHARED_REGION_BYTES);
    w.async->used = true;
    return *w.async;
}
void reset_async(Worker& w) {
    if (!w.async || !w.async->used) return;
    w.async->used = false;
    w.async->loads.count = w.async->stores.count = 0;
    for (WarpGroup& g : w.async->warpgroups) g.begin = g.end = g.groups = 0, g.waiting = 0, g.fenced = false;
}
void fence_async_proxy() {
    Worker& w = *worker;
    AsyncProxy& proxy = async_proxy(w);
    for (size_t i = 0; i < w.shared_used; i++) {
        proxy.view[i] = (unsigned char)w.shared[i];
        asm volatile("" ::: "memory");  // a call of memcpy would be an access to the sanitizers
    }
}
uint16_t async_read(uint32_t address) {
    const AsyncProxy& proxy = async_proxy(*worker);
    if (address + 2 > SHARED_REGION_BYTES)
        fail(NOWHERE, "an operand of wgmma lies beyond shared memory, at byte %u", address);
    tsan_read(worker->shared + address, 2);
    return (uint16_t)(proxy.view[address] | proxy.view[address + 1] << 8);
}

// -------------------------------------------------------------------------------------------------
// mbarriers

struct Barrier {  // the word in shared memory
    uint64_t mark : 2, parity : 1, missing : 20, arrivals : 20;
    int64_t bytes : 21;  // missing; negative if they came before they were expected
};
static_assert(sizeof(Barrier) == 8, "an mbarrier is one word");
constexpr uint64_t INITIALISED = 1;  // neither poison nor zero
constexpr int64_t MOST_BYTES = (1 << 20) - 1;

static Barrier& barrier_at(void* word, Location here) {
    check_alignment(word, 8, here);
    shared_offset(word);
    Barrier& barrier = *(Barrier*)word;
    if (barrier.mark != INITIALISED) fail(here, "this mbarrier is not initialised");
    return barrier;
}
void mbarrier_init(uint64_t* word, uint32_t arrivals, Location here) {
    check_alignment(word, 8, here);
    shared_offset(word);
    if (arrivals == 0 || arrivals >= 1 << 20) fail(here, "an mbarrier of %u arrivals", arrivals);
    Barrier fresh{};
    fresh.mark = INITIALISED, fresh.missing = fresh.arrivals = arrivals;
    *(Barrier*)word = fresh;
    tsan_release(word);
}
// If nothing is missing, the next phase begins, and threads that waited for the end of this one can
// go on.
static void end_phase(Worker& w, Barrier& barrier) {
    if (barrier.missing != 0 || barrier.bytes != 0) return;
    barrier.parity ^= 1, barrier.missing = barrier.arrivals;
    for (Thread& t : w.threads)
        if (t.state == AT_MBARRIER && t.arguments == &barrier && t.mask != barrier.parity) make_runnable(w, t);
}
void mbarrier_arrive(uint64_t* word, uint32_t expected_bytes, Location here) {
    Barrier& barrier = barrier_at(word, here);
    if (barrier.missing == 0) fail(here, "more arrivals at an mbarrier than the %d of a phase", (int)barrier.arrivals);
    if (barrier.bytes + expected_bytes > MOST_BYTES) fail(here, "an mbarrier counts at most %d bytes", (int)MOST_BYTES);
    tsan_release(word);
    barrier.bytes += expected_bytes, barrier.missing--;
    end_phase(*worker, barrier);
}
void mbarrier_wait(uint64_t* word, uint32_t parity, Location here) {
    Worker& w = *worker;
    Thread& self = *w.current;
    Barrier& barrier = barrier_at(word, here);
    if (parity > 1) fail(here, "an mbarrier's phases have the parities 0 and 1, not %u", parity);
    while (barrier.parity == parity) {
        self.state = AT_MBARRIER, self.location = here, self.mask = parity, self.arguments = word;
        wait_here(w);
    }
    tsan_acquire(word);
}
void report_mbarrier(Worker& w, const Thread& t) {
    const Barrier& barrier = *(Barrier*)t.arguments;
    w.current = &w.threads[t.id];
    fail(t.location,
         "waits for the end of a phase of parity %u of an mbarrier, which misses %d of %d arrivals and %d bytes",
         t.mask, (int)barrier.missing, (int)barrier.arrivals, (int)barrier.bytes);
}

// -------------------------------------------------------------------------------------------------
// boxes

struct Map {  // what is in a CUtensorMap
    char* data;
    uint64_t sizes[4], strides[4];  // strides: bytes
    uint32_t box[4], span, mark;
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap), "fits");
constexpr uint32_t ENCODED = 0x7e45;

// Calls f(row of the box, its first element inside the tensor, how many there are, where they are)
// for each row of 64 elements of the box.
template <class F>
static void for_each_row(const Box& b, F f) {
    const Map& m = (const Map&)b.map;
    const int64_t first = std::max(0, -b.at[0]), end = std::min<int64_t>(m.box[0], (int64_t)m.sizes[0] - b.at[0]);
    uint32_t row = 0;
    for (uint32_t k = 0; k < m.box[3]; k++)
        for (uint32_t j = 0; j < m.box[2]; j++)
            for (uint32_t i = 0; i < m.box[1]; i++, row++) {
                const int64_t at[] = {b.at[0] + first, b.at[1] + i, b.at[2] + j, b.at[3] + k};
                bool inside = end > first;
                for (int d = 1; d < 4; d++) inside = inside && at[d] >= 0 && at[d] < (int64_t)m.sizes[d];
                char* p = m.data + at[0] * 2 + at[1] * m.strides[1] + at[2] * m.strides[2] + at[3] * m.strides[3];
                if (inside && !find_allocation(p)) fail(b.here, "the tensor of this copy is not in device memory");
                f(row, inside ? first : 0, inside ? end - first : 0, p);
            }
}
static size_t box_bytes(const Map& m) { return (size_t)m.box[0] * m.box[1] * m.box[2] * m.box[3] * 2; }
static uint32_t box_address(const Box& b, uint32_t row, int64_t element) {
    const Map& m = (const Map&)b.map;
    return swizzled(shared_offset(b.shared) + (uint32_t)(row * m.box[0] + element) * 2, m.span);
}

static void load_box(Worker& w, const Box& b) {
    AsyncProxy& proxy = async_proxy(w);
    tsan_acquire(&proxy.token);
    for_each_row(b, [&](uint32_t row, int64_t first, int64_t n, const char* p) {
        tsan_read(p, n * 2);
        for (int64_t e = 0; e < ((const Map&)b.map).box[0]; e++) {
            const bool inside = e >= first && e < first + n;
            const uint32_t address = box_address(b, row, e);
            for (int byte = 0; byte < 2; byte++)
                proxy.view[address + byte] = w.shared[address + byte] = inside ? p[(e - first) * 2 + byte] : 0;
        }
    });
    const size_t bytes = box_bytes((const Map&)b.map);
    tsan_write(b.shared, bytes);
    Barrier& barrier = barrier_at(b.barrier, b.here);
    tsan_release(b.barrier);
    if (barrier.bytes - (int64_t)bytes < -MOST_BYTES) fail(b.here, "no thread expects the bytes of this copy");
    barrier.bytes -= bytes;
    end_phase(w, barrier);
}
static void store_box(Worker& w, const Box& b) {
    const AsyncProxy& proxy = async_proxy(w);
    for_each_row(b, [&](uint32_t row, int64_t first, int64_t n, char* p) {
        for (int64_t e = first; e < first + n; e++)
            for (int byte = 0; byte < 2; byte++)
                ((volatile char*)p)[(e - first) * 2 + byte] = proxy.view[box_address(b, row, e) + byte];
        tsan_write(p, n * 2);
    });
    tsan_read(b.shared, box_bytes((const Map&)b.map));
}

// Checks what a copy asks for, and returns it.
static Box box_of(const CUtensorMap& map, const void* shared, const int (&at)[4], Location here, const void* code,
                  bool store) {
    const Map& m = (const Map&)map;
    if (m.mark != ENCODED) fail(here, "cuTensorMapEncodeTiled has not made this tensor map");
    check_alignment(&map, 64, here);
    check_alignment(shared, 128, here);
    const uint32_t begin = shared_offset(shared), pattern = m.span * 8;
    if (begin % pattern) fail(here, "a box in rows of %u bytes, swizzled, lies at a multiple of %u", m.span, pattern);
    const auto whole = [&](const SharedVariable& v) {
        return (char*)shared >= v.begin && (char*)shared + box_bytes(m) <= v.begin + v.bytes;
    };
    if (std::none_of(worker->variables.begin(), worker->variables.end(), whole))
        fail(here, "a box of %zu bytes at byte %u of shared memory lies in no variable", box_bytes(m), begin);
    Box box{};
    memcpy(box.map, &map, sizeof(box.map));
    for (int d = 0; d < 4; d++) box.at[d] = at[d];
    box.shared = (char*)shared, box.here = here;
    (void)code, (void)store;
#ifdef CUSIM_COUNTS
    std::vector<std::pair<const char*, size_t>> rows;
    for_each_row(box, [&](uint32_t, int64_t, int64_t n, const char* p) {
        if (n > 0) rows.push_back({p, (size_t)n * 2});
    });
    count_box(store ? STORE : LOAD, rows, code);
#endif
    return box;
}
// to = from, word by word: a compiler may turn the assignment into memcpy, which the thread
// sanitizer watches, and for it switches of fibers order nothing.
static void copy_box(Box& to, const Box& from) {
    typedef uint64_t __attribute__((may_alias)) Word;
    static_assert(sizeof(Box) % sizeof(Word) == 0);
    for (size_t i = 0; i < sizeof(Box) / sizeof(Word); i++) ((volatile Word*)&to)[i] = ((const Word*)&from)[i];
}
static void put(Boxes& all, const Box& box) {
    if (all.count == Boxes::MOST) fail(box.here, "more than %d copies of a block are on their way", Boxes::MOST);
    copy_box(all.box[all.count++], box);
}
static void take(Boxes& all, int i) {
    for (all.count--; i < all.count; i++) copy_box(all.box[i], all.box[i + 1]);
}
void tma_load(void* to, const CUtensorMap& map, const int (&at)[4], uint64_t* barrier, Location here) {
    Worker& w = *worker;
    Box box = box_of(map, to, at, here, __builtin_return_address(0), false);
    barrier_at(barrier, here), box.barrier = barrier;
    if ((async_proxy(w).view[shared_offset(barrier)] & 3) != INITIALISED)
        fail(here, "the mbarrier is not initialised for the asynchronous proxy: a fence_async is missing");
    put(w.async->loads, box);
    tsan_release(&w.async->token);
    if (seed() && random_bits(w.random) % 2) deliver_box(w);
}
bool deliver_box(Worker& w) {
    if (!w.async || w.async->loads.count == 0) return false;
    const int chosen = seed() ? (int)(random_bits(w.random) % w.async->loads.count) : 0;
    load_box(w, w.async->loads.box[chosen]);
    take(w.async->loads, chosen);
    return true;
}
void tma_store(const CUtensorMap& map, const void* from, const int (&at)[4], Location here) {
    Worker& w = *worker;
    Box box = box_of(map, from, at, here, __builtin_return_address(0), true);
    box.thread = w.current->id;
    if (seed() && random_bits(w.random) % 2) store_box(w, box);
    else put(async_proxy(w).stores, box);
}
void tma_store_wait() {
    Worker& w = *worker;
    Boxes& stores = async_proxy(w).stores;
    for (int i = 0; i < stores.count;)
        if (stores.box[i].thread != w.current->id) i++;
        else store_box(w, stores.box[i]), take(stores, i);
}

// -------------------------------------------------------------------------------------------------
// products

// The 128 threads of the warpgroup wait for each other; the last to arrive calls f(group, thread
// 0).
template <class F>
static void together(const char* what, Location here, const void* arguments, uint64_t same, F f) {
    Worker& w = *worker;
    Thread &self = *w.current, *const first = &w.threads[self.id / 128 * 128];
    WarpGroup& group = async_proxy(w).warpgroups[self.id / 128];
    if ((size_t)(self.id / 128 + 1) * 128 > w.threads.size()) fail(here, "%s: a warpgroup has 128 threads", what);
    if (group.waiting++ == 0) group.same = same;
    if (group.same != same) fail(here, "%s: the threads of a warpgroup have different descriptors", what);
    tsan_release(&group.token);
    self.state = IN_WARPGROUP, self.location = here, self.what = what, self.arguments = (void*)arguments;
    if (group.waiting == 128) {
        for (Thread* t = first; t < first + 128; t++)
            if (t->location.line != here.line || strcmp(t->location.file, here.file))
                fail(here, "%s, while another thread of the warpgroup is at %s:%d", what, t->location.file,
                     t->location.line);
        tsan_acquire(&group.token);
        f(group, first);
        tsan_release(&group.token);
        group.waiting = 0;
        for (Thread* t = first; t < first + 128; t++) make_runnable(w, *t);
    }
    wait_here(w);
    tsan_acquire(&group.token);
}
static void compute(Products& p) {
    if (!p.compute) return;
    void* threads[128];
    for (int i = 0; i < 128; i++) threads[i] = p.arguments[i];
    pause_counting(true);
    p.compute(threads);
    pause_counting(false);
    p.compute = nullptr;
}
void wgmma_fence(Location here) {
    together("wgmma_fence", here, nullptr, 0, [](WarpGroup& group, Thread*) { group.fenced = true; });
}
void wgmma_start(const void* arguments, size_t bytes, void (*f)(void**), uint64_t same, Location here) {
    together("wgmma", here, arguments, same, [=](WarpGroup& group, Thread* first) {
        if (!group.fenced) fail(here, "a wgmma without a wgmma_fence since registers could change");
        if (group.end - group.begin == WarpGroup::MOST || bytes > Products::MOST_BYTES)
            fail(here, "more than %d products of a warpgroup are on their way", (int)WarpGroup::MOST);
        Products& p = group.products[group.end++ % WarpGroup::MOST];
        p.compute = f;
        for (int i = 0; i < 128; i++)
            for (size_t k = 0; k < bytes; k++) p.arguments[i][k] = ((volatile unsigned char*)first[i].arguments)[k];
        count_wgmma(*first);
        if (seed() && random_bits(worker->random) % 2)
            for (uint64_t i = group.begin; i < group.end; i++) compute(group.products[i % WarpGroup::MOST]);
    });
}
void wgmma_commit(Location here) {
    together("wgmma_commit", here, nullptr, 0,
             [](WarpGroup& group, Thread*) { group.group_end[group.groups++ % WarpGroup::MOST] = group.end; });
}
void wgmma_wait(int groups_left, Location here) {
    together("wgmma_wait", here, nullptr, 0, [=](WarpGroup& group, Thread*) {
        const uint64_t over = group.groups - std::min<uint64_t>(groups_left, group.groups);
        const uint64_t end = over ? group.group_end[(over - 1) % WarpGroup::MOST] : 0;
        for (; group.begin < end; group.begin++) compute(group.products[group.begin % WarpGroup::MOST]);
        if (group.begin == group.end) group.fenced = false;
    });
}

// -------------------------------------------------------------------------------------------------
// the end

void check_async(Worker& w, const Thread& t) {
    if (!w.async || !w.async->used) return;
    const Boxes& stores = w.async->stores;
    for (int i = 0; i < stores.count; i++)
        if (stores.box[i].thread == t.id)
            fail(stores.box[i].here, "the thread returns without a tma_store_wait for this copy");
    const WarpGroup& group = w.async->warpgroups[t.id / 128];
    if (group.begin < group.end) fail(NOWHERE, "a thread returns while its products are on their way");
}
void check_async(Worker& w) {
    if (w.async && w.async->used && w.async->loads.count)
        fail(w.async->loads.box[0].here, "the block ends while this copy is on its way");
}

static std::set<const void*>& hopper_kernels() {
    static auto* all = new std::set<const void*>;
    return *all;
}
void allow_hopper(const void* kernel) { hopper_kernels().insert(kernel); }
bool runs_on_hopper(const void* kernel) { return hopper_kernels().count(kernel) > 0; }

}  // namespace cusim

using namespace cusim;

// The driver's requirements, as far as they concern bf16 in 4 dimensions, not interleaved.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    Map m{};
    m.data = (char*)address, m.span = 16u << swizzle, m.mark = ENCODED;
    bool good = rank == 4 && (uintptr_t)map % 64 == 0 && (uintptr_t)address % 16 == 0;
    for (int d = 0; d < 4; d++) {
        m.sizes[d] = sizes[d], m.box[d] = box[d], m.strides[d] = d ? strides[d - 1] : 2;
        good = good && sizes[d] >= 1 && sizes[d] <= 1ull << 32 && box[d] >= 1 && box[d] <= 256;
        good = good && element_strides[d] == 1 && (d == 0 || (m.strides[d] % 16 == 0 && m.strides[d] < 1ull << 40));
    }
    good = good && box[0] * 2 % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * 2 <= m.span);
    memcpy(map, &m, sizeof(m));
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, uint64_t) {
    if (strcmp(name, "cuTensorMapEncodeTiled")) return error(cudaErrorInvalidValue);
    return *function = (void*)cuTensorMapEncodeTiled, cudaSuccess;
}
