// Where a matrix of a checkpoint goes in a packed one, and the packing.
#pragma once

#include "model/pack.h"
#include "model/thread_pool.h"

namespace weft {

// How rows of a matrix of the checkpoint become columns of a packed one: heads are padded to whole lanes;
// gate and up take turns in panels, 16 columns each; runs take turns in the checkpoint, each with columns of its own.
enum class Order { kPlain, kHeads, kGate, kUp, kRuns };

// So many rows, which come again in each turn; their columns, `step` further in each.
struct Run {
    int length;
    int first_column;
    int step;
};

// A matrix of the checkpoint and its part of a packed one.
struct Place {
    Matrix* matrix;
    int first_column;
    int rows;
    int columns;
    Order order;
    int head_dim;
    bool is_of_heads = false;  // the input, that is the depth, is the heads' output
    bool takes_adapters = true;
    std::vector<Run> runs{};
};

// The packed column of a row.
int column_of(const Place& place, int row);

// Packs the whole matrix, as `element` or as int8 where the packed one is. False if it holds NaN or
// infinity: it is looked at on the way, while it is in the cache.
bool pack_matrix(const Place& place, const Source& source, Element element, ThreadPool& pool);

void pack_bias(const Place& place, const Source& source);

}  // namespace weft
