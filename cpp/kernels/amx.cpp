// Kernels for x86 CPUs that multiply whole tiles of bfloat16 (AMX). What is not a product is that of AVX-512.
#include "kernels/bfloat16_avx512.h"

namespace weft {
namespace {

template <class E>
constexpr int kMaxRows = 12;
constexpr int kWide = 2;
constexpr int kRowPanels = 4;

struct TiledBfloat16 : Bfloat16 {
    template <int kSum, int kRows, int kCells>
    static void multiply_tiles() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRows), "i"(kCells));
    }
};

}  // namespace
}  // namespace weft

#include "kernels/attention_tiles.h"
#include "kernels/gemm.h"
#include "kernels/panel_tiles.h"
#include "kernels/row_as_tiles.h"

namespace weft {
namespace {

// One row: tile registers read memory more slowly than others, so the same sums are made in those.
void gemm_one_row(const GemmTask& task) {
    for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
        constexpr int kPanels = decltype(panels)::value;
        Lanes sum[kPanels][2];
        sum_row_as_tiles<kPanels>(task, task.first_panel + at, sum);
        finish_row<Bfloat16, kPanels>(task, task.first_panel + at, sum);
    });
}

void gemm_in_tiles(const GemmTask& task) {
    if (task.rows == 1) return gemm_one_row(task);
    TileShapes shapes;
    for_blocks_in_tiles<TiledBfloat16>(task, [&](int panel, int first_row, int rows) {
        gemm_block<Bfloat16>(task, panel, first_row, rows, [&](float* y, std::ptrdiff_t y_stride) {
            multiply_panel_in_tiles<TiledBfloat16>(shapes, task, panel, first_row, rows, y, y_stride);
        });
    });
}

void attend_in_tiles(const AttentionTask& task) { AttentionInTiles<TiledBfloat16>(task).run(); }

double probe_tiles(int rounds, float* sink) {
    TileShapes shapes;
    shapes.set(2 * kTileRows, kTileSteps);
    alignas(64) float y[kTileRows * kLanes] = {};
    load_tile<4>(y, kTileRowBytes);
    load_tile<5>(y, kTileRowBytes);
    load_tile<6>(y, kTileRowBytes);
    load_tile<7>(y, kTileRowBytes);
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
    for (int round = 0; round < rounds; round++) {
        TiledBfloat16::multiply_tiles<0, 4, 6>();
        TiledBfloat16::multiply_tiles<1, 4, 7>();
        TiledBfloat16::multiply_tiles<2, 5, 6>();
        TiledBfloat16::multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(y, kTileRowBytes);
    *sink = y[0];
    return 4.0 * 2.0 * rounds * kTileRows * kLanes * kTileSteps * Bfloat16::kStep;
}

Kernels with_tiles(Kernels kernels) {
    kernels.attention_rows = 2 * kTileRows;
    kernels.gemm = gemm_in_tiles;
    kernels.attend = attend_in_tiles;
    kernels.probe_arithmetic = probe_tiles;
    return kernels;
}

}  // namespace

const Kernels& amx_kernels(Element element) {
    static const Kernels kernels = with_tiles(avx512_bf16_kernels(Element::kBfloat16));
    return element == Element::kFloat32 ? avx512_kernels(element) : kernels;
}

}  // namespace weft
