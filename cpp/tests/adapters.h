// Random adapters, valid and invalid; see fuzz.cpp.
#pragma once

#include "model/model.h"

namespace weft {

// Adds adapters 1 and 2; adapter 3 is added and removed again.
void add_adapters(Model& model, unsigned seed);

}  // namespace weft
