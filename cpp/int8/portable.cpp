// int8 in plain C++, for every CPU.
#include "kernels/lanes_portable.h"

#include "int8/grouped.h"
#include "kernels/elements.h"

namespace weft {
namespace {

struct Ints {
    std::int32_t v[kLanes];
};

inline Ints load(const std::int32_t* p) {
    Ints r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void store(std::int32_t* p, Ints a) { std::memcpy(p, a.v, sizeof a.v); }
inline Lanes to_floats(Ints a, std::int32_t shift) {
    Lanes r;
    for (int i = 0; i < kLanes; i++) r.v[i] = static_cast<float>(a.v[i] - shift);
    return r;
}
inline Lanes widen_bfloat16(const std::uint16_t* p) {
    Lanes r;
    for (int i = 0; i < kLanes; i++) r.v[i] = widen(p[i]);
    return r;
}

// Widens finite float16 numbers: the exponent bits are shifted into place, and an exact multiplication corrects the
// bias.
inline Lanes widen_float16(const std::uint16_t* p) {
    Lanes r;
    for (int i = 0; i < kLanes; i++) {
        const std::uint32_t bits = static_cast<std::uint32_t>(p[i] & 0x7FFF) << 13;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        r.v[i] = (p[i] & 0x8000) != 0 ? value * -0x1p112F : value * 0x1p112F;
    }
    return r;
}
inline Ints splat_ints(std::int32_t value) {
    Ints r;
    for (std::int32_t& lane : r.v) lane = value;
    return r;
}
// Subtracts 16 zeros, each multiplied by `times`.
inline Ints take_products(Ints a, const std::int16_t* zeros, std::int32_t times) {
    for (int i = 0; i < kLanes; i++) a.v[i] -= zeros[i] * times;
    return a;
}

inline Ints add(Ints a, Ints b) {
    for (int i = 0; i < kLanes; i++) a.v[i] += b.v[i];
    return a;
}
inline std::int32_t sum_of(Ints a) {
    std::int32_t total = 0;
    for (const std::int32_t lane : a.v) total += lane;
    return total;
}
// Stores whole numbers as int8, and returns them.
inline Ints narrow_to_int8(std::int8_t* p, Lanes a) {
    Ints whole;
    for (int i = 0; i < kLanes; i++) {
        p[i] = static_cast<std::int8_t>(a.v[i]);
        whole.v[i] = p[i];
    }
    return whole;
}

struct Int8 {
    using Stored = std::uint8_t;
    using Activation = std::int8_t;
    using Number = std::int32_t;
    using Sum = Ints;
    static constexpr int kStep = 4;
    // Weights are shifted before the multiplication, so sums need no shift.
    static constexpr std::int32_t kShift = 0;

    struct Cell {
        const Stored* bytes;
    };

    static Sum zero() { return {}; }
    static Cell load_cell(const Stored* p) { return {p}; }
    static Sum dot(Sum sum, const Cell& cell, const Activation* x) {
        for (int i = 0; i < kLanes; i++)
            for (int k = 0; k < kStep; k++) sum.v[i] += (cell.bytes[i * kStep + k] - 128) * x[k];
        return sum;
    }
};

// Four bits: a cell is read as two cells of depth four each.
struct Int4 {
    struct Cell {
        const std::uint8_t* bytes;
        int shift;
    };

    static void load_cells(const std::uint8_t* p, Cell (&cells)[2]) {
        cells[0] = {p, 0};
        cells[1] = {p, 4};
    }
    static Ints dot(Ints sum, const Cell& cell, const std::int8_t* x) {
        for (int i = 0; i < kLanes; i++)
            for (int k = 0; k < 4; k++) sum.v[i] += (cell.bytes[i * 4 + k] >> cell.shift & 15) * x[k];
        return sum;
    }
};

// Like Int4, but the numbers are codes that are looked up.
struct E2m1 : Int4 {
    static Ints dot(Ints sum, const Cell& cell, const std::int8_t* x) {
        for (int i = 0; i < kLanes; i++)
            for (int k = 0; k < 4; k++) sum.v[i] += kE2m1[cell.bytes[i * 4 + k] >> cell.shift & 15] * x[k];
        return sum;
    }
};

template <class E>
constexpr int kMaxRows = 2;
constexpr int kWide = 1;
constexpr int kRowPanels = 1;

}  // namespace
}  // namespace weft

#include "int8/product.h"

namespace weft {

const Int8Kernels& portable_int8_kernels() { return kInt8Table; }

}  // namespace weft
