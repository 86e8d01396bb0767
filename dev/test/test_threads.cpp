// The thread pool behind parallel_for: every piece runs once, loops inside loops, exceptions,
// programs that end or fork during a loop, more threads than cores, what threads take denormals
// for. Then the number of available
// cores, and how processes share them.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include "dev/test/test.h"
#include "llmc/options/core_share.h"
#include "llmc/cpu/device.h"

// The exit status of a child process that runs f; 128 + the signal if a signal ends it, 1000 if it
// hangs.
template <class F>
static int in_a_child(F f) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        f();
        _exit(99);
    }
    for (int i = 0; i < 60000; i++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        usleep(1000);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return 1000;
}

static bool each_once(int64_t n) {
    std::vector<int> calls(n);
    parallel_for(n, [&](int64_t i) { calls[i]++; });
    for (int c : calls)
        if (c != 1) return false;
    return true;
}

// Ranges that shrink: each index once, no range longer than `most` or, but for the last, no
// multiple of `grain`.
static bool shrinking_each_once(int64_t n, int64_t grain, int64_t most) {
    std::vector<std::atomic<int>> calls(n);
    std::atomic<bool> good{true};
    parallel_shrinking_ranges(n, grain, most, [&](int64_t begin, int64_t end) {
        const int64_t length = end - begin;
        if (length < 1 || length > std::max(grain, most) || (length % grain != 0 && end != n)) good = false;
        for (int64_t i = begin; i < end; i++) calls[i]++;
    });
    return good && std::all_of(calls.begin(), calls.end(), [](int c) { return c == 1; });
}

static void loops() {
    for (int threads : {1, 2, 3, 16}) {
        device.threads = threads;
        start_test(format("every piece runs once, in loops of several lengths, %d threads", threads));
        for (int64_t n : {0, 1, 2, 3, 17, 1000}) EXPECT(each_once(n));
        for (int i = 0; i < 2000; i++) EXPECT(each_once(5));
        for (int64_t n : {0, 1, 7, 8, 9, 100, 5000})
            for (int64_t most : {1, 8, 60, 10000}) EXPECT(shrinking_each_once(n, 8, most));
        start_test(format("loops after a pause that puts the workers to sleep, %d threads", threads));
        for (int i = 0; i < 20; i++) {
            usleep((useconds_t)(2e6 * YIELD_SECONDS));
            EXPECT(each_once(40));
        }
        start_test(format("two threads never have the same number, nor one too high, %d threads", threads));
        std::vector<std::atomic<int>> users(threads);
        std::atomic<bool> good{true};
        parallel_for(3000, [&](int64_t) {
            if (thread_number >= threads || users[thread_number]++ != 0) good = false;
            if (thread_number < threads) users[thread_number]--;
        });
        EXPECT(good);
        start_test(format("a loop inside a piece runs on its thread, %d threads", threads));
        std::vector<int> inner(40 * 10);
        parallel_for(40, [&](int64_t i) {
            const int number = thread_number;
            parallel_for(10, [&](int64_t j) { inner[i * 10 + j] = thread_number == number; });
        });
        EXPECT(std::count(inner.begin(), inner.end(), 1) == 400);
        start_test(format("what a piece throws comes out of the loop, and the next loop runs, %d threads", threads));
        for (int64_t bad : {0, 1, 500, 999}) {
            bool caught = false;
            try {
                parallel_for(1000, [&](int64_t i) {
                    if (i == bad) throw std::bad_alloc();
                });
            } catch (const std::bad_alloc&) { caught = true; }
            EXPECT(caught && each_once(100));
        }
    }
    start_test("fewer threads than the loop before");
    for (int threads : {8, 2, 5, 1, 3}) {
        device.threads = threads;
        std::atomic<bool> good{true};
        parallel_for(500, [&](int64_t) {
            if (thread_number >= threads) good = false;
        });
        EXPECT(good);
    }
}

// Whether the calling thread takes denormals for zero, as results and as operands; whether it takes
// them for neither. Volatile: the compiler does not know what mode a thread has.
static volatile float small = 1e-20f, denormal = 1e-40f, large = 1e20f;
static bool zeroes_denormals() {
    const float result = small * small, of_operand = denormal * large;
    return result == 0 && of_operand == 0;
}
static bool keeps_denormals() {
    const float result = small * small, of_operand = denormal * large;
    return result > 0 && of_operand > 0;
}

static void denormals() {
    for (int threads : {1, 2, 7}) {
        device.threads = threads;
        start_test(format("denormals are zero in every thread of a loop, and in none after it, %d threads", threads));
        std::vector<std::atomic<int>> zeroed(threads), kept(threads);
        int tries = 0;
        const auto absent = [&] { return std::count(zeroed.begin(), zeroed.end(), 0); };
        for (; tries < 1000 && (tries == 0 || absent() > 0); tries++) {
            EXPECT(keeps_denormals());
            parallel_for(10 * threads, [&](int64_t) {
                (zeroes_denormals() ? zeroed : kept)[thread_number]++;
                usleep(100);
            });
        }
        EXPECT(absent() == 0 && keeps_denormals());
        EXPECT(std::count(kept.begin(), kept.end(), 0) == threads);
        start_test(format("denormals after a loop that a piece has ended, %d threads", threads));
        try {
            parallel_for(10, [](int64_t) { throw 1; });
        } catch (int) {}
        EXPECT(keeps_denormals());
    }
    start_test("denormals: the mode may be set twice");
    {
        const DenormalsAreZero outer;
        EXPECT(zeroes_denormals());
        { const DenormalsAreZero inner; }
        EXPECT(zeroes_denormals() && each_once(10) && zeroes_denormals());
    }
    EXPECT(keeps_denormals());
}

static void more_than_one_caller() {
    start_test("loops of two threads at once");
    device.threads = 3;
    std::atomic<bool> good{true};
    auto many = [&] {
        for (int i = 0; i < 500; i++)
            if (!each_once(20)) good = false;
    };
    std::thread other(many);
    many();
    other.join();
    EXPECT(good);
}

static void ends() {
    device.threads = 3;
    each_once(100);
    start_test("a child made by fork has threads of its own");
    EXPECT(in_a_child([] { _exit(each_once(1000) && each_once(1000) ? 0 : 1); }) == 0);
    start_test("the program ends while its threads sleep, and while they run");
    EXPECT(in_a_child([] { each_once(10), usleep(20000), exit(7); }) == 7);
    EXPECT(in_a_child([] {
               parallel_for(100, [](int64_t i) { i == 50 ? runtime_failure("planned") : (void)usleep(100); });
           }) == 1);
    EXPECT(in_a_child([] {
               parallel_for(100, [](int64_t) {
                   if (thread_number > 0) usage_error("planned");
                   usleep(100);
               });
           }) == 2);
    start_test("an exception that nobody catches ends the program by abort, not by a hang");
    EXPECT(in_a_child([] {
               std::set_terminate([] { _exit(55); });
               [&]() noexcept {
                   parallel_for(100, [](int64_t i) {
                       if (i == 60) throw 1;
                   });
               }();
           }) == 55);
}

static void cores() {
    start_test("cores: those the process is bound to");
#ifdef __linux__
    EXPECT(in_a_child([] {
               cpu_set_t all, one;
               sched_getaffinity(0, sizeof(all), &all);
               CPU_ZERO(&one);
               for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
                   if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
               sched_setaffinity(0, sizeof(one), &one);
               _exit(available_threads());
           }) == 1);
#endif
    start_test("cores: the share of time of the control group, or of one around it, versions 1 and 2");
    char folder[] = "/tmp/gpt2_cores_XXXXXX";
    const std::string root = mkdtemp(folder);
    auto write = [&](const std::string& name, const char* text) {
        FILE* file = fopen((root + name).c_str(), "w");
        fputs(text, file);
        fclose(file);
    };
    for (const char* name : {"/a", "/a/b", "/cpu", "/cpu/c"}) mkdir((root + name).c_str(), 0700);
    auto quota = [&] { return process_quota(control_groups("cpu", root + "/groups", root)).cores; };
    write("/groups", "0::/a/b\n");
    EXPECT(quota() == INFINITY);
    write("/a/b/cpu.max", "max 100000\n");
    EXPECT(quota() == INFINITY);
    write("/a/cpu.max", "350000 100000\n");
    EXPECT(quota() == 3.5);
    write("/a/b/cpu.max", "50000 100000\n");
    EXPECT(quota() == 0.5);
    write("/groups", "3:memory:/x\n2:cpuacct,cpu:/c\n1:name=systemd:/\n");
    write("/cpu/c/cpu.cfs_quota_us", "-1\n"), write("/cpu/c/cpu.cfs_period_us", "100000\n");
    EXPECT(quota() == INFINITY);
    write("/cpu/c/cpu.cfs_quota_us", "200000\n");
    EXPECT(quota() == 2);
    write("/groups", "nonsense\n::\n0::\n");
    EXPECT(quota() == INFINITY);
    EXPECT(process_quota(control_groups("cpu", "/nowhere")).cores == INFINITY && available_threads() >= 1);
    if (system(("rm -rf " + root).c_str())) printf("%s stays\n", root.c_str());
}

// A folder of files as Linux has them in /sys: for each hardware thread the list of those of its
// core.
static std::string topology(const std::vector<std::string>& siblings) {
    char folder[] = "/tmp/gpt2_topology_XXXXXX";
    const std::string root = mkdtemp(folder);
    for (size_t i = 0; i < siblings.size(); i++) {
        const std::string at = root + format("/sys/devices/system/cpu/cpu%d/topology", i);
        if (system(("mkdir -p " + at + " && echo '" + siblings[i] + "' > " + at + "/thread_siblings_list").c_str()))
            printf("%s cannot be written\n", at.c_str());
    }
    return root;
}

static Cores bits(std::initializer_list<int> set) {
    Cores cores;
    for (int i : set) cores[i] = true;
    return cores;
}

static void physical() {
    start_test("cores: hardware threads of one core count once");
    const std::string pairs = topology({"0-1", "0-1", "2-3", "2-3"}), halves = topology({"0,2", "1,3", "0,2", "1,3"});
    EXPECT(physical_cores(bits({0, 1, 2, 3}), pairs) == bits({0, 2}));
    EXPECT(physical_cores(bits({1, 3}), pairs) == bits({0, 2}) && physical_cores(bits({3}), pairs) == bits({2}));
    EXPECT(physical_cores(bits({0, 1, 2, 3}), halves) == bits({0, 1}));
    EXPECT(physical_cores(bits({2, 3}), halves) == bits({0, 1}) && physical_cores(bits({0, 2}), halves) == bits({0}));
    EXPECT(physical_cores(bits({0, 1, 5000}), "/nowhere") == bits({0, 1, 5000}));
    EXPECT(physical_cores({}, pairs).none());
    for (const std::string& root : {pairs, halves})
        if (system(("rm -rf " + root).c_str())) printf("%s stays\n", root.c_str());
}

static void shares() {
    const Cores all = bits({0, 1, 2, 3, 4, 5, 6, 7}), low = bits({0, 1, 2, 3}), high = bits({4, 5, 6, 7});
    using Claims = std::vector<CoreClaim>;
    start_test("shares: one process has all; several split what they have in common, but not less than one core");
    const CoreClaim whole{1, {}, 8, all};
    EXPECT(share_of_cores(Claims(1, whole), 0) == 8);
    EXPECT(share_of_cores(Claims(2, whole), 1) == 4);
    EXPECT(share_of_cores(Claims(3, whole), 0) == 2);
    EXPECT(share_of_cores(Claims(8, whole), 7) == 1 && share_of_cores(Claims(9, whole), 3) == 1);
    start_test("shares: processes that are bound to cores have those; other machines do not count");
    const Claims bound = {{1, {}, 4, low}, {1, {}, 4, high}, {2, {}, 8, all}};
    for (size_t rank = 0; rank < 3; rank++) EXPECT(share_of_cores(bound, rank) == (rank < 2 ? 4 : 8));
    const Claims uneven = {{1, {}, 4, low}, {1, {}, 4, low}, {1, {}, 8, all}};
    EXPECT(share_of_cores(uneven, 0) == 1 && share_of_cores(uneven, 2) == 5);  // 4/3, and 4/3 + 4
    start_test("shares: a limit of CPU time is that of all processes in its group");
    const Claims limited = {{1, {6, 10}, 6, all}, {1, {6, 10}, 6, all}, {1, {2, 11}, 2, all}};
    EXPECT(share_of_cores(limited, 0) == 2 && share_of_cores(limited, 2) == 2);  // 8 cores, 3 processes
    EXPECT(share_of_cores({{1, {3, 10}, 3, low}, {1, {3, 10}, 3, high}}, 0) == 2);
    EXPECT(share_of_cores({{1, {0.5, 10}, 1, low}, {1, {4, 12}, 4, high}}, 0) == 1);
    start_test("shares: where the system names no cores, their number is divided");
    EXPECT(share_of_cores({{1, {}, 8, {}}, {1, {}, 8, {}}, {1, {}, 8, {}}}, 0) == 2);
    start_test("this process alone claims what available_threads() says");
    EXPECT(share_of_cores({own_claim()}, 0) == available_threads());
    Options o;
    claim_cores(o);
    EXPECT(o.core_share == 0 && threads_of(o) == available_threads());
    o.core_share = 3;
    EXPECT(threads_of(o) == 3);
    o.threads = 5;
    EXPECT(threads_of(o) == 5);
}

#ifdef __linux__
// How many pages the system has given to each thread of this process when it first wrote to them.
static std::map<std::string, long long> pages_by_thread() {
    std::map<std::string, long long> pages;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream stat(task.path() / "stat");
        std::string text;
        std::getline(stat, text);
        // minor faults are the 10th field; the second, the program's name in brackets, may have
        // spaces
        const char* rest = strrchr(text.c_str(), ')');
        if (rest) sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %lld", &pages[task.path().filename()]);
    }
    return pages;
}
// How many threads spread_pages has had write to 64 pages or more.
static int64_t spreading_threads(size_t bytes) {
    auto before = pages_by_thread();
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    spread_pages(memory, bytes);
    const auto after = pages_by_thread();
    munmap(memory, bytes);
    return std::count_if(after.begin(), after.end(), [&](auto& t) { return t.second - before[t.first] >= 64; });
}
#endif

static void first_writes() {
    start_test("spread_pages: all pages are there, and zero");
    device.threads = 4;
    const size_t bytes = (40u << 20) + 777;
    char* memory = (char*)map_memory(bytes);
    spread_pages(memory, bytes);
#ifdef __linux__
    std::vector<unsigned char> present(ceil_div(bytes, (size_t)4096));
    EXPECT(mincore(memory, bytes, present.data()) == 0);
    EXPECT(std::count(present.begin(), present.end(), 0) == 0);
#endif
    EXPECT(std::count(memory, memory + bytes, 0) == (int64_t)bytes);
    unmap_memory(memory, bytes);
#ifdef __linux__
    start_test("spread_pages: the pages are those of several threads");
    bool several = false;  // not each time: on a busy machine one thread may be done before another is awake
    for (int tries = 0; tries < 200 && !several; tries++) several = spreading_threads(bytes) > 1;
    EXPECT(several);
    device.threads = 1;
    EXPECT(spreading_threads(bytes) == 1);
#endif
}

#ifdef MADV_POPULATE_WRITE
// Whether all pages come within 10 seconds.
static bool pages_come(char* memory, size_t bytes) {
    std::vector<unsigned char> present(ceil_div(bytes, (size_t)4096));
    for (int tries = 0; tries < 1000; tries++) {
        if (mincore(memory, bytes, present.data()) == 0 && !std::count(present.begin(), present.end(), 0)) return true;
        usleep(10000);
    }
    return false;
}
static void background_pages() {
    start_test("fetch_pages: the pages come by themselves, and keep what is written meanwhile");
    const size_t bytes = 40u << 20;
    char* memory = (char*)map_memory(bytes);
    fetch_pages(memory, bytes);
    for (size_t i = 0; i < bytes; i += 12345) memory[i] = 7;
    const bool several_memories = access("/sys/devices/system/node/node1", F_OK) == 0;
    EXPECT(several_memories || madvise(memory, 4096, MADV_POPULATE_WRITE) != 0 || pages_come(memory, bytes));
    size_t kept = 0;
    for (size_t i = 0; i < bytes; i += 12345) kept += memory[i] == 7;
    EXPECT(kept == ceil_div(bytes, (size_t)12345));
    unmap_memory(memory, bytes);
}
#else
static void background_pages() {}
#endif

int main() {
    ends();  // before other tests have made this process large and started its threads
    loops();
    denormals();
    more_than_one_caller();
    ends();
    cores();
    physical();
    shares();
    first_writes();
    background_pages();
    return report_tests();
}
