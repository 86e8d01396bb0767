// Threads that work on items, and return them in the order in which they were given. push() gives
// an item to the next free worker; pop() waits for the oldest item that it has not returned yet.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

template <class Item>
struct OrderedWorkers {
    struct Slot {
        Item item;
        bool done = false;
        std::exception_ptr failure;
    };
    std::function<void(Item&)> work;
    std::deque<std::shared_ptr<Slot>> waiting, given;  // for a worker; all that were not popped yet
    std::mutex mutex;
    std::condition_variable work_there, work_done;
    std::vector<std::thread> threads;
    bool stop = false;

    OrderedWorkers(int64_t count, std::function<void(Item&)> function) : work(std::move(function)) {
        try {
            for (int64_t i = 0; i < count; i++) threads.emplace_back([this] { serve(); });
        } catch (...) {  // the system refused a thread: those that exist do the work
            if (!threads.empty()) return;
            throw;
        }
    }
    OrderedWorkers(const OrderedWorkers&) = delete;
    ~OrderedWorkers() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;
        }
        work_there.notify_all();
        for (std::thread& thread : threads) thread.join();
    }
    void serve() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            work_there.wait(lock, [this] { return stop || !waiting.empty(); });
            if (stop) return;
            std::shared_ptr<Slot> slot = waiting.front();
            waiting.pop_front();
            lock.unlock();
            try {
                work(slot->item);
            } catch (...) {
                slot->failure = std::current_exception();  // pop() throws it again
            }
            lock.lock();
            slot->done = true;
            work_done.notify_one();
        }
    }
    void push(Item&& item) {
        auto slot = std::make_shared<Slot>();
        slot->item = std::move(item);
        {
            std::lock_guard<std::mutex> lock(mutex);
            waiting.push_back(slot), given.push_back(slot);
        }
        work_there.notify_one();
    }
    bool empty() const { return given.empty(); }
    Item pop() {
        std::unique_lock<std::mutex> lock(mutex);
        work_done.wait(lock, [this] { return given.front()->done; });
        std::shared_ptr<Slot> slot = given.front();
        given.pop_front();
        if (slot->failure) std::rethrow_exception(slot->failure);
        return std::move(slot->item);
    }
};
