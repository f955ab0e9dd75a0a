#include "model/measure.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "int8/select.h"
#include "kernels/select.h"
#include "model/region.h"
#include "model/thread_pool.h"

namespace weft {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;  // far more than a cache
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr int kPieces = static_cast<int>(kBytes / kPiece);
constexpr int kTurns = 8;
constexpr int kRounds = 50000;  // at most a millisecond, so that some rounds are not interrupted

double thread_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Measures the seconds that each thread was running, so that other load of the machine does not count. Each thread
// reads its own clock, because the clock of the process lags behind for running threads.
template <class Work>
double seconds_of(ThreadPool& pool, int count, const Work& work) {
    std::atomic<double> total{0};
    pool.share(count, 1, [&](int thread, int begin, int end) {
        const double start = thread_seconds();
        work(thread, begin, end);
        total.fetch_add(thread_seconds() - start);
    });
    return total.load() / pool.size();
}

}  // namespace

Limits measure_limits(const std::string& path, Element element, Quantization quantization, int num_threads) {
    const Kernels& kernels = kernels_of(path, element);
    const auto multiply = quantization == Quantization::kInt8 ? int8_kernels_of(path).probe_arithmetic
                                                              : kernels.probe_arithmetic;
    ThreadPool pool(num_threads);
    const Region region(kBytes);
    pool.share(kPieces, 1, [&](int, int begin, int end) {
        std::memset(region.data() + static_cast<std::size_t>(begin) * kPiece, 0,
                    static_cast<std::size_t>(end - begin) * kPiece);
    });
    Limits best{0, 0};
    for (int turn = 0; turn < kTurns; turn++) {
        const double reading = seconds_of(pool, kPieces, [&](int, int begin, int end) {
            float sink;
            kernels.probe_reading(region.data() + static_cast<std::size_t>(begin) * kPiece,
                                  static_cast<std::size_t>(end - begin) * kPiece, &sink);
        });
        std::atomic<double> operations{0};
        const double multiplying = seconds_of(pool, 4 * num_threads, [&](int, int begin, int end) {
            float sink;
            for (int i = begin; i < end; i++) operations.fetch_add(multiply(kRounds, &sink));
        });
        best.bytes_per_s = std::max(best.bytes_per_s, static_cast<double>(kBytes) / reading);
        best.operations_per_s = std::max(best.operations_per_s, operations.load() / multiplying);
    }
    return best;
}

}  // namespace weft
