// Helper threads for the thread that computes a step: a free helper takes a piece of its current work.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace weft {

// Number of CPUs that this process may use, by its affinity and the quotas of its control groups; at least 1.
int available_cpus();

// Returns the same number; throws std::invalid_argument if no pool can have this many threads.
int checked_threads(int num_threads);

// One thread, the caller, goes through the work part by part. It never waits for a helper that has taken no work: on
// a busy machine a helper may not run for milliseconds.
class ThreadPool {
public:
    // `num_threads` includes the caller.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }

    // Changes the number of threads; only between calls of `share`.
    void resize(int num_threads);

    // Calls `work(thread, begin, end)` for ranges that cover [0, count), each a multiple of `chunk` long except the
    // last. Returns when all work is done. Called by one thread at a time; `work` must not throw.
    template <class Work>
    void share(int count, int chunk, const Work& work) {
        if (count <= 0) return;
        const int num_chunks = (count - 1) / chunk + 1;
        if (size_ == 1 || num_chunks == 1) return work(0, 0, count);
        job_ = {[](const void* any, int thread, int begin, int end) {
                    (*static_cast<const Work*>(any))(thread, begin, end);
                },
                &work, count, chunk};
        offer(static_cast<std::uint32_t>(num_chunks));
        while (take(0)) {
        }
        wait_until_done(static_cast<std::uint32_t>(num_chunks));
    }

private:
    struct Job {
        void (*run)(const void* work, int thread, int begin, int end) = nullptr;
        const void* work = nullptr;
        int count = 0;
        int chunk = 0;
    };

    void offer(std::uint32_t num_chunks);
    bool has_chunks() const;
    // Takes and runs the next chunk; returns false if there was none.
    bool take(int thread);
    void wait_until_done(std::uint32_t num_chunks);
    void help(int thread);
    void start();
    void end();
    void rest();

    int size_;
    std::vector<std::thread> threads_;
    // Read only by threads that hold a chunk of the job; it does not change until their chunks are done.
    Job job_;
    // Each on a cache line of its own: they are written by different threads at different times. The upper half is
    // the number of chunks, the lower half the number of requested chunks: so a late helper requests a chunk of the
    // current job, or finds that there is none.
    alignas(64) std::atomic<std::uint64_t> tickets_{0};
    alignas(64) std::atomic<std::uint32_t> done_{0};
    alignas(64) std::atomic<std::uint32_t> bell_{0};  // changes to wake sleeping threads
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<bool> is_caller_asleep_{false};
    std::atomic<bool> is_over_{false};
};

}  // namespace weft
