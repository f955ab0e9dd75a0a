// Rotary position embedding: the angles of the pairs of elements.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Rotary frequencies, computed in Python: radians per position, one for each pair of elements.
struct Rope {
    std::vector<float> frequencies;
    float attention_factor = 1;
};

// Computes cosines of all pairs at a position, then sines.
void turn(const Rope& rope, std::int32_t position, float* cosines);

}  // namespace weft
