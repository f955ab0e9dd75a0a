#include "model/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels/select.h"
#include "model/region.h"
#include "model/thread_pool.h"

namespace weft {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;  // far more than a cache
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr int kPieces = static_cast<int>(kBytes / kPiece);
constexpr int kTurns = 8;
constexpr int kRounds = 50000;  // a millisecond or so: some turn is not interrupted

template <class Body>
double seconds_of(ThreadPool& pool, const Body& body) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(body);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Limits measure_limits(const std::string& path, Element element, int num_threads) {
    const Kernels& kernels = kernels_of(path, element);
    ThreadPool pool(num_threads);
    const Region region(kBytes);
    pool.run([&](int) {
        pool.share(kPieces, 1, [&](int piece, int) {
            std::memset(region.data() + static_cast<std::size_t>(piece) * kPiece, 0, kPiece);
        });
    });
    Limits best{0, 0};
    for (int turn = 0; turn < kTurns; turn++) {
        const double reading = seconds_of(pool, [&](int) {
            pool.share(kPieces, 1, [&](int piece, int) {
                float sink;
                kernels.probe_reading(region.data() + static_cast<std::size_t>(piece) * kPiece, kPiece, &sink);
            });
        });
        std::atomic<double> operations{0};
        const double multiplying = seconds_of(pool, [&](int) {
            float sink;
            operations.fetch_add(kernels.probe_arithmetic(kRounds, &sink));
        });
        best.bytes_per_s = std::max(best.bytes_per_s, static_cast<double>(kBytes) / reading);
        best.operations_per_s = std::max(best.operations_per_s, operations.load() / multiplying);
    }
    return best;
}

}  // namespace weft
