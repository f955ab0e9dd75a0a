// How a row of numbers becomes int8 and a scale.
#pragma once

namespace weft {

// How a row is rounded, by its largest magnitude: x becomes round(x * inverse), and that times `scale`
// is about x again. A row of next to nothing becomes zeros, for its inverse would be infinite; one that
// holds NaN or infinity, whose largest magnitude is given as NaN, becomes NaN.
struct Int8Rounding {
    float inverse;
    float scale;
};

// Static: each kernel file is to keep the copy that is made for its own instructions.
static inline Int8Rounding int8_rounding(float most) {
    if (most != most) return {0.0F, most};
    if (most < 1e-30F) return {0.0F, 0.0F};
    return {127.0F / most, most / 127.0F};
}

}  // namespace weft
