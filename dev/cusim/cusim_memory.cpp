// Device memory. Every cudaMalloc has pages of its own: an inaccessible page, the buffer, a
// redzone, an inaccessible page. Outside of kernels and copies the buffer is inaccessible too, so
// that the host cannot touch it by mistake. An access to what is inaccessible is a fault, which
// becomes a message.
#include "dev/cusim/cusim_inside.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include "llmc/base/integer_math.h"
#ifdef CUSIM_SANITIZE_address
#include <sanitizer/asan_interface.h>
#endif

namespace cusim {

#ifdef CUSIM_SANITIZE_address
// not the macros of that header, which do nothing in this file: it is not sanitized itself
void poison(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
void unpoison(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
void poison(const void*, size_t) {}
void unpoison(const void*, size_t) {}
#endif

void fill(void* p, unsigned char value, size_t bytes) {
    const uint64_t eight = value * 0x0101010101010101u;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        __builtin_memcpy((char*)p + i, &eight, 8);
        asm volatile("" ::: "memory");  // otherwise the compiler recognises memset, and calls it
    }
    for (; i < bytes; i++) ((volatile unsigned char*)p)[i] = value;
}

struct Guard {
    std::string name;
    unsigned char* begin;
    size_t bytes;
};
static std::vector<Guard> guards;
static std::map<char*, Allocation>& allocations() {
    static auto* all = new std::map<char*, Allocation>;
    return *all;
}
static size_t live_bytes = 0;
static int access_depth = 0;

size_t requested_bytes() { return live_bytes; }
size_t device_bytes() {
    const uint64_t machine_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return environment_number("CUSIM_MEMORY_MIB", machine_bytes >> 20) << 20;
}
std::map<char*, size_t>& pinned() {
    static auto* all = new std::map<char*, size_t>;
    return *all;
}

// -------------------------------------------------------------------------------------------------
// who may access it

static void protect(const Allocation& a, int how) { mprotect(a.user, a.map_bytes - 2 * PAGE, how); }
DeviceAccess::DeviceAccess() {
    if (access_depth++ == 0 && !dry_run())
        for (auto& [user, a] : allocations()) protect(a, PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
    if (--access_depth == 0 && !dry_run())
        for (auto& [user, a] : allocations()) protect(a, PROT_NONE);
}
bool DeviceAccess::open() { return access_depth > 0; }

// -------------------------------------------------------------------------------------------------
// redzones

static void add_guard(const std::string& name, void* p, size_t bytes) {
    fill(p, CANARY, bytes);
    poison(p, bytes);
    guards.push_back({name, (unsigned char*)p, bytes});
}
void guard(const char* name, void* p, size_t bytes) {
    if (bytes == 0) return;
    DeviceAccess access;
    add_guard(name, p, bytes);
}
void check_guards([[maybe_unused]] const char* kernel) {
#ifndef CUSIM_SANITIZE_address
    for (const Guard& g : guards)
        for (size_t i = 0; i < g.bytes; i++)
            if (g.begin[i] != CANARY)
                fail(NOWHERE, "kernel %s wrote beyond its memory: byte %zu after %s", kernel, i, g.name.c_str());
#endif
}

// -------------------------------------------------------------------------------------------------
// allocation

void* allocate_device(size_t bytes) {
    if (live_bytes + bytes > device_bytes()) return nullptr;
    Allocation a;
    a.bytes = bytes;
    a.map_bytes = round_up(bytes + REDZONE_BYTES, PAGE) + 2 * PAGE;
    a.map = (char*)mmap(nullptr, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED) return nullptr;
    a.user = a.map + PAGE;
    protect(a, PROT_READ | PROT_WRITE);
    if (!dry_run()) fill(a.user, POISON, bytes);
    char name[64];
    snprintf(name, sizeof(name), "a buffer of %zu bytes", bytes);
    add_guard(name, a.user + bytes, REDZONE_BYTES);
    if (access_depth == 0 && !dry_run()) protect(a, PROT_NONE);
    allocations()[a.user] = a;
    live_bytes += bytes;
    return a.user;
}

void free_device(void* p) {
    auto found = allocations().find((char*)p);
    if (found == allocations().end()) fail(NOWHERE, "cudaFree of %p, which no cudaMalloc returned", p);
    synchronize_all();
    const Allocation a = found->second;
    auto inside = [&](const Guard& g) { return (char*)g.begin >= a.map && (char*)g.begin < a.map + a.map_bytes; };
    guards.erase(std::remove_if(guards.begin(), guards.end(), inside), guards.end());
    unpoison(a.map, a.map_bytes);
    munmap(a.map, a.map_bytes);
    live_bytes -= a.bytes;
    allocations().erase(found);
}

// -------------------------------------------------------------------------------------------------
// faults

const Allocation* find_allocation(const void* p) {
    auto above = allocations().upper_bound((char*)p + PAGE);  // `user` is a page after `map`
    if (above == allocations().begin()) return nullptr;
    const Allocation& a = std::prev(above)->second;
    return p < a.map + a.map_bytes ? &a : nullptr;
}

Location location_of(const void* instruction) {
    static char text[512];
    Dl_info info;
    if (!dladdr(instruction, &info)) return NOWHERE;
    const size_t offset = (const char*)instruction - (const char*)info.dli_fbase;
    char command[600];
    snprintf(command, sizeof(command), "addr2line -i -e '%s' %#zx 2>/dev/null", info.dli_fname, offset);
    FILE* pipe = popen(command, "r");
    char* colon = pipe && fgets(text, sizeof(text), pipe) ? strrchr(text, ':') : nullptr;
    if (pipe) pclose(pipe);
    if (!colon || text[0] == '?') return NOWHERE;
    *colon = '\0';
    char here[512];  // the name as in the other messages: relative to where the program was built
    const bool below = getcwd(here, sizeof(here)) && strncmp(text, here, strlen(here)) == 0;
    const char* name = below ? text + strlen(here) + 1 : text;
    if (strncmp(name, "build/sim/", 10) == 0) name += 10;  // the rewritten copy
    return Location(name, atoi(colon + 1));
}

static void on_fault(int, siginfo_t* info, [[maybe_unused]] void* context) {
    const char* at = (const char*)info->si_addr;
    const Allocation* a = find_allocation(at);
#if defined(__x86_64__) && defined(__linux__)
    const Location location = location_of((const void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP]);
#else
    const Location location = NOWHERE;
#endif
    if (worker && worker->current) {
        if (a && at < a->user)
            fail(location, "access to %p, %zu bytes before a device buffer of %zu bytes", at, (size_t)(a->user - at),
                 a->bytes);
        if (a)
            fail(location, "access to %p, byte %zu of a device buffer of %zu bytes", at, (size_t)(at - a->user),
                 a->bytes);
        for (Fiber* f : worker->fibers)
            if (in_guard_of_stack(f, at))
                fail(location, "stack overflow: a thread has %zu KiB for its local variables", STACK_BYTES >> 10);
        fail(location, "access to %p, which is no device memory", at);
    }
    if (a)
        fail(location,
             "host code touches device memory: byte %td of a device buffer of %zu bytes; cudaMemcpy brings it to the "
             "host",
             at - a->user, a->bytes);
    signal(SIGSEGV, SIG_DFL);  // not a fault of the simulated GPU
    raise(SIGSEGV);
}

void catch_faults() {
#if !defined(CUSIM_SANITIZE_address) && !defined(CUSIM_SANITIZE_thread)
    static bool done = false;
    if (done) return;
    done = true;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
#else
    (void)on_fault;  // the sanitizer's own report names the line
#endif
}

}  // namespace cusim
