#include "model/thread_pool.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#if defined(__linux__)
#include <sched.h>
#endif

namespace weft {
namespace {

// Some tens of microseconds: within a step, more work arrives sooner; after a step, the caller samples and plans, and
// needs the CPU.
constexpr int kSpins = 3000;

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Removes and returns the next number of `text`; -1 if there is none. Without a stream's locale: a module that has
// libstdc++ linked in statically crashes in `stream >> number`.
double take_number(std::string_view& text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    long long value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return -1;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return static_cast<double>(value);
}

// Returns the first line of a file; empty if the file does not exist.
std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

double read_number(const std::string& path) {
    const std::string line = first_line(path);
    std::string_view text(line);
    return take_number(text);
}

// Number of CPUs that the quota of one control group allows, or infinity.
double quota_of(const std::string& group, bool unified) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double quota = -1;
    double period = -1;
    if (unified) {
        const std::string line = first_line(group + "/cpu.max");  // "max 100000": no quota
        std::string_view text(line);
        quota = take_number(text);
        period = take_number(text);
    } else {
        quota = read_number(group + "/cpu.cfs_quota_us");
        period = read_number(group + "/cpu.cfs_period_us");
    }
    return quota > 0 && period > 0 ? quota / period : kNone;
}

// True if `word` is one of the comma-separated words of `text`.
bool has_word(const std::string& text, const std::string& word) {
    std::istringstream words(text);
    for (std::string one; std::getline(words, one, ',');)
        if (one == word) return true;
    return false;
}

// The smallest quota from the control group of this process up to the mount.
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

int checked_threads(int num_threads) {
    if (num_threads < 1 || num_threads > 1024)
        throw std::invalid_argument("num_threads must be from 1 to 1024");
    return num_threads;
}

ThreadPool::ThreadPool(int num_threads) : size_(num_threads) { start(); }

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::resize(int num_threads) {
    end();
    size_ = num_threads;
    start();
}

void ThreadPool::start() {
    is_over_.store(false);
    for (int thread = 1; thread < size_; thread++)
        threads_.emplace_back([this, thread] { help(thread); });
}

void ThreadPool::end() {
    is_over_.store(true);
    bell_.fetch_add(1);
    bell_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void ThreadPool::offer(std::uint32_t num_chunks) {
    done_.store(0, std::memory_order_relaxed);
    tickets_.store(static_cast<std::uint64_t>(num_chunks) << 32, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    bell_.fetch_add(1, std::memory_order_seq_cst);
    bell_.notify_all();
}

bool ThreadPool::has_chunks() const {
    const std::uint64_t tickets = tickets_.load(std::memory_order_seq_cst);
    return (tickets & 0xFFFFFFFFU) < tickets >> 32;
}

bool ThreadPool::take(int thread) {
    if (!has_chunks()) return false;
    // Whichever job is current here, the old value names a chunk of this very job.
    const std::uint64_t tickets = tickets_.fetch_add(1, std::memory_order_acq_rel);
    const std::uint64_t number = tickets & 0xFFFFFFFFU;
    if (number >= tickets >> 32) return false;
    const int begin = static_cast<int>(number) * job_.chunk;
    job_.run(job_.work, thread, begin, std::min(job_.count, begin + job_.chunk));
    done_.fetch_add(1, std::memory_order_seq_cst);
    if (is_caller_asleep_.load(std::memory_order_seq_cst)) done_.notify_all();
    return true;
}

void ThreadPool::wait_until_done(std::uint32_t num_chunks) {
    for (int i = 0; i < kSpins; i++) {
        if (done_.load(std::memory_order_acquire) == num_chunks) return;
        pause_briefly();
    }
    is_caller_asleep_.store(true, std::memory_order_seq_cst);
    for (;;) {
        const std::uint32_t done = done_.load(std::memory_order_seq_cst);
        if (done == num_chunks) break;
        done_.wait(done, std::memory_order_seq_cst);
    }
    is_caller_asleep_.store(false, std::memory_order_relaxed);
}

void ThreadPool::help(int thread) {
    while (!is_over_.load()) {
        while (take(thread)) {
        }
        rest();
    }
}

// Returns when there may be work: spins for a while, then sleeps until the bell rings.
void ThreadPool::rest() {
    for (int i = 0; i < kSpins; i++) {
        if (has_chunks()) return;
        pause_briefly();
    }
    // Count this thread as a sleeper before the last check, so that a thread that offers work either sees the count
    // or is seen here.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t heard = bell_.load(std::memory_order_seq_cst);
    if (!has_chunks() && !is_over_.load()) bell_.wait(heard, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace weft
