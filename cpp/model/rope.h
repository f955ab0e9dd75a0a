// Rotary position embedding: by how much each pair of elements turns.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Rotary frequencies, worked out in Python: radians a position, one for each pair of elements.
struct Rope {
    std::vector<float> frequencies;
    float attention_factor = 1;
};

// Cosines of all pairs at a position, and then sines.
void turn(const Rope& rope, std::int32_t position, float* cosines);

}  // namespace weft
