// Counting what decides the speed of a kernel, in programs built with COUNT=1. README.md says what
// is counted, and how to read it.
//
// Each access brings its address, and says by its return address which instruction of the program
// it is (cusim_count_calls.cpp).
//
// The lanes of a warp run one after the other here. Of each instruction, the i-th execution by one
// lane belongs to the i-th by the others: together they are one request, as the GPU issues it.
// Executions are counted from the last barrier or exchange of the warp on, so lanes that have taken
// different branches before are in step again there.
#ifdef CUSIM_COUNTS
#include "dev/cusim/cusim_inside.h"
#include <dlfcn.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <unordered_map>
#include <utility>

namespace cusim {

enum Kind {
    GLOBAL,            // + Access
    SHARED = 3,        // + Access
    ASYNC_GLOBAL = 6,  // the two sides of cp.async
    ASYNC_SHARED,
    LDMATRIX,
    BOX,  // + Access: TMA
    KINDS = BOX + 2
};
static const char* const KIND_NAMES[] = {"global_load",  "global_store",  "global_atomic",   "shared_load",
                                         "shared_store", "shared_atomic", "cp_async_global", "cp_async_shared",
                                         "ldmatrix",     "tma_load",      "tma_store"};
static bool in_global(Kind kind) { return kind < SHARED || kind == ASYNC_GLOBAL || kind >= BOX; }

// What was counted of one instruction, or of all of one kind.
struct Tally {
    uint64_t requests = 0, bytes = 0;  // instructions of a warp; bytes that its lanes asked for
    uint64_t transfers = 0;            // global memory: sectors; shared memory: wavefronts
    uint64_t least = 0;                // shared memory: wavefronts if no banks conflicted
    void add(const Tally& t) { requests += t.requests, bytes += t.bytes, transfers += t.transfers, least += t.least; }
};

// -------------------------------------------------------------------------------------------------
// requests

struct Request {
    uint32_t lanes = 0, order = 0;  // order: among those of the program
    uint64_t address[32];
};
// What one warp has asked for by one instruction since it was last in step.
struct Asked {
    uint32_t executions[32] = {};  // by each lane
    std::vector<Request> requests;
};
struct Site {  // an instruction that accesses memory
    Kind kind;
    uint32_t bytes;  // of one lane
    const void* code;
    std::vector<Asked> warps;
    Tally tally;  // of the kernel that runs
};
struct SiteKey {
    const void* code;
    uint64_t what;  // kind, bytes, part
    bool operator==(const SiteKey& k) const { return code == k.code && what == k.what; }
};
struct SiteHash {
    size_t operator()(const SiteKey& k) const { return ((uint64_t)k.code * 31 + k.what) * 0x9E3779B97F4A7C15u >> 20; }
};

// The bytes that a kernel has touched, one bit for each.
struct Touched {
    struct Page {
        uint64_t bits[PAGE / 64] = {};
    };
    std::unordered_map<uint64_t, Page> pages;
    uint64_t last_number = 0;
    Page* last = nullptr;

    void mark(uint64_t address, uint32_t bytes) {  // which lie in one group of 64 bytes
        if (!last || address / PAGE != last_number) last_number = address / PAGE, last = &pages[last_number];
        last->bits[address % PAGE / 64] |= ((1ull << bytes) - 1) << address % 64;
    }
    // Adds the bytes and the sectors touched, and forgets them.
    void take(uint64_t& bytes, uint64_t& sectors) {
        for (auto& [number, page] : pages)
            for (uint64_t b : page.bits)
                bytes += __builtin_popcountll(b), sectors += ((uint32_t)b != 0) + (b >> 32 != 0);
        pages.clear(), last = nullptr;
    }
};

// One kernel with one configuration of its launch, over all its launches.
struct KernelCounts {
    uint64_t launches = 0, blocks = 0, barriers = 0;
    uint64_t accesses = 0, longest_thread = 0;  // by all threads; by the one with most of them
    uint64_t read_bytes = 0, read_sectors = 0, written_bytes = 0, written_sectors = 0;  // each counted once per launch
    std::map<std::string, uint64_t> collectives;
    std::map<const Site*, Tally> sites;
};

struct Counter {
    std::unordered_map<SiteKey, Site, SiteHash> sites;
    std::array<std::pair<SiteKey, Site*>, 4096> found{};  // a cache of `sites`
    std::vector<std::pair<Site*, int>> pending;           // sites and warps that have requests
    Touched read, written;
    KernelCounts now;                             // of the kernel that runs
    std::map<std::string, KernelCounts> kernels;  // by the part of the JSON that identifies them
    std::vector<std::string> order;
    uint32_t requests = 0;
    uint64_t of_thread[MOST_THREADS] = {};  // accesses in this block
    bool paused = false;
    int shown = 0;  // lines of CUSIM_SHOW about the kernel that runs
};
static Counter& counter() {
    static Counter* c = new Counter;
    return *c;
}

// 32-byte sectors of global memory that a request touches. Each lane's bytes lie in one.
static uint64_t sectors_of(const Request& r) {
    uint64_t sectors[32], n = 0;
    for (int lane = 0; lane < 32; lane++) {
        if (!(r.lanes >> lane & 1)) continue;
        const uint64_t sector = r.address[lane] / 32;
        if (std::find(sectors, sectors + n, sector) == sectors + n) sectors[n++] = sector;
    }
    return n;
}

// Shared memory has 32 banks of 4 bytes. A wavefront brings one word of each bank, to as many lanes
// as want it. Lanes that ask for 8 bytes are served by halves of a warp, for 16 bytes by quarters.
static std::pair<uint64_t, uint64_t> wavefronts_of(const Request& r, uint32_t bytes) {
    const int group_lanes = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    uint64_t wavefronts = 0, groups = 0;
    for (int first = 0; first < 32; first += group_lanes) {
        if ((r.lanes >> first & (uint32_t)((1ull << group_lanes) - 1)) == 0) continue;
        uint64_t words[32][32], most = 0;
        uint32_t used[32] = {};
        for (int lane = first; lane < first + group_lanes; lane++) {
            if (!(r.lanes >> lane & 1)) continue;
            for (uint64_t word = r.address[lane] / 4; word * 4 < r.address[lane] + bytes; word++) {
                uint64_t* const there = words[word % 32];
                uint32_t& n = used[word % 32];
                if (std::find(there, there + n, word) == there + n) there[n++] = word;
                most = std::max<uint64_t>(most, n);
            }
        }
        wavefronts += most, groups++;
    }
    return {wavefronts, groups};
}

// CUSIM_SHOW=file: what the first block of each launch does, so many lines of JSON at most: each
// request with the place of each lane's address, and where lanes wait for each other.
constexpr int MOST_SHOWN = 6000;
static FILE* show_line(Counter& c) {
    static FILE* const file = getenv("CUSIM_SHOW") ? fopen(getenv("CUSIM_SHOW"), "w") : nullptr;
    const Kernel& k = *worker->kernel;
    const uint3& b = worker->block;
    if (!file || b.x || b.y || b.z || c.shown == MOST_SHOWN) return nullptr;
    if (c.shown++ == 0) {
        setlinebuf(file);  // a mistake may end the program
        fprintf(file, "{\"launch\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]}\n", k.name.c_str(),
                k.grid.x, k.grid.y, k.grid.z, k.block.x, k.block.y, k.block.z);
    }
    if (c.shown == MOST_SHOWN) fprintf(file, "{\"cut\": true}\n");
    return file;
}
static size_t offset_of(const void* code) {  // in the program's file
    Dl_info info{};
    dladdr(code, &info);
    return (size_t)((const char*)code - (const char*)info.dli_fbase);
}
static void show_request(Counter& c, const Site& site, const Request& r, int warp, uint64_t transfers, uint64_t least) {
    FILE* const file = show_line(c);
    if (!file) return;
    const char* const one = (const char*)r.address[__builtin_ctz(r.lanes)];
    const bool global = in_global(site.kind);
    const Allocation* a = global ? find_allocation(one) : nullptr;
    const SharedVariable* v = global ? nullptr : shared_variable_before(*worker, one);
    const char* const begin = a ? a->user : worker->shared;
    fprintf(file, "{\"order\": %u, \"warp\": %d, \"code\": \"%#zx\", \"kind\": \"%s\", \"bytes\": %u, ", r.order, warp,
            offset_of(site.code), KIND_NAMES[site.kind], site.bytes);
    fprintf(file, "\"transfers\": %zu, \"least\": %zu, ", transfers, least);
    if (a) fprintf(file, "\"memory\": \"%p\", \"size\": %zu, \"begin\": 0, \"at\": [", (void*)a->user, a->bytes);
    else
        fprintf(file, "\"memory\": \"%s\", \"size\": %zu, \"begin\": %td, \"at\": [", v ? v->name : "",
                v ? v->bytes : 0, v ? v->begin - begin : 0);
    for (int lane = 0; lane < 32; lane++)
        fprintf(file, "%s%td", lane ? ", " : "", r.lanes >> lane & 1 ? (const char*)r.address[lane] - begin : -1);
    fprintf(file, "]}\n");
}

static void finish_request(Counter& c, Site& site, const Request& r, int warp) {
    Tally& t = site.tally;
    const auto [transfers, least] =
        in_global(site.kind) ? std::pair<uint64_t, uint64_t>{sectors_of(r), 0} : wavefronts_of(r, site.bytes);
    t.requests++, t.bytes += (uint64_t)__builtin_popcount(r.lanes) * site.bytes;
    t.transfers += transfers, t.least += least;
    show_request(c, site, r, warp, transfers, least);
    if (!in_global(site.kind)) return;
    for (int lane = 0; lane < 32; lane++) {
        if (!(r.lanes >> lane & 1)) continue;
        if (site.kind != GLOBAL + STORE) c.read.mark(r.address[lane], site.bytes);
        if (site.kind == GLOBAL + STORE || site.kind == GLOBAL + ATOMIC) c.written.mark(r.address[lane], site.bytes);
    }
}

static Site& site_of(Counter& c, Kind kind, uint32_t bytes, const void* code, uint32_t part) {
    const SiteKey key{code, (uint64_t)kind << 48 | (uint64_t)part << 16 | bytes};
    auto& [known, site] = c.found[SiteHash()(key) % c.found.size()];
    if (!site || !(known == key)) {
        known = key, site = &c.sites[key];
        site->kind = kind, site->bytes = bytes, site->code = code;
    }
    return *site;
}

// Neighbouring accesses to shared memory by the same lanes, which together lie in 16 aligned bytes.
struct Run {
    Site* site;
    const Request* first;
    uint32_t bytes, start;  // start: modulo 16, that of all lanes
};
static bool continues(const Run& run, const Site& site, const Request& r) {
    bool good = r.lanes == run.first->lanes && run.start + run.bytes + site.bytes <= 16;
    for (int lane = 0; lane < 32; lane++)
        if (r.lanes >> lane & 1)
            good = good && r.address[lane] == run.first->address[lane] + run.bytes &&
                   run.first->address[lane] % 16 == run.start;
    return good;
}
// A run takes as few instructions as aligned powers of two allow.
static void finish_run(Counter& c, const Run& run, int warp) {
    for (uint32_t at = 0, width; at < run.bytes; at += width) {
        for (width = 16; width > run.bytes - at || (run.start + at) % width != 0;) width /= 2;
        Request r = *run.first;
        for (uint64_t& address : r.address) address += at;
        finish_request(c, width == run.site->bytes ? *run.site : site_of(c, run.site->kind, width, run.site->code, 0),
                       r, warp);
    }
}
// nvcc makes one instruction of neighbouring loads, or stores, of shared memory whose alignment it
// knows. Here they are those that are aligned in all lanes. Loads do not pass stores.
static void finish_shared(Counter& c, std::vector<std::pair<Site*, const Request*>>& all, int warp) {
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.second->order < b.second->order; });
    std::vector<Run> runs;
    std::unordered_map<uint64_t, size_t> ends;  // by where they end for their first lane
    for (size_t i = 0; i < all.size(); i++) {
        const auto [site, r] = all[i];
        if (i > 0 && site->kind != all[i - 1].first->kind) ends.clear();
        const uint64_t address = r->address[__builtin_ctz(r->lanes)];
        const auto before = ends.find(address);
        size_t run = runs.size();
        if (before != ends.end() && continues(runs[before->second], *site, *r)) {
            run = before->second, runs[run].bytes += site->bytes;
            ends.erase(before);
        } else runs.push_back({site, r, site->bytes, (uint32_t)(address % 16)});
        ends[address + site->bytes] = run;
    }
    for (const Run& run : runs) finish_run(c, run, warp);
}

// The lanes of a warp are in step: what they have asked for is complete. warp -1: all of them.
static void finish_requests(int warp) {
    Counter& c = counter();
    std::vector<std::pair<Site*, int>> finished, others;
    for (auto& p : c.pending) (warp < 0 || p.second == warp ? finished : others).push_back(p);
    c.pending = others;
    std::map<int, std::vector<std::pair<Site*, const Request*>>> shared;  // by warp
    for (auto [site, w] : finished)
        for (const Request& r : site->warps[w].requests)
            if (site->kind == SHARED + LOAD || site->kind == SHARED + STORE) shared[w].push_back({site, &r});
            else finish_request(c, *site, r, w);
    for (auto& [w, all] : shared) finish_shared(c, all, w);
    for (auto [site, w] : finished) {
        site->warps[w].requests.clear();
        std::fill(site->warps[w].executions, site->warps[w].executions + 32, 0);
    }
}

static void add_access(Kind kind, const void* p, uint32_t bytes, const void* code, uint32_t part = 0) {
    Counter& c = counter();
    Site& site = site_of(c, kind, bytes, code, part);
    const int warp = worker->current->id / 32, lane = worker->current->id % 32;
    if ((int)site.warps.size() <= warp) site.warps.resize(warp + 1);
    Asked& asked = site.warps[warp];
    const uint32_t execution = asked.executions[lane]++;
    c.of_thread[worker->current->id]++;
    if (asked.requests.empty()) c.pending.push_back({&site, warp});
    if (execution >= asked.requests.size()) asked.requests.emplace_back(), asked.requests.back().order = c.requests++;
    Request& r = asked.requests[execution];
    r.lanes |= 1u << lane, r.address[lane] = (uint64_t)p;
}

// -------------------------------------------------------------------------------------------------
// what the program and the simulator tell

static bool in_shared(const void* p) { return (uintptr_t)p - (uintptr_t)worker->shared < SHARED_REGION_BYTES; }

// A GPU would carry out what is read beyond its memory, or what lands in an array beside it.
static void check_bounds(bool shared, const char* p, uint32_t bytes, const void* code) {
    const Allocation* a = shared ? nullptr : find_allocation(p);
    const SharedVariable* v = shared ? shared_variable_before(*worker, p) : nullptr;
    if (a && p >= a->user && p + bytes > a->user + a->bytes)
        fail(location_of((const char*)code - 1), "access to %p, byte %zu of a device buffer of %zu bytes", p,
             (size_t)(p - a->user), a->bytes);
    if (shared && !v) fail(location_of((const char*)code - 1), "access to shared memory before its first variable");
    if (v && p + bytes > v->begin + v->bytes)
        fail(location_of((const char*)code - 1), "access beyond the end of the shared variable %s, at byte %zu of %zu",
             v->name, (size_t)(p - v->begin), v->bytes);
}

// Accesses of the host, and those to the stack, which stands for registers, are none.
void count_access(Access access, const void* p, uint32_t bytes, const void* code) {
    if (!worker || !worker->current || counter().paused) return;
    const bool shared = in_shared(p);
    if (!shared && (in_stack(worker->current->fiber, p) || !find_allocation(p))) return;
    check_bounds(shared, (const char*)p, bytes, code);
    const Kind kind = (Kind)((shared ? SHARED : GLOBAL) + access);
    // what is not aligned to its size, or has no power of two, takes an instruction for each 4
    // bytes, or less
    uint32_t width = bytes;
    if ((bytes & (bytes - 1)) != 0 || bytes > 16 || (uintptr_t)p % bytes != 0)
        for (width = 4; ((uintptr_t)p | bytes) % width != 0;) width /= 2;
    for (uint32_t at = 0; at < bytes; at += width) add_access(kind, (const char*)p + at, width, code, at);
}

// CUSIM_COPIES=file: each copy of cp.async, in the order in which blocks start: kernel, block,
// bytes of the allocation that it reads, where in it, how many bytes. dev/cuda/cache_replay.py is
// held to them.
static void write_copy(const Copy& copy) {
    static FILE* const file = getenv("CUSIM_COPIES") ? fopen(getenv("CUSIM_COPIES"), "w") : nullptr;
    if (!file) return;
    const Allocation* from = find_allocation(copy.from);
    const uint3& b = worker->block;
    fprintf(file, "%s %u,%u,%u %zu %zu %zu\n", worker->kernel->name.c_str(), b.x, b.y, b.z, from->bytes,
            (size_t)((const char*)copy.from - from->user), copy.bytes_read);
}
void count_atomic(const void* p, const void* code) { count_access(ATOMIC, p, 4, code); }
void count_copy(const Copy& copy, const void* code) {
    if (copy.bytes_read) write_copy(copy);
    if (copy.bytes_read) add_access(ASYNC_GLOBAL, copy.from, (uint32_t)copy.bytes_read, code);
    add_access(ASYNC_SHARED, copy.to, (uint32_t)copy.bytes, code);
}
__attribute__((noinline)) void count_ldmatrix(const void* row) {
    add_access(LDMATRIX, row, 16, __builtin_return_address(0));
}
void count_collective(const Thread& t) {
    counter().now.collectives[t.what]++;
    finish_requests(t.id / 32);
    if (FILE* const file = show_line(counter())) fprintf(file, "{\"step\": %d}\n", t.id / 32);
}
void count_wgmma(const Thread& t) {
    counter().now.collectives[t.what]++;
    for (int warp = 0; warp < 4; warp++) finish_requests(t.id / 32 + warp);
}
// One thread asks for a box, whose rows lie at these places of global memory.
void count_box(Access access, const std::vector<std::pair<const char*, size_t>>& rows, const void* code) {
    Counter& c = counter();
    Tally& t = site_of(c, (Kind)(BOX + access), 0, code, 0).tally;
    t.requests++;
    for (auto [p, bytes] : rows) {
        const uint64_t begin = (uint64_t)p, end = begin + bytes;
        t.bytes += bytes, t.transfers += (end - 1) / 32 - begin / 32 + 1;
        for (uint64_t at = begin; at < end; at += 2) (access == LOAD ? c.read : c.written).mark(at, 2);
    }
}
void count_barrier(Location where) {
    counter().now.barriers++;
    finish_requests(-1);
    if (FILE* const file = show_line(counter()))
        fprintf(file, "{\"barrier\": \"%s:%d\"}\n", where.file ? where.file : "", where.line);
}
void count_block() {
    Counter& c = counter();
    c.now.blocks++;
    finish_requests(-1);
    for (uint64_t& n : c.of_thread) {
        c.now.accesses += n, c.now.longest_thread = std::max(c.now.longest_thread, n);
        n = 0;
    }
}
void pause_counting(bool paused) { counter().paused = paused; }
void forget_counts() { counter().kernels.clear(), counter().order.clear(); }

// -------------------------------------------------------------------------------------------------
// the file: one line of JSON for each kernel and configuration of its launch

static void write_kernel(FILE* file, const std::string& launch, const KernelCounts& k) {
    fprintf(file, "{%s, \"launches\": %zu, \"blocks\": %zu, \"barriers\": %zu, ", launch.c_str(), k.launches, k.blocks,
            k.barriers);
    fprintf(file, "\"accesses\": %zu, \"longest_thread\": %zu, ", k.accesses, k.longest_thread);
    fprintf(
        file,
        "\"read_bytes\": %zu, \"read_sectors\": %zu, \"written_bytes\": %zu, \"written_sectors\": %zu, \"warps\": {",
        k.read_bytes, k.read_sectors, k.written_bytes, k.written_sectors);
    const char* comma = "";
    for (auto& [what, n] : k.collectives) fprintf(file, "%s\"%s\": %zu", std::exchange(comma, ", "), what.c_str(), n);
    fprintf(file, "}");
    Tally kinds[KINDS];
    for (auto& [site, t] : k.sites) kinds[site->kind].add(t);
    auto write_tally = [&](Kind kind, const Tally& t) {
        fprintf(file, "\"requests\": %zu, \"bytes\": %zu, \"%s\": %zu", t.requests, t.bytes,
                in_global(kind) ? "sectors" : "wavefronts", t.transfers);
        if (!in_global(kind)) fprintf(file, ", \"wavefronts_without_conflicts\": %zu", t.least);
        fprintf(file, "}");
    };
    for (int kind = 0; kind < KINDS; kind++)
        fprintf(file, ", \"%s\": {", KIND_NAMES[kind]), write_tally((Kind)kind, kinds[kind]);
    fprintf(file, ", \"sites\": [");
    comma = "";
    for (auto& [site, t] : k.sites) {
        fprintf(file, "%s{\"code\": \"%#zx\", \"kind\": \"%s\", \"lane_bytes\": %u, ", std::exchange(comma, ", "),
                offset_of(site->code), KIND_NAMES[site->kind], site->bytes);
        write_tally(site->kind, t);
    }
    fprintf(file, "]}\n");
}
static void write_file() {
    const char* path = getenv("CUSIM_COUNT");
    FILE* file = path ? fopen(path, "w") : nullptr;
    if (!file) {
        if (path) fprintf(stderr, "error: CUSIM_COUNT: cannot write %s\n", path);
        return;
    }
    char program[4096] = "";
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) program[0] = '\0';
    fprintf(file, "{\"program\": \"%s\"}\n", program);
    for (const std::string& launch : counter().order) write_kernel(file, launch, counter().kernels[launch]);
    fclose(file);
}

void count_kernel(const Kernel& k) {
    Counter& c = counter();
    static const int at_exit = atexit(write_file);
    (void)at_exit;
    Dl_info info{};
    const char* symbol = dladdr(k.function, &info) && info.dli_sname ? info.dli_sname : "";
    char text[1024];
    snprintf(text, sizeof(text),
             "\"kernel\": \"%s\", \"symbol\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
             "\"dynamic_shared_bytes\": %zu",
             k.name.c_str(), symbol, k.grid.x, k.grid.y, k.grid.z, k.block.x, k.block.y, k.block.z, k.shared_bytes);
    if (!c.kernels.count(text)) c.order.push_back(text);
    KernelCounts& all = c.kernels[text];
    all.launches++, all.blocks += c.now.blocks, all.barriers += c.now.barriers;
    all.accesses += c.now.accesses, all.longest_thread = std::max(all.longest_thread, c.now.longest_thread);
    c.read.take(all.read_bytes, all.read_sectors);
    c.written.take(all.written_bytes, all.written_sectors);
    for (auto& [what, n] : c.now.collectives) all.collectives[what] += n;
    for (auto& [key, site] : c.sites)
        if (site.tally.requests) all.sites[&site].add(std::exchange(site.tally, {}));
    c.now = {}, c.shown = 0;
}

}  // namespace cusim
#endif
