// Random inputs for parts of the core that no whole model is needed for; see fuzz.cpp.
#pragma once

#include <string>

namespace weft {

// Int8 products: the bits of the portable path, rows that hold NaN or infinity included; sizes that do not fit
// are refused.
void check_products(unsigned seed, const std::string& path);

// Draws from whole rows: the token that the portable path draws, and none from a row that is not finite.
void check_draws(unsigned seed, const std::string& path);

// Tokens that the row does not have are refused, whatever is asked to be done with them.
void check_strange_tokens(unsigned seed, const std::string& path);

// Rows of sequences that begin with the same tiles: planned to attend together, and to the bits of each alone.
void check_shared_prefixes(unsigned seed, const std::string& path);

}  // namespace weft
