// The thread pool behind parallel_for: every piece runs once, loops inside loops, exceptions,
// programs that end or fork during a loop, more threads than cores. Then the number of available
// cores.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <new>
#include "dev/test/test.h"
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

static void loops() {
    for (int threads : {1, 2, 3, 16}) {
        device.threads = threads;
        start_test(format("every piece runs once, in loops of several lengths, %d threads", threads));
        for (int64_t n : {0, 1, 2, 3, 17, 1000}) EXPECT(each_once(n));
        for (int i = 0; i < 2000; i++) EXPECT(each_once(5));
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
    auto quota = [&] { return process_quota_cores(control_groups("cpu", root + "/groups", root)); };
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
    EXPECT(process_quota_cores(control_groups("cpu", "/nowhere")) == INFINITY && available_threads() >= 1);
    if (system(("rm -rf " + root).c_str())) printf("%s stays\n", root.c_str());
}

int main() {
    ends();  // before other tests have made this process large and started its threads
    loops();
    more_than_one_caller();
    ends();
    cores();
    return report_tests();
}
