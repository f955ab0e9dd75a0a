#include "model/rope.h"

#include <cmath>

namespace weft {

void turn(const Rope& rope, const std::int32_t* positions, float* cosines) {
    float* sines = cosines + rope.frequencies.size();
    for (std::size_t i = 0; i < rope.frequencies.size(); i++) {
        // The angle is rounded to float32, as in training; its cosine is then computed in double precision.
        const std::int32_t position = positions[rope.axes.empty() ? 0 : rope.axes[i]];
        const double angle = static_cast<float>(position) * rope.frequencies[i];
        const double factor = static_cast<double>(rope.attention_factor);
        cosines[i] = static_cast<float>(std::cos(angle) * factor);
        sines[i] = static_cast<float>(std::sin(angle) * factor);
    }
}

}  // namespace weft
