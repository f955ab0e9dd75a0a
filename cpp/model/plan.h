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
    // By sequence, 0: no adapter; empty: no sequence has one.
    std::span<const std::int32_t> adapter_ids;
    std::span<const std::int32_t> token_types;  // empty: 0 everywhere
    std::span<const std::int32_t> embed_rows;  // rows whose embeddings are in `embeds`, ascending
    std::span<const float> embeds;  // [embed_rows][input_size], instead of looked-up embeddings
    std::span<const std::int32_t> state_reads;  // by sequence, for slots of states
    std::span<const std::int32_t> state_writes;
    // By sequence, the number of rows that advance its states; later rows are drafts, and leave states unchanged.
    // Empty: all rows.
    std::span<const std::int32_t> num_state_rows;

    bool wants_hidden = false;  // True: return the hidden state of every row too

    // [levels][embed_rows][hidden_size], added to hidden states after layers 0 to levels - 1.
    std::span<const float> deep_embeds{};
    std::span<const std::int32_t> rope_positions{};  // [rows][3]: frame, row, column; empty: `positions` for all three
    // By row, the last position that the row sees, its own or a later one; empty: its own.
    std::span<const std::int32_t> attend_ends{};

    // By sequence, the keys and values that come with it, as `Model::pack_memory` makes them; empty if the model has none.
    std::vector<std::span<const std::byte>> memories{};

    // Layers [first_layer, end_layer) of a model that is not causal; 0 for `end_layer`: all.
    int first_layer = 0;
    int end_layer = 0;

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
    std::int64_t num_state_slots = 0;  // slots for the states of sequences

    std::int64_t num_slots() const { return num_blocks * block_size; }
    std::int64_t num_tiles() const { return (num_slots() + kLanes - 1) / kLanes; }
    bool has_whole_tiles() const { return block_size % kLanes == 0; }
};

// A few rows that attend together: of one sequence, or of several that begin with the same tiles.
struct Piece {
    int first_row;  // index in `Plan::order` if tiles are shared
    int last_row;
    // Index of the sequence's first tile in `Plan::tiles`; 0 if tiles are shared.
    std::int64_t first_tile;
    int shared_tiles = 0;
    int end = std::numeric_limits<int>::max();  // a row sees no position from here on
};

// A few rows of one sequence, which attend together to the keys that come with the sequence.
struct CrossPiece {
    int first_row;
    int last_row;
    std::size_t sequence;
};

// A tile that is gathered from scattered slots, for blocks that are not whole tiles.
struct Gather {
    std::int64_t first_slot;  // index in `Plan::gather_slots`
    int num_tokens;
};

struct Plan {
    int rows = 0;
    std::vector<Piece> pieces;
    std::vector<CrossPiece> cross_pieces;  // empty unless keys come with sequences
    std::vector<std::int32_t> slots;  // destination of each row's keys and values
    // By tile of a sequence: the index of a tile in the pool, in the gathered tiles, or in the step's own tiles.
    std::vector<std::int32_t> tiles;
    std::vector<Gather> gathers;      // by gathered tile
    std::vector<std::int32_t> gather_slots;
    std::vector<std::int32_t> order;  // rows of pieces that share tiles
    std::vector<int> sequence_by_row;  // empty unless the model keeps states
    std::vector<std::int64_t> row_tiles;  // by row: index of its sequence's first tile in `tiles`
    int max_tiles = 0;  // maximum number of tiles of a sequence
    int max_tokens = 0;  // maximum number of tokens of a piece
    bool is_decode = true;  // True if every sequence has one row
};

// Throws std::invalid_argument, which names the field, for a batch that could lead outside of the vocabulary, the KV
// pool, its own tables or its own rows, or that does not hold whole sequences where the model is not causal. Tasks of
// attention have at least `attention_rows` rows if a sequence has as many.
Plan make_plan(const ModelSpec& spec, const KvShape& kv, const Batch& batch, int attention_rows, int num_threads);

}  // namespace weft
