// Quantization of a row of numbers to int8 and a scale.
#pragma once

namespace weft {

// Factors for a row, from its largest magnitude: x becomes round(x * inverse), and this times `scale` approximates x.
// A row of tiny numbers becomes zeros, because its inverse would be infinite; a row with NaN or infinity, whose
// largest magnitude is passed as NaN, becomes NaN.
struct Int8Rounding {
    float inverse;
    float scale;
};

// Static: each kernel file must keep the copy that is compiled for its own instructions.
static inline Int8Rounding int8_rounding(float most) {
    if (most != most) return {0.0F, most};
    if (most < 1e-30F) return {0.0F, 0.0F};
    return {127.0F / most, most / 127.0F};
}

}  // namespace weft
