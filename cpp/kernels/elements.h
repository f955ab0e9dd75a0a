// Multiplication of cells of weights or of the KV cache by activations, per element type. Included after the lanes of
// an instruction set; a path that multiplies bfloat16 itself brings its own `Bfloat16`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace weft {
namespace {

struct Float32 {
    using Stored = float;  // type of stored weights, keys and values
    using Activation = float;  // type of the activations that they are multiplied with
    using Number = float;  // type of the sums
    using Sum = Lanes;
    static constexpr Element kElement = Element::kFloat32;
    static constexpr int kStep = 1;  // elements of depth in a cell
    static constexpr int kScaleBytes = 0;  // bytes of scales per head in a tile of the KV cache

    struct Cell {
        Lanes value;
    };

    static Sum zero() { return splat(0.0F); }
    static Cell load_cell(const Stored* p) { return {load(p)}; }
    static Cell widen_cell(const std::int8_t* p) { return {widen_int8(p)}; }
    static Lanes dot(Lanes sum, const Cell& cell, const Activation* x) {
        return fma(splat(x[0]), cell.value, sum);
    }
    static void store_activation(Activation* p, Lanes a) { store(p, a); }
    // Stores 16 elements of depth into lane `lane` of successive cells.
    static void store_depth(Stored* cells, int lane, Lanes a) {
        float values[kLanes];
        store(values, a);
        for (int i = 0; i < kLanes; i++) cells[i * kLanes + lane] = values[i];
    }
    // Stores 16 columns of a cell, all at the same depth.
    static void store_columns(Stored* cell, int, Lanes a) { store(cell, a); }
};

#ifndef WEFT_MULTIPLIES_BFLOAT16
// Weights are widened in registers; activations stay float32, which is no slower and more exact.
struct Bfloat16 {
    using Stored = std::uint16_t;
    using Activation = float;
    using Number = float;
    using Sum = Lanes;
    static constexpr Element kElement = Element::kBfloat16;
    static constexpr int kStep = 2;
    static constexpr int kScaleBytes = 0;

    struct Cell {
        Lanes first;
        Lanes second;
    };

    static Sum zero() { return splat(0.0F); }
    static Cell load_cell(const Stored* p) {
        Cell cell;
        split_pairs(p, cell.first, cell.second);
        return cell;
    }
    static Cell widen_cell(const std::int8_t* p) {
        Cell cell;
        split_int8_pairs(p, cell.first, cell.second);
        return cell;
    }
    static Lanes dot(Lanes sum, const Cell& cell, const Activation* x) {
        return fma(splat(x[1]), cell.second, fma(splat(x[0]), cell.first, sum));
    }
    static void store_activation(Activation* p, Lanes a) { store(p, a); }
    static void store_depth(Stored* cells, int lane, Lanes a) {
        std::uint16_t values[kLanes];
        narrow_to(values, a);
        for (int i = 0; i < kLanes; i++) cells[i / 2 * 32 + lane * 2 + i % 2] = values[i];
    }
    // Stored element by element: the other half of each pair is another token, perhaps of another thread.
    static void store_columns(Stored* cell, int place, Lanes a) {
        std::uint16_t values[kLanes];
        narrow_to(values, a);
        for (int i = 0; i < kLanes; i++) cell[i * 2 + place] = values[i];
    }
};
#endif

constexpr int kCellBytes = 64;

template <class E>
constexpr std::ptrdiff_t kCell = kLanes * E::kStep;

}  // namespace
}  // namespace weft
