// Random steps for what chooses tokens and scores rows; see fuzz.cpp.
#pragma once

#include <string>

namespace weft {

// Random rows, masks and cut-offs: a token of the row comes and never one that is out, the same by any number of
// threads, alone, and on the portable path. A row that is not finite has none, and leaves the others as they are.
void check_samples(unsigned seed, const std::string& path);

// Arrays that do not fit each other, and tokens that a row does not have, are refused.
void check_strange_samples(unsigned seed, const std::string& path);

}  // namespace weft
