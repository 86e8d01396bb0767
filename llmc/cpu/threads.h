// The threads behind parallel_for (device.h): the pieces of a loop are taken one by one from a
// counter, by the thread that calls and by the workers of a pool, whoever is free.
//
// A step has a thousand loops, microseconds apart, and waking a thread takes longer than that:
// whoever waits spins for a little while. Then it makes room, so that on cores shared with others,
// who may have to run before the wait can end, it does not stand in their way. Nobody waits for a
// worker that comes late: it finds the loop closed, or nothing left of it.
#pragma once
#include <pthread.h>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include "llmc/check.h"
#include "llmc/clock.h"

// A wait spins; after SPIN_SECONDS it offers its core to others between looks, and after
// YIELD_SECONDS it sleeps.
constexpr double SPIN_SECONDS = 50e-6, YIELD_SECONDS = 1e-3;

// Which thread this is, 0 (who calls) to threads - 1, and whether it is inside a loop; one inside
// another runs on the thread that it is on.
inline thread_local int thread_number = 0;
inline thread_local bool inside_loop = false;

// Leaves the execution units to the core's other thread for some cycles.
inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

// Where threads wait for something that others bring about and then announce with wake().
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
        asleep++;  // before ready() is asked again, as wake() comes after the change: one of the two sees the other
        changed.wait(lock, ready);
        asleep--;
    }
    void wake() {
        if (asleep == 0) return;
        { std::lock_guard<std::mutex> lock(mutex); }  // who counted itself in is asleep by now
        changed.notify_all();
    }
};

struct ThreadPool {
    using Piece = void (*)(void* context, int64_t i);
    // The loop's number << 32 | OPEN while workers may enter | how many are inside. In one word, so
    // that none enters a loop that has closed.
    static constexpr uint64_t OPEN = 1ull << 31, INSIDE = OPEN - 1, NUMBER = 1ull << 32;
    std::atomic<uint64_t> loop{0};
    alignas(64) std::atomic<int64_t> left{0};  // pieces that nobody has taken, or less than 0
    alignas(64) std::atomic_flag busy = ATOMIC_FLAG_INIT;
    int workers = 0, threads = 0;  // of this loop: how many threads may take part, n pieces, what makes one
    int64_t n = 0;
    Piece piece = nullptr;
    void* context = nullptr;
    std::exception_ptr failure;  // the first that a piece threw
    std::mutex failure_mutex;
    WaitingRoom for_loop, for_end;

    void take_pieces() {
        try {
            for (int64_t i; (i = left.fetch_sub(1, std::memory_order_relaxed)) > 0;) piece(context, n - i);
        } catch (...) {
            left = 0;
            std::lock_guard<std::mutex> lock(failure_mutex);
            if (!failure) failure = std::current_exception();
        }
    }

    [[noreturn]] void work(int number) {
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

    // piece(context, i) for i in 0..n-1 on up to so many threads. What one throws is thrown here,
    // after all have stopped.
    void run(int n_threads, int64_t n_pieces, Piece make, void* argument) {
        if (busy.test_and_set()) {  // by another thread of the program
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

// Never destroyed: workers may sleep in it when the program ends. A child made by fork has none of
// the workers, so it gets a pool of its own.
inline ThreadPool*& thread_pool() {
    static ThreadPool* pool = [] {
        pthread_atfork(nullptr, nullptr, [] { thread_pool() = new ThreadPool; });
        return new ThreadPool;
    }();
    return pool;
}
