// Random descriptions of models, with every switch; see fuzz.cpp.
#pragma once

#include <random>

#include "model/spec.h"

namespace weft {

ModelSpec draw_spec(std::mt19937& random, bool is_causal);

}  // namespace weft
