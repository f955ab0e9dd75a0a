// Kernels for x86 CPUs that multiply whole tiles of bfloat16 (AMX). All other kernels are those of AVX-512.
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
#include "kernels/int8_cache.h"
#include "kernels/panel_tiles.h"
#include "kernels/row_as_tiles.h"

namespace weft {
namespace {

// One row: tile registers read memory more slowly than vector registers, so the same sums are computed in these.
void gemm_one_row(const GemmTask& task) {
    for_columns<kRowPanels>(task.last_panel - task.first_panel, [&](int at, auto panels) {
        constexpr int kPanels = decltype(panels)::value;
        Lanes sum[kPanels][2];
        sum_row_as_tiles<kPanels>(task, task.first_panel + at, sum);
        finish_row<Bfloat16, kPanels>(task, task.first_panel + at, sum);
    });
}

void gemm_in_tiles(const GemmTask& task) {
    if (task.last_row == 1) return gemm_one_row(task);
    TileShapes shapes;
    for_blocks_in_tiles<TiledBfloat16>(task, [&](int panel, int first_row, int rows) {
        gemm_block<Bfloat16, kTiledBlockRows>(task, panel, first_row, rows, [&](float* y, std::ptrdiff_t y_stride) {
            multiply_panel_in_tiles<TiledBfloat16>(shapes, task, panel, first_row, rows, y, y_stride);
        });
    });
}

template <class E>
void attend_in_tiles(const AttentionTask& task) {
    AttentionInTiles<E>(task).run();
}

Kernels with_tiles(Kernels kernels) {
    kernels.attention_rows = 2 * kTileRows;
    kernels.pieces = 1;
    kernels.gemm = gemm_in_tiles;
    kernels.attend = attend_in_tiles<TiledBfloat16>;
    kernels.int8_attend = attend_in_tiles<Int8Cache<TiledBfloat16>>;
    kernels.probe_arithmetic = probe_tiles<TiledBfloat16>;
    return kernels;
}

}  // namespace

const Kernels& amx_kernels(Element element) {
    static const Kernels kernels = with_tiles(avx512_bf16_kernels(Element::kBfloat16));
    return element == Element::kFloat32 ? avx512_kernels(element) : kernels;
}

}  // namespace weft
