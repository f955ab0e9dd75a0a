#include "model/thread_pool.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

namespace weft {
namespace {

// Inside a step the others are a few microseconds away; between steps the caller samples and plans,
// and a spinning thread would take its CPU.
constexpr int kSpinsInside = 4000;
constexpr int kSpinsBetween = 2000;

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

double read_number(const std::string& path) {
    std::ifstream file(path);
    double value = 0;
    return file >> value ? value : -1;
}

// CPUs that the quota of one control group amounts to, or infinity.
double quota_of(const std::string& group, bool unified) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double quota = -1;
    double period = -1;
    if (unified) {
        std::ifstream file(group + "/cpu.max");
        if (!(file >> quota >> period)) return kNone;  // "max", or no such file
    } else {
        quota = read_number(group + "/cpu.cfs_quota_us");
        period = read_number(group + "/cpu.cfs_period_us");
    }
    return quota > 0 && period > 0 ? quota / period : kNone;
}

// Whether `word` is one of the words of `text`, which commas part.
bool has_word(const std::string& text, const std::string& word) {
    std::istringstream words(text);
    for (std::string one; std::getline(words, one, ',');)
        if (one == word) return true;
    return false;
}

// The least quota from the group of this process up to the mount.
double group_quota() {
    double least = std::numeric_limits<double>::infinity();
    std::ifstream groups("/proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool unified = controllers.empty();
        if (!unified && !has_word(controllers, "cpu")) continue;
        const std::string mount = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
        std::string path = line.substr(second + 1);
        for (;;) {
            least = std::min(least, quota_of(mount + path, unified));
            const std::size_t slash = path.rfind('/');
            if (slash == std::string::npos) break;
            path.resize(slash);
        }
    }
    return least;
}

}  // namespace

int available_cpus() {
    double cpus = std::max(1U, std::thread::hardware_concurrency());
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
#endif
    return std::max(1, static_cast<int>(std::ceil(std::min(cpus, group_quota()))));
}

ThreadPool::ThreadPool(int num_threads) : size_(num_threads) {
    for (int thread = 1; thread < size_; thread++)
        threads_.emplace_back([this, thread] { work_loop(thread); });
}

ThreadPool::~ThreadPool() {
    is_over_ = true;
    wake(round_);
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
    body_ = &body;
    if (size_ > 1) wake(round_);
    body(0);
    meet();
}

void ThreadPool::work_loop(int thread) {
    for (std::uint32_t seen = 0;; seen++) {
        wait_while(round_, seen, kSpinsBetween);
        if (is_over_) return;
        (*body_)(thread);
        meet();
    }
}

void ThreadPool::meet() {
    const std::uint32_t meeting = meeting_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
        wait_while(meeting_, meeting, kSpinsInside);
        return;
    }
    // The last to arrive is alone here: nobody looks for work until it lets them go.
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    if (size_ > 1) wake(meeting_);
}

void ThreadPool::wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen, int spins) {
    for (int i = 0; i < spins; i++) {
        if (word.load(std::memory_order_acquire) != seen) return;
        pause_briefly();
    }
    // Counted before the last look, so that whoever changes the word either sees the count or is seen.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word.load(std::memory_order_seq_cst) == seen) word.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::wake(std::atomic<std::uint32_t>& word) {
    word.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) word.notify_all();
}

}  // namespace weft
