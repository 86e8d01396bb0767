// The threads behind parallel_for (device.h): the calling thread and the workers of a pool. Of the
// pieces of a loop each thread has a share, consecutive ones, which it takes one by one; a thread
// that has no more takes from the shares of others. So the same rows go to the same thread in loop
// after loop, and are in its cache, or in the memory next to it.
//
// A step has about a thousand loops, microseconds apart. Waking a sleeping thread takes longer than
// that, so a waiting thread spins for a short time. After that it gives up its core in between: on
// a shared core, the thread it waits for may need that core. No loop waits for a worker that is
// late: such a worker finds the loop closed, or no pieces left.
#pragma once
#include <pthread.h>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include "llmc/base/check.h"
#include "llmc/base/clock.h"
#include "llmc/base/integer_math.h"
#include "llmc/cpu/denormals.h"
#include "llmc/trace/trace.h"

// A waiting thread spins; after SPIN_SECONDS it yields its core between checks, and after
// YIELD_SECONDS it sleeps.
constexpr double SPIN_SECONDS = 50e-6, YIELD_SECONDS = 1e-3;

// The number of this thread, from 0 (the calling one) to threads - 1, and whether it is running a
// piece of a loop. A loop inside a piece runs on that piece's thread alone.
inline thread_local int thread_number = 0;
inline thread_local bool inside_loop = false;

// Leaves the execution units to the core's other hardware thread for some cycles.
inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

// Where threads wait for a condition that other threads make true, and then announce with wake().
struct WaitingRoom {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<int> asleep{0};

    template <class Ready>
    void wait(Ready ready) {
        const double begin = now_seconds();
        for (double waited = 0; waited < YIELD_SECONDS; waited = now_seconds() - begin) {
            for (int i = 0; i < 16; i++) {
                if (ready()) return;
                pause_briefly();
            }
            if (waited > SPIN_SECONDS) std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex);
        // Counted before ready() is checked again, while wake() reads the count after the change:
        // so either this thread sees the change, or wake() sees this thread.
        asleep++;
        changed.wait(lock, ready);
        asleep--;
    }
    void wake() {
        if (asleep == 0) return;
        { std::lock_guard<std::mutex> lock(mutex); }  // every thread that is counted is asleep by now
        changed.notify_all();
    }
};

struct ThreadPool {
    using Piece = void (*)(void* context, int64_t i);
    // The state of the loop in one word, so that no worker can enter a loop that has closed: its
    // number in the upper 32 bits, OPEN while workers may enter, and in the lower bits how many are
    // inside.
    static constexpr uint64_t OPEN = 1ull << 31, INSIDE = OPEN - 1, NUMBER = 1ull << 32;
    std::atomic<uint64_t> loop{0};
    std::atomic<bool> all_taken{false};  // of the pieces
    alignas(64) std::atomic_flag busy = ATOMIC_FLAG_INIT;
    int workers = 0;  // that have been started
    // The current loop: how many threads may take part, the number of pieces, the function that
    // runs one.
    int threads = 0;
    // The pieces of a share that no thread has taken yet: from `next` to end - 1.
    struct alignas(64) Share {
        std::atomic<int64_t> next{0};
        int64_t end = 0;
    };
    std::deque<Share> shares;  // by thread; a deque, whose elements stay where they are when it grows
    Piece piece = nullptr;
    void* context = nullptr;
    std::exception_ptr failure;  // the first exception that a piece threw
    std::mutex failure_mutex;
    WaitingRoom for_loop, for_end;

    void take_pieces() {
        const ThreadSpan span(thread_number);
        try {
            for (int i = 0; i < threads && !all_taken; i++) {
                Share& share = shares[(thread_number + i) % threads];
                while (share.next.load(std::memory_order_relaxed) < share.end) {
                    const int64_t number = share.next.fetch_add(1, std::memory_order_relaxed);
                    if (number < share.end) piece(context, number);
                }
            }
            all_taken = true;
        } catch (...) {
            all_taken = true;
            for (Share& share : shares) share.next = share.end;
            std::lock_guard<std::mutex> lock(failure_mutex);
            if (!failure) failure = std::current_exception();
        }
    }

    [[noreturn]] void work(int number) {
        const DenormalsAreZero mode;
        thread_number = number, inside_loop = true;
        for (uint64_t seen = 0;;) {
            uint64_t now = 0;
            for_loop.wait([&] { return now = loop, (now & OPEN) && now / NUMBER != seen; });
            seen = now / NUMBER;
            while ((now & OPEN) && now / NUMBER == seen && !all_taken) {
                if (!loop.compare_exchange_weak(now, now + 1)) continue;
                if (number < threads) take_pieces();
                if ((--loop & (OPEN | INSIDE)) == 0) for_end.wake();
                break;
            }
        }
    }

    void start_workers() {
        try {
            for (; workers < threads - 1; workers++)
                std::thread([this, number = workers + 1] { work(number); }).detach();
        } catch (const std::system_error& e) {
            static bool said = false;
            if (!said)
                warning("--threads %d: the system lets this program have %d (%s); it goes on with those", threads,
                        workers + 1, e.what());
            said = true;
        }
    }

    // Calls make(argument, i) once for each i from 0 to n_pieces - 1, on up to n_threads threads.
    // If a piece throws an exception, run throws it after all threads have stopped.
    void run(int n_threads, int64_t n_pieces, Piece make, void* argument) {
        if (busy.test_and_set()) {  // another thread of the program has the pool
            for (int64_t i = 0; i < n_pieces; i++) make(argument, i);
            return;
        }
        threads = n_threads, piece = make, context = argument, failure = nullptr;
        start_workers();
        while ((int)shares.size() < threads) shares.emplace_back();
        for (int t = 0; t < threads; t++)
            shares[t].end = ceil_div((t + 1) * n_pieces, threads), shares[t].next = ceil_div(t * n_pieces, threads);
        all_taken = false;
        loop = (loop / NUMBER + 1) * NUMBER | OPEN;
        for_loop.wake();
        inside_loop = true;
        take_pieces();
        inside_loop = false;
        if (((loop &= ~OPEN) & INSIDE) != 0) for_end.wait([&] { return (loop & INSIDE) == 0; });
        const std::exception_ptr thrown = failure;
        busy.clear();
        if (thrown) std::rethrow_exception(thrown);
    }
};

// The pool is never destroyed: workers may be asleep in it when the program ends. After fork the
// child has none of the workers, so it gets a pool of its own.
inline ThreadPool*& thread_pool() {
    static ThreadPool* pool = [] {
        pthread_atfork(nullptr, nullptr, [] { thread_pool() = new ThreadPool; });
        return new ThreadPool;
    }();
    return pool;
}
