// The place of a checkpoint's matrix in a packed one, and the packing.
#pragma once

#include "model/pack.h"
#include "model/thread_pool.h"

namespace weft {

// Mapping of rows of a checkpoint's matrix to columns of a packed one: heads are padded to whole lanes; gate and up
// alternate in panels, 16 columns each; runs alternate in the checkpoint, each with columns of its own.
enum class Order { kPlain, kHeads, kGate, kUp, kRuns };

// A number of rows that recurs in each turn of the checkpoint; their columns are `step` further in each turn.
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
    bool is_of_heads = false;  // the depth of the matrix is the output of the heads
    bool takes_adapters = true;
    std::vector<Run> runs{};
};

// The packed column of a row.
int column_of(const Place& place, int row);

// Packs the whole matrix, as `element`, or as int8 if the packed matrix is int8. Returns false if it holds NaN or
// infinity: values are checked while they are in the cache.
bool pack_matrix(const Place& place, const Source& source, Element element, ThreadPool& pool);

void pack_bias(const Place& place, const Source& source);

}  // namespace weft
