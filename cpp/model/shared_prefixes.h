// Sequences that begin with the same tiles of the KV cache.
#pragma once

#include <span>

#include "model/plan.h"

namespace weft {

// Pieces of one row whose sequences begin with the same tiles become pieces of up to `most_rows`, which read
// these once for all. Left out where that would spare little of what is read.
void share_prefixes(Plan& plan, std::span<const std::int32_t> positions, int most_rows);

}  // namespace weft
