// Random tasks of attention without a whole model; see fuzz.cpp.
#pragma once

#include <string>

namespace weft {

// Checks that the tasks of attention cover all heads, and that threads share tasks only if all finish sooner.
void check_attention_tasks(unsigned seed);

// Checks rows of sequences that begin with the same tiles: they are planned to attend together, with the bits of each
// alone, on one thread or several.
void check_shared_prefixes(unsigned seed, const std::string& path);

}  // namespace weft
