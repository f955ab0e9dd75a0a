// Sequences that begin with the same tiles of the KV cache.
#pragma once

#include <span>

#include "model/plan.h"

namespace weft {

// Joins pieces of one row whose sequences begin with the same tiles into pieces of up to `most_rows` rows, which read
// these tiles once for all. Does nothing if that would save little reading.
void share_prefixes(Plan& plan, std::span<const std::int32_t> positions, int most_rows);

}  // namespace weft
