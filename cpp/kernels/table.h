// The table that a kernel file fills. Included last.
#pragma once

#include "kernels/attention_registers.h"
#include "kernels/delta.h"
#include "kernels/gemm.h"
#include "kernels/latent.h"
#include "kernels/mamba.h"
#include "kernels/mamba1.h"
#include "kernels/norms.h"
#include "kernels/probes.h"
#include "kernels/rows.h"

namespace weft {
namespace {

constexpr int kAttentionRows = 12;
constexpr int kPieces = 4;

template <class E>
constexpr Kernels kTable = {
    E::kElement, static_cast<int>(sizeof(typename E::Activation)), kAttentionRows, kPieces,
    gemm<E>,     residual<E, RmsNorm>, residual<E, LayerNorm>, to_activations<E>,
    heads<E>,    attend<E>,   heads<Int8Cache<E>>, attend<Int8Cache<E>>, latent<E>, gate_outputs<E>,
    convolve_channels, mamba_scan, mamba1_row, mamba1_scan, delta_row, delta_scan, gated_norm,
    probe_arithmetic<E>, probe_reading,
};

}  // namespace
}  // namespace weft
