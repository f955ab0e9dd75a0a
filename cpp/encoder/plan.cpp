#include "encoder/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "model/plan.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_sizes(const EncoderSpec& spec, const EncoderBatch& batch) {
    const std::size_t rows = batch.token_ids.size();
    if (rows == 0) refuse("token_ids is empty; a step has at least one row");
    if (rows > 1 << 20) refuse("token_ids has more than 2^20 rows");
    if (rows * static_cast<std::size_t>(spec.num_heads) > std::numeric_limits<std::int32_t>::max())
        refuse("token_ids has more rows than 2^31 / num_heads");
    if (batch.positions.size() != rows) refuse("positions must have as many rows as token_ids");
    if (!batch.token_types.empty() && batch.token_types.size() != rows)
        refuse("token_types must have as many rows as token_ids");
    if (batch.query_starts.size() < 2) refuse("query_starts must have an entry more than there are sequences");
    if (batch.query_starts.front() != 0) refuse("query_starts must begin with 0");
    if (batch.query_starts.back() != static_cast<std::int64_t>(rows))
        refuse("query_starts must end with the number of rows");
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++)
        if (batch.query_starts[i] >= batch.query_starts[i + 1]) refuse("query_starts must rise");
}

// A row sees what comes after it too: so its sequence is whole, and its positions count its rows.
void check_positions(const EncoderSpec& spec, const EncoderBatch& batch) {
    if (spec.num_positions > 0) check_range(batch.positions, spec.num_positions - spec.position_offset, "positions");
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++)
        for (std::int32_t row = batch.query_starts[i]; row < batch.query_starts[i + 1]; row++) {
            const std::int32_t position = batch.positions[static_cast<std::size_t>(row)];
            const std::int32_t expected = row - batch.query_starts[i];
            if (position != expected)
                refuse("positions[" + std::to_string(row) + "] is " + std::to_string(position) +
                       "; a sequence is whole and counts from 0, so it must be " + std::to_string(expected));
        }
}

}  // namespace

EncoderPlan make_encoder_plan(const EncoderSpec& spec, const EncoderBatch& batch, int attention_rows) {
    check_sizes(spec, batch);
    check_range(batch.token_ids, spec.vocab_size, "token_ids");
    // A model without token types has one kind of token.
    check_range(batch.token_types, std::max(spec.num_token_types, 1), "token_types");
    check_range(batch.wanted, static_cast<std::int64_t>(batch.token_ids.size()), "logit_rows");
    check_positions(spec, batch);
    EncoderPlan plan;
    plan.rows = static_cast<int>(batch.token_ids.size());
    plan.slots.reserve(batch.token_ids.size());
    const int step = attention_tokens(attention_rows, 1);
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++) {
        const int begin = batch.query_starts[i];
        const int end = batch.query_starts[i + 1];
        const int length = end - begin;
        const int num_tiles = (length - 1) / kLanes + 1;
        for (int place = 0; place < length; place++) plan.slots.push_back(plan.num_tiles * kLanes + place);
        for (int row = begin; row < end; row += step)
            plan.pieces.push_back({row, std::min(end, row + step), plan.num_tiles, length});
        plan.num_tiles += num_tiles;
        plan.max_tiles = std::max(plan.max_tiles, num_tiles);
        plan.max_tokens = std::max(plan.max_tokens, std::min(length, step));
    }
    plan.tiles.resize(static_cast<std::size_t>(plan.num_tiles));
    std::iota(plan.tiles.begin(), plan.tiles.end(), 0);
    return plan;
}

}  // namespace weft
