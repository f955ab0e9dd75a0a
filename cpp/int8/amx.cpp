// int8 for x86 CPUs that multiply whole tiles of it (AMX). Products of groups, and all other functions, are those of
// AVX-512 VNNI.
#include "int8/int8_vnni.h"

#include "int8/product.h"
#include "kernels/panel_tiles.h"

namespace weft {
namespace {

struct TiledInt8 : Int8 {
    template <int kSum, int kRows, int kCells>
    static void multiply_tiles() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRows), "i"(kCells));
    }
};

// One row is faster in vector registers, and sums of whole numbers have the same bits there.
void int8_gemm_in_tiles(const Int8Task& task) {
    if (task.last_row == 1) return int8_gemm(task);
    TileShapes shapes;
    for_blocks_in_tiles<TiledInt8>(task, [&](int panel, int first_row, int rows) {
        int8_block<kTiledBlockRows>(task, panel, first_row, rows, [&](std::int32_t* sums) {
            multiply_panel_in_tiles<TiledInt8>(shapes, task, panel, first_row, rows, sums, kPanelColumns);
        });
    });
}

constexpr Int8Kernels kTiledTable = {int8_gemm_in_tiles, grouped_gemm, quantize, probe_tiles<TiledInt8>};

}  // namespace

const Int8Kernels& amx_int8_kernels() { return kTiledTable; }

}  // namespace weft
