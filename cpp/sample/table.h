// The table that a file of passes fills. Included last.
#pragma once

#include "sample/draw.h"
#include "sample/scan.h"

namespace weft {
namespace {

constexpr Passes kPasses = {find_maxima, draw, weigh, apply_mask, sum_exp, log_softmax, count_from};

}  // namespace
}  // namespace weft
