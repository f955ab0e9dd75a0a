// The weights of a whole model, drawn at random; see fuzz.cpp.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "model/model.h"

namespace weft {

// Matrices of a layer with attention, by name: [rows, columns].
std::vector<std::tuple<std::string, int, int>> attention_matrices(const ModelSpec& s, const LayerSpec& layer);

// Matrices into a recurrence and out of it, likewise.
std::vector<std::tuple<std::string, int, int>> recurrent_matrices(const ModelSpec& s, const RecurrentSpec& recurrence);

// Loads every weight, drawn from its name and the seed: the same weights in every model of the spec.
void load_all(Model& model, unsigned seed);

}  // namespace weft
