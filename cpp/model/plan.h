// One step: its rows as given, the checks, and the division of attention.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model/spec.h"

namespace weft {

// `weft.compute.protocols.runner.Batch`, as given. It is untrusted before `make_plan`. For a model that is not
// causal, there are no slots and no block tables.
struct Batch {
    std::span<const std::int32_t> token_ids;
    std::span<const std::int32_t> positions;
    std::span<const std::int32_t> slots;
    std::span<const std::int32_t> query_starts;
    std::span<const std::int32_t> block_tables;  // [sequences][table_width]
    std::int64_t table_width = 0;
    std::span<const std::int32_t> logit_rows;
    std::span<const std::int32_t> adapter_ids;  // by sequence, 0: none; empty: no sequence has one
    std::span<const std::int32_t> token_types;  // empty: 0 everywhere
    std::span<const std::int32_t> embed_rows;  // rows that begin with what is in `embeds`, ascending
    std::span<const float> embeds;  // [embed_rows][input_size], in place of what token ids look up
    std::span<const std::int32_t> state_reads;   // by sequence, where slots hold states
    std::span<const std::int32_t> state_writes;
    // By sequence, the number of rows that advance its states; later rows are drafts, and leave states unchanged.
    // Empty: all rows.
    std::span<const std::int32_t> num_state_rows;

    bool wants_hidden = false;  // the hidden state of every row comes out too

    // The end of the rows of a sequence that advance its states.
    int state_end(int sequence) const {
        const auto at = static_cast<std::size_t>(sequence);
        return num_state_rows.empty() ? query_starts[at + 1] : query_starts[at] + num_state_rows[at];
    }
};

// Slots of the KV pool. Tiles hold 16 slots; blocks of whole tiles can be read in place.
struct KvShape {
    std::int64_t num_blocks = 0;
    std::int64_t block_size = 0;
    std::int64_t num_state_slots = 0;  // for states of sequences, beside the pool

    std::int64_t num_slots() const { return num_blocks * block_size; }
    std::int64_t num_tiles() const { return (num_slots() + kLanes - 1) / kLanes; }
    bool has_whole_tiles() const { return block_size % kLanes == 0; }
};

// A few rows that attend together: of one sequence, or of several that begin with the same tiles.
struct Piece {
    int first_row;  // where tiles are shared, in `Plan::order`
    int last_row;
    std::int64_t first_tile;  // of the sequence, in `Plan::tiles`; 0 where tiles are shared
    int shared_tiles = 0;
    int end = std::numeric_limits<int>::max();  // position from which on a row sees nothing
};

// A tile that is gathered from scattered slots, for blocks that are not whole tiles.
struct Gather {
    std::int64_t first_slot;  // in `Plan::gather_slots`
    int num_tokens;
};

struct Plan {
    int rows = 0;
    std::vector<Piece> pieces;
    std::vector<std::int32_t> slots;  // where the keys and values of a row go
    // By tile of a sequence: the index of a tile in the pool, in the gathered tiles, or in the step's own tiles.
    std::vector<std::int32_t> tiles;
    std::vector<Gather> gathers;      // by gathered tile
    std::vector<std::int32_t> gather_slots;
    std::vector<std::int32_t> order;  // rows of pieces that share tiles
    std::vector<int> sequence_by_row;  // where the model keeps states, else empty
    std::vector<std::int64_t> row_tiles;  // where those of a row's sequence begin, in `tiles`
    int max_tiles = 0;  // of one sequence
    int max_tokens = 0;  // of one piece
    bool is_decode = true;  // no sequence has more than one row
};

// Throws std::invalid_argument, which names the field, for a batch that could lead outside of the vocabulary, the KV
// pool, its own tables or its own rows, or that does not hold whole sequences where the model is not causal. Tasks of
// attention have at least `attention_rows` rows if a sequence has as many.
Plan make_plan(const ModelSpec& spec, const KvShape& kv, const Batch& batch, int attention_rows, int num_threads);

}  // namespace weft
