// Products of int8 weights and int8 activations: what a kernel file offers, and the layouts it shares with the model.
// As in cpp/kernels, no standard containers here or in what is compiled for one instruction set.
//
// A weight is an int8 from -127 to 127 times the scale of its output row. A row of activations is quantized on the
// fly to int8 times a scale of its own. Sums are whole numbers, exact in any order: so every instruction set gives
// the same bits, and so does `weft.compute.arithmetic.int8` in numpy.
//
// A cell is 64 bytes: 16 columns by 4 elements of depth, each weight plus 128 as one unsigned byte, because the
// multiplication instructions take an unsigned and a signed byte. Panels have the layout of cpp/kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "int8/grouped.h"
#include "kernels/int8_rounding.h"
#include "kernels/kernels.h"

namespace weft {

constexpr int kInt8WeightShift = 128;  // added to every weight when it is stored
// At a greater depth a sum might not fit int32.
constexpr int kInt8MostDepth = 1 << 17;

// One row of activations, in groups with a scale each; the whole row may be one group.
struct QuantizeTask {
    const void* x;
    bool is_bfloat16;  // otherwise float
    int depth;  // a multiple of 16
    int group;  // group size; also a multiple of 16
    std::int8_t* out;
    RowGroups rounded;  // results, from this row on
};

// `x` is int8 [rows][x_stride], `panels` are unsigned bytes; the output of `kActivate` is float.
struct Int8Task : GemmTask {
    const float* row_scales;
    const std::int32_t* row_sums;
    const float* column_scales;  // by packed column; 0 for padding columns
};

struct Int8Kernels {
    void (*gemm)(const Int8Task&);
    void (*grouped_gemm)(const GroupedTask&);
    void (*quantize)(const QuantizeTask&);
    double (*probe_arithmetic)(int rounds, float* sink);
};

const Int8Kernels& portable_int8_kernels();
const Int8Kernels& avx2_int8_kernels();
const Int8Kernels& avx512_vnni_int8_kernels();
const Int8Kernels& amx_int8_kernels();
const Int8Kernels& neon_int8_kernels();
const Int8Kernels& neon_dot_int8_kernels();
const Int8Kernels& neon_i8mm_int8_kernels();

}  // namespace weft
