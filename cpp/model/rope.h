// Rotary position embedding: the angles of the pairs of elements.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Rotary frequencies, computed in Python: radians per position, one for each pair of elements.
struct Rope {
    std::vector<float> frequencies;
    float attention_factor = 1;
    // By pair: which of a row's three positions (frame, row, column) turns it; empty: the first.
    std::vector<int> axes{};
};

// Computes cosines of all pairs at a row's three positions, then sines.
void turn(const Rope& rope, const std::int32_t* positions, float* cosines);

}  // namespace weft
