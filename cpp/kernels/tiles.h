// The micro-kernel in tile registers (Intel AMX): up to 32 rows of activations times one or two columns of cells. A
// cell is a row of a tile: 16 columns by four bytes of depth.
//
// One instruction sums 16 such steps of depth. For bfloat16 it sums the first and the second elements of all pairs
// separately, each from 0, and adds both to the register; so sums have the same bits for any number of rows, but
// other bits than on other paths. The compiler does not track these registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/product.h"

namespace weft {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileSteps = 16;  // maximum steps of depth
constexpr int kTileRowBytes = 64;

template <int kTile>
inline void load_tile(const void* p, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

// Loads a tile without displacing data in the first cache.
template <int kTile>
inline void load_passing_tile(const void* p, std::ptrdiff_t stride) {
    asm volatile("tileloaddt1 (%0,%1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void store_tile(void* p, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Use of the registers: sums of two tiles of rows by two columns in 0 to 3, activations in 4 and 5, cells in 6 and 7.
// A thread releases them when it is done: otherwise each context switch would save them.
class TileShapes {
public:
    TileShapes() = default;
    TileShapes(const TileShapes&) = delete;
    TileShapes& operator=(const TileShapes&) = delete;
    ~TileShapes() { asm volatile("tilerelease"); }

    // Configures shapes for `rows` rows of activations, from 1 to 32, and `steps` of depth. A new configuration
    // clears the registers.
    void set(int rows, int steps) {
        const int upper = rows < kTileRows ? rows : kTileRows;
        const int lower = rows > kTileRows ? rows - kTileRows : upper;
        if (upper == shapes_.rows[0] && lower == shapes_.rows[2] && steps == shapes_.rows[6]) return;
        for (int tile = 0; tile < 8; tile++) {
            const bool is_lower = tile == 2 || tile == 3 || tile == 5;
            const bool is_rows = tile == 4 || tile == 5;
            shapes_.rows[tile] = static_cast<std::uint8_t>(tile >= 6 ? steps : is_lower ? lower : upper);
            shapes_.row_bytes[tile] = static_cast<std::uint16_t>(is_rows ? steps * 4 : kTileRowBytes);
        }
        asm volatile("ldtilecfg %0" : : "m"(shapes_));
    }

private:
    // The layout that the instruction reads.
    struct alignas(64) Shapes {
        std::uint8_t palette = 1;
        std::uint8_t start_row = 0;
        std::uint8_t reserved[14] = {};
        std::uint16_t row_bytes[16] = {};
        std::uint8_t rows[16] = {};
    };
    Shapes shapes_;
};

// The operand that bypasses the first cache, because the other operand is needed again.
enum class Passing { kNone, kActivations, kCells };

// The first row of a product, and the distance between rows in elements.
template <class T>
struct TileRowsAt {
    T* rows;
    std::ptrdiff_t stride;
};

// Computes sums of rows of one or two tiles times one or two columns, over `num_tiles` tiles of depth in the
// configured shapes: the activations of the next tile are `x_step` elements further, and `cells(tile, column)` points
// to its cells, which are `cell_bytes` apart. The sums start from `from`, or from 0 if it is null, and are stored to
// `to`.
template <class E, int kHigh, int kWide, Passing kPassing, class CellsAt>
inline void product_in_tiles(const TileRowsAt<const typename E::Activation>& x, int x_step, const CellsAt& cells,
                             std::ptrdiff_t cell_bytes, int num_tiles,
                             const TileRowsAt<const typename E::Number>& from,
                             const TileRowsAt<typename E::Number>& to) {
    const std::ptrdiff_t x_bytes = x.stride * static_cast<std::ptrdiff_t>(sizeof *x.rows);
    const std::ptrdiff_t from_bytes = from.stride * static_cast<std::ptrdiff_t>(sizeof *from.rows);
    const std::ptrdiff_t to_bytes = to.stride * static_cast<std::ptrdiff_t>(sizeof *to.rows);
    const typename E::Activation* lower_x = x.rows + kTileRows * x.stride;
    const typename E::Number* lower_from = from.rows + kTileRows * from.stride;
    typename E::Number* lower_to = to.rows + kTileRows * to.stride;
    if (from.rows != nullptr) {
        load_tile<0>(from.rows, from_bytes);
        if constexpr (kWide == 2) load_tile<1>(from.rows + kLanes, from_bytes);
        if constexpr (kHigh == 2) load_tile<2>(lower_from, from_bytes);
        if constexpr (kHigh == 2 && kWide == 2) load_tile<3>(lower_from + kLanes, from_bytes);
    } else {
        clear_tile<0>();
        if constexpr (kWide == 2) clear_tile<1>();
        if constexpr (kHigh == 2) clear_tile<2>();
        if constexpr (kHigh == 2 && kWide == 2) clear_tile<3>();
    }
    const auto load_x = [&](auto tile, const void* p) {
        if constexpr (kPassing == Passing::kActivations) load_passing_tile<decltype(tile)::value>(p, x_bytes);
        else load_tile<decltype(tile)::value>(p, x_bytes);
    };
    const auto load_cells = [&](auto tile, const void* p) {
        if constexpr (kPassing == Passing::kCells) load_passing_tile<decltype(tile)::value>(p, cell_bytes);
        else load_tile<decltype(tile)::value>(p, cell_bytes);
    };
    for (int tile = 0; tile < num_tiles; tile++) {
        load_x(Constant<4>{}, x.rows + tile * x_step);
        load_cells(Constant<6>{}, cells(tile, 0));
        E::template multiply_tiles<0, 4, 6>();
        if constexpr (kWide == 2) load_cells(Constant<7>{}, cells(tile, 1));
        if constexpr (kWide == 2) E::template multiply_tiles<1, 4, 7>();
        if constexpr (kHigh == 2) load_x(Constant<5>{}, lower_x + tile * x_step);
        if constexpr (kHigh == 2) E::template multiply_tiles<2, 5, 6>();
        if constexpr (kHigh == 2 && kWide == 2) E::template multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(to.rows, to_bytes);
    if constexpr (kWide == 2) store_tile<1>(to.rows + kLanes, to_bytes);
    if constexpr (kHigh == 2) store_tile<2>(lower_to, to_bytes);
    if constexpr (kHigh == 2 && kWide == 2) store_tile<3>(lower_to + kLanes, to_bytes);
}

// The same for `rows` from 1 to 32 and any number of steps of depth; steps that do not fill a tile come last.
// `cells(step, column)` points to the cells.
template <class E, int kWide, Passing kPassing, class CellsAt>
inline void multiply_in_tiles(TileShapes& shapes, int rows, const TileRowsAt<const typename E::Activation>& x,
                              const CellsAt& cells, std::ptrdiff_t cell_bytes, int steps,
                              const TileRowsAt<const typename E::Number>& from,
                              const TileRowsAt<typename E::Number>& to) {
    const int whole = steps / kTileSteps * kTileSteps;
    const auto multiply = [&](int begin, int depth, int num_tiles) {
        if (num_tiles == 0) return;
        shapes.set(rows, depth);
        const TileRowsAt<const typename E::Activation> x_here{x.rows + begin * E::kStep, x.stride};
        const TileRowsAt<const typename E::Number> sums{to.rows, to.stride};
        const auto at = [&](int tile, int column) { return cells(begin + tile * kTileSteps, column); };
        const auto product = [&](auto high) {
            product_in_tiles<E, decltype(high)::value, kWide, kPassing>(
                x_here, kTileSteps * E::kStep, at, cell_bytes, num_tiles, begin > 0 ? sums : from, to);
        };
        if (rows > kTileRows) product(Constant<2>{});
        else product(Constant<1>{});
    };
    multiply(0, kTileSteps, whole / kTileSteps);
    multiply(whole, steps - whole, steps > whole ? 1 : 0);
}

// Measures the same as `probe_arithmetic`, in tile registers.
template <class E>
double probe_tiles(int rounds, float* sink) {
    TileShapes shapes;
    shapes.set(2 * kTileRows, kTileSteps);
    alignas(64) typename E::Number y[kTileRows * kLanes] = {};
    load_tile<4>(y, kTileRowBytes);
    load_tile<5>(y, kTileRowBytes);
    load_tile<6>(y, kTileRowBytes);
    load_tile<7>(y, kTileRowBytes);
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
    for (int round = 0; round < rounds; round++) {
        E::template multiply_tiles<0, 4, 6>();
        E::template multiply_tiles<1, 4, 7>();
        E::template multiply_tiles<2, 5, 6>();
        E::template multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(y, kTileRowBytes);
    *sink = static_cast<float>(y[0]);
    return 4.0 * 2.0 * rounds * kTileRows * kLanes * kTileSteps * E::kStep;
}

}  // namespace
}  // namespace weft
