// A Mamba-2 layer by itself, for tests: what every path gives must be what numpy gives, bit for bit.
#pragma once

#include <span>
#include <string>

#include "model/spec.h"
#include "model/weights.h"

namespace weft {

// What lies between the two products of such a layer: of rows [rows][in_size] of a sequence that begins, or that goes
// on from `state` [state_size], which goes on in place; into `out` [rows][inner_size]. Throws std::invalid_argument
// for sizes that do not fit.
void mamba_rows(const std::string& path, int num_threads, const MambaSpec& mamba, float norm_eps,
                const LayerWeights& weights, std::span<const float> rows, bool is_begun, std::span<float> state,
                std::span<float> out);

}  // namespace weft
