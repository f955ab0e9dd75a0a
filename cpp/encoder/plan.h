// One step of an encoder: whole sequences as they come in, checked, and how attention divides them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "encoder/spec.h"

namespace weft {

// `weft.compute.runner.Batch`, as far as an encoder reads it. Nothing of it is trusted before
// `make_encoder_plan`.
struct EncoderBatch {
    std::span<const std::int32_t> token_ids;
    std::span<const std::int32_t> positions;
    std::span<const std::int32_t> token_types;  // empty: 0 everywhere
    std::span<const std::int32_t> query_starts;
    std::span<const std::int32_t> wanted;  // rows whose hidden states are given back
};

// A few rows of one sequence that attend together.
struct EncoderPiece {
    int first_row;
    int last_row;
    int first_tile;  // of the sequence
    int length;      // of the sequence
};

// Keys and values of a step lie in tiles of their own, sequence by sequence, for one layer at a time.
struct EncoderPlan {
    int rows = 0;
    int num_tiles = 0;
    std::vector<EncoderPiece> pieces;
    std::vector<std::int32_t> tiles;  // their numbers in order: a sequence's tiles are side by side
    std::vector<std::int32_t> slots;  // by row: the tile times 16, plus the lane
    int max_tiles = 0;   // of one sequence
    int max_tokens = 0;  // of one piece
};

// Throws std::invalid_argument, which names the field, for a batch that could lead outside of the
// tables of embeddings or its own rows, or that does not hold whole sequences.
EncoderPlan make_encoder_plan(const EncoderSpec& spec, const EncoderBatch& batch, int attention_rows);

}  // namespace weft
