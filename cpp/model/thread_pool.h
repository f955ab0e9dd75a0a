// Threads that go through one step together: each takes work where it finds some, and waits for the
// others where the next part needs what they made.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace weft {

// CPUs that this process may use: its affinity and the quotas of its control groups, at least 1.
int available_cpus();

class ThreadPool {
public:
    // `num_threads` includes the thread that calls `run`.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }

    // Calls `body(thread)` once on every thread and returns when all are done. `body` must not throw.
    void run(const std::function<void(int)>& body);

    // Inside `run`, called by every thread alike: `work(i)` for each i below `count`, by whoever is
    // free, `chunk` at a time. Returns when all of it is done.
    template <class Work>
    void share(int count, int chunk, const Work& work) {
        for (;;) {
            const int begin = next_.fetch_add(chunk, std::memory_order_relaxed);
            if (begin >= count) break;
            const int end = begin + chunk < count ? begin + chunk : count;
            work(begin, end);
        }
        meet();
    }

private:
    // Waits, spinning for a while and then asleep, until `word` is no longer `seen`.
    void wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int spins);
    void wake(std::atomic<std::uint32_t>& word);
    void meet();
    void work_loop(int thread);

    const int size_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* body_ = nullptr;
    bool is_over_ = false;
    // Each on a cache line of its own: they are written by different threads at different times.
    alignas(64) std::atomic<std::uint32_t> round_{0};
    alignas(64) std::atomic<std::uint32_t> meeting_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace weft
