// The threads behind parallel_for (device.h). The pieces of a loop are numbers from a shared
// counter. The calling thread and the workers of a pool take them one by one, each when it is free.
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
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include "llmc/base/check.h"
#include "llmc/base/clock.h"
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
    alignas(64) std::atomic<int64_t> left{0};  // pieces that no thread has taken yet; 0 or less when there are none
    alignas(64) std::atomic_flag busy = ATOMIC_FLAG_INIT;
    int workers = 0;  // that have been started
    // The current loop: how many threads may take part, the number of pieces, the function that
    // runs one.
    int threads = 0;
    int64_t n = 0;
    Piece piece = nullptr;
    void* context = nullptr;
    std::exception_ptr failure;  // the first exception that a piece threw
    std::mutex failure_mutex;
    WaitingRoom for_loop, for_end;

    void take_pieces() {
        const ThreadSpan span(thread_number);
        try {
            for (int64_t i; (i = left.fetch_sub(1, std::memory_order_relaxed)) > 0;) piece(context, n - i);
        } catch (...) {
            left = 0;
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
            while ((now & OPEN) && now / NUMBER == seen && left > 0) {
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
        threads = n_threads, n = n_pieces, piece = make, context = argument, failure = nullptr;
        start_workers();
        left = n;
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
