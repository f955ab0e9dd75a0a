// Random steps for sampling and scoring; see fuzz.cpp.
#pragma once

#include <string>

namespace weft {

// Checks random rows, masks and restrictions: the chosen token is an allowed one of the row, and is the same with any
// number of threads, alone, and on the portable path. A row that is not finite gives no token, and does not affect
// the others.
void check_samples(unsigned seed, const std::string& path);

// Checks that inconsistent arrays, and tokens outside a row, are refused.
void check_strange_samples(unsigned seed, const std::string& path);

}  // namespace weft
