#include "model/plan.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "model/shared_prefixes.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

[[noreturn]] void refuse_row(const char* field, std::size_t row, const char* why) {
    refuse(std::string(field) + "[" + std::to_string(row) + "] " + why);
}

void check_range(std::span<const std::int32_t> values, std::int64_t end, const char* field) {
    for (std::size_t i = 0; i < values.size(); i++)
        if (values[i] < 0 || values[i] >= end)
            refuse(std::string(field) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                   "; it must be from 0 to " + std::to_string(end - 1));
}

void check_sizes(const ModelSpec& spec, const Batch& batch) {
    const std::size_t rows = batch.token_ids.size();
    if (rows == 0) refuse("token_ids is empty; a step has at least one row");
    if (rows > 1 << 20) refuse("token_ids has more than 2^20 rows");
    if (rows * static_cast<std::size_t>(spec.most_kv_heads()) > std::numeric_limits<std::int32_t>::max())
        refuse("token_ids has more rows than 2^31 / num_kv_heads");
    if (batch.positions.size() != rows) refuse("positions must have as many rows as token_ids");
    if (!batch.token_types.empty() && batch.token_types.size() != rows)
        refuse("token_types must have as many rows as token_ids");
    if (batch.query_starts.size() < 2) refuse("query_starts must have an entry more than there are sequences");
    const std::size_t sequences = batch.query_starts.size() - 1;
    if (!batch.adapter_ids.empty() && batch.adapter_ids.size() != sequences)
        refuse("adapter_ids must have as many entries as there are sequences");
    if (batch.query_starts.front() != 0) refuse("query_starts must begin with 0");
    if (batch.query_starts.back() != static_cast<std::int64_t>(rows))
        refuse("query_starts must end with the number of rows");
    for (std::size_t i = 0; i < sequences; i++)
        if (batch.query_starts[i] >= batch.query_starts[i + 1]) refuse("query_starts must rise");
}

// Checks looked-up ids, and the wanted rows.
void check_rows(const ModelSpec& spec, const Batch& batch) {
    check_range(batch.token_ids, spec.vocab_size, "token_ids");
    // A model without token types has one kind of token.
    check_range(batch.token_types, std::max(spec.num_token_types, 1), "token_types");
    if (batch.wants_hidden)
        for (std::size_t i = 1; i < batch.logit_rows.size(); i++)
            if (batch.logit_rows[i - 1] >= batch.logit_rows[i]) refuse("logit_rows must rise where hidden states are wanted");
    check_range(batch.logit_rows, static_cast<std::int64_t>(batch.token_ids.size()), "logit_rows");
    if (spec.num_positions > 0) check_range(batch.positions, spec.num_positions - spec.position_offset, "positions");
    if (!batch.rope_positions.empty() && batch.rope_positions.size() != 3 * batch.token_ids.size())
        refuse("rope_positions must have three entries for each row of token_ids");
    check_range(batch.rope_positions, std::numeric_limits<std::int32_t>::max(), "rope_positions");
    const int num_layers = static_cast<int>(spec.layers.size());
    if (batch.first_layer < 0 || batch.end_layer < 0 || batch.end_layer > num_layers ||
        batch.first_layer >= (batch.end_layer == 0 ? num_layers : batch.end_layer))
        refuse("first_layer and end_layer must be a range of the model's layers");
    if (spec.is_causal && (batch.first_layer != 0 || batch.end_layer != 0))
        refuse("first_layer and end_layer must be 0 where keys and values are kept");
}

// Checks that rows see themselves, and nothing behind the rows of their sequence.
void check_ends(const ModelSpec& spec, const Batch& batch) {
    if (batch.attend_ends.empty()) return;
    if (!spec.is_causal) refuse("attend_ends must be None where rows see their whole sequence");
    if (batch.attend_ends.size() != batch.token_ids.size()) refuse("attend_ends must have as many rows as token_ids");
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++) {
        const auto begin = static_cast<std::size_t>(batch.query_starts[i]);
        const auto end = static_cast<std::size_t>(batch.query_starts[i + 1]);
        const auto rows = batch.positions.subspan(begin, end - begin);
        const std::int32_t last = *std::max_element(rows.begin(), rows.end());
        for (std::size_t row = begin; row < end; row++)
            if (batch.attend_ends[row] < batch.positions[row] || batch.attend_ends[row] > last)
                refuse_row("attend_ends", row, "must be from its position to the last of its sequence in the step");
    }
}

// Checks the rows whose embeddings come with the batch.
void check_embeds(const ModelSpec& spec, const Batch& batch) {
    const auto& rows = batch.embed_rows;
    check_range(rows, static_cast<std::int64_t>(batch.token_ids.size()), "embed_rows");
    for (std::size_t i = 1; i < rows.size(); i++)
        if (rows[i - 1] >= rows[i]) refuse("embed_rows must rise");
    if (batch.embeds.size() != rows.size() * static_cast<std::size_t>(spec.input_size()))
        refuse("embeds must have a row of hidden_size for each of embed_rows, or a pair where rows are joined");
    if (!batch.deep_embeds.empty()) {
        const std::size_t level = batch.embeds.size();
        if (level == 0 || batch.deep_embeds.size() % level != 0 || batch.deep_embeds.size() / level >= spec.layers.size())
            refuse("deep_embeds must have a row of hidden_size for each of embed_rows, for fewer levels than layers");
        if (spec.norm_placement != NormPlacement::kBefore || spec.joins_hidden)
            refuse("deep_embeds must be None unless norms come before, and rows are not joined");
    }
    if (spec.joins_hidden && rows.size() != batch.token_ids.size()) refuse("embed_rows must be all rows: they are joined");
}

// Checks the keys and values that come with sequences.
void check_memories(const ModelSpec& spec, const Batch& batch) {
    const std::size_t wanted = spec.num_cross_keys > 0 ? batch.query_starts.size() - 1 : 0;
    if (batch.memories.size() != wanted) refuse("memories must have one for each sequence, of a model that attends to them");
    for (const std::span<const std::byte> memory : batch.memories)
        if (memory.size() != spec.cross_bytes()) refuse("memories must have the size that pack_memory writes");
}

// Checks that slots are distinct: otherwise two threads would write the same slot at once.
void check_distinct(std::span<const std::int32_t> slots) {
    std::vector<std::int32_t> sorted(slots.begin(), slots.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) refuse("slots has " + std::to_string(*twice) + " twice");
}

// Checks the slots and blocks of keys and values in the pool.
void check_pool(const KvShape& kv, const Batch& batch) {
    if (kv.num_blocks == 0) refuse("there is no KV pool; call allocate_kv first");
    if (batch.slots.size() != batch.token_ids.size()) refuse("slots must have as many rows as token_ids");
    const std::size_t sequences = batch.query_starts.size() - 1;
    if (batch.block_tables.size() != sequences * static_cast<std::size_t>(batch.table_width))
        refuse("block_tables must have as many rows as there are sequences");
    check_range(batch.slots, kv.num_slots(), "slots");
    check_distinct(batch.slots);
    const std::int64_t covered = batch.table_width * kv.block_size;
    check_range(batch.positions, std::min<std::int64_t>(covered, std::numeric_limits<std::int32_t>::max()),
                "positions");
}

// Checks that rows of a sequence are successive, as states require.
void check_successive(const Batch& batch) {
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++) {
        const auto end = static_cast<std::size_t>(batch.query_starts[i + 1]);
        for (std::size_t row = static_cast<std::size_t>(batch.query_starts[i]) + 1; row < end; row++)
            if (batch.positions[row] - 1 != batch.positions[row - 1])
                refuse_row("positions", row, "must follow the one before: the model keeps states of sequences");
    }
}

// Checks that each state advances by at least one row, and only by rows of its own sequence.
void check_state_rows(const Batch& batch) {
    if (batch.num_state_rows.empty()) return;
    if (batch.num_state_rows.size() + 1 != batch.query_starts.size())
        refuse("num_state_rows must have as many entries as there are sequences");
    for (std::size_t i = 0; i < batch.num_state_rows.size(); i++)
        if (batch.num_state_rows[i] < 1 || batch.num_state_rows[i] > batch.query_starts[i + 1] - batch.query_starts[i])
            refuse_row("num_state_rows", i, "must be from 1 to the rows of its sequence");
}

// Checks the slots of states: each slot is written by one sequence, and no other sequence reads it.
void check_recurrences(const KvShape& kv, const Batch& batch) {
    const std::size_t sequences = batch.query_starts.size() - 1;
    if (kv.num_state_slots == 0) refuse("there are no slots of states; call allocate_kv with num_state_slots");
    if (batch.state_reads.size() != sequences || batch.state_writes.size() != sequences)
        refuse("state_reads and state_writes must have as many entries as there are sequences");
    check_range(batch.state_reads, kv.num_state_slots, "state_reads");
    check_range(batch.state_writes, kv.num_state_slots, "state_writes");
    std::vector<std::int32_t> written(batch.state_writes.begin(), batch.state_writes.end());
    std::sort(written.begin(), written.end());
    const auto twice = std::adjacent_find(written.begin(), written.end());
    if (twice != written.end()) refuse("state_writes has " + std::to_string(*twice) + " twice");
    for (std::size_t i = 0; i < sequences; i++) {
        const std::int32_t read = batch.state_reads[i];
        const bool is_begun = batch.positions[static_cast<std::size_t>(batch.query_starts[i])] > 0;
        if (is_begun && read != batch.state_writes[i] && std::binary_search(written.begin(), written.end(), read))
            refuse_row("state_reads", i, "must not be what another sequence writes");
    }
}

// Checks that rows are in blocks of their own sequence, which no other sequence writes.
void check_states(const KvShape& kv, const Batch& batch) {
    std::vector<std::pair<std::int32_t, std::size_t>> written;  // (block, writing sequence)
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++) {
        const auto begin = static_cast<std::size_t>(batch.query_starts[i]);
        const auto table = batch.block_tables.subspan(i * static_cast<std::size_t>(batch.table_width));
        for (std::size_t row = begin; row < static_cast<std::size_t>(batch.query_starts[i + 1]); row++) {
            const std::int64_t position = batch.positions[row];
            const std::int32_t block = table[static_cast<std::size_t>(position / kv.block_size)];
            if (batch.slots[row] != block * kv.block_size + position % kv.block_size)
                refuse_row("slots", row, "must lie in the block of its position: the model keeps states of blocks");
            if (row == begin || position % kv.block_size == 0) written.emplace_back(block, i);
        }
    }
    std::sort(written.begin(), written.end());
    for (std::size_t i = 1; i < written.size(); i++)
        if (written[i].first == written[i - 1].first)
            refuse("block_tables has " + std::to_string(written[i].first) + " twice among blocks that are written");
}

// Checks that sequences are whole, with positions from 0, because a row sees the rows after it too.
void check_whole(const Batch& batch) {
    if (!batch.slots.empty()) refuse("slots must be empty where nothing is kept");
    if (!batch.block_tables.empty()) refuse("block_tables must be empty where nothing is kept");
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++)
        for (std::int32_t row = batch.query_starts[i]; row < batch.query_starts[i + 1]; row++) {
            const std::int32_t position = batch.positions[static_cast<std::size_t>(row)];
            const std::int32_t expected = row - batch.query_starts[i];
            if (position != expected)
                refuse("positions[" + std::to_string(row) + "] is " + std::to_string(position) +
                       "; a sequence is whole and counts from 0, so it must be " + std::to_string(expected));
        }
}

struct Planner {
    const ModelSpec& spec;
    const KvShape& kv;
    const Batch& batch;
    const int tokens_of_piece;
    Plan plan;

    std::span<const std::int32_t> table(std::size_t sequence) const {
        const auto width = static_cast<std::size_t>(batch.table_width);
        return batch.block_tables.subspan(sequence * width, width);
    }

    // If blocks are whole tiles, each tile of the sequence is a tile of the pool.
    void add_tiles(std::size_t sequence, int num_tiles) {
        const std::int64_t tiles_per_block = kv.block_size / kLanes;
        for (std::int64_t tile = 0; tile < num_tiles; tile++) {
            const auto block = table(sequence)[static_cast<std::size_t>(tile / tiles_per_block)];
            plan.tiles.push_back(static_cast<std::int32_t>(block * tiles_per_block + tile % tiles_per_block));
        }
    }

    // Otherwise its tokens are gathered from their slots into separate tiles.
    void add_gathers(std::size_t sequence, int num_tokens) {
        for (std::int64_t token = 0; token < num_tokens; token++) {
            if (token % kLanes == 0) {
                plan.tiles.push_back(static_cast<std::int32_t>(plan.gathers.size()));
                plan.gathers.push_back({static_cast<std::int64_t>(plan.gather_slots.size()), 0});
            }
            plan.gathers.back().num_tokens++;
            const auto block = table(sequence)[static_cast<std::size_t>(token / kv.block_size)];
            plan.gather_slots.push_back(
                static_cast<std::int32_t>(block * kv.block_size + token % kv.block_size));
        }
    }

    void add_sequence(std::size_t sequence) {
        const int begin = batch.query_starts[sequence];
        const int end = batch.query_starts[sequence + 1];
        const auto rows = batch.positions.subspan(static_cast<std::size_t>(begin),
                                                  static_cast<std::size_t>(end - begin));
        const int num_tokens = *std::max_element(rows.begin(), rows.end()) + 1;
        const int num_tiles = (num_tokens - 1) / kLanes + 1;
        const auto num_blocks = static_cast<std::size_t>((num_tokens - 1) / kv.block_size + 1);
        check_range(table(sequence).first(num_blocks), kv.num_blocks, "block_tables");
        const auto first_tile = static_cast<std::int64_t>(plan.tiles.size());
        if (kv.has_whole_tiles()) add_tiles(sequence, num_tiles);
        else add_gathers(sequence, num_tokens);
        plan.max_tiles = std::max(plan.max_tiles, num_tiles);
        add_pieces(begin, end, {0, 0, first_tile});
        for (int row = begin; spec.num_cross_keys > 0 && row < end; row += tokens_of_piece)
            plan.cross_pieces.push_back({row, std::min(end, row + tokens_of_piece), sequence});
    }

    // A whole sequence is stored in tiles of the step itself, one after the other.
    void add_whole_sequence(std::size_t sequence) {
        const int begin = batch.query_starts[sequence];
        const int end = batch.query_starts[sequence + 1];
        const int length = end - begin;
        const int first_tile = static_cast<int>(plan.tiles.size());
        const int num_tiles = (length - 1) / kLanes + 1;
        for (int place = 0; place < length; place++) plan.slots.push_back(first_tile * kLanes + place);
        for (int tile = 0; tile < num_tiles; tile++) plan.tiles.push_back(first_tile + tile);
        plan.max_tiles = std::max(plan.max_tiles, num_tiles);
        add_pieces(begin, end, {0, 0, first_tile, 0, length});
    }

    // Adds pieces of a few rows each; the other fields are those of `piece`.
    void add_pieces(int begin, int end, Piece piece) {
        plan.is_decode = plan.is_decode && end - begin == 1;
        for (int row = begin; row < end; row += tokens_of_piece) {
            piece.first_row = row;
            piece.last_row = std::min(end, row + tokens_of_piece);
            plan.pieces.push_back(piece);
            plan.max_tokens = std::max(plan.max_tokens, piece.last_row - row);
        }
    }
};

// Number of a prompt's rows in one task, which reads keys and values once for all of them: the task's data stays in
// the second cache. A task has fewer rows, down to `least`, if there would be fewer than `kTasksOfThread` tasks per
// thread.
constexpr int kRowsOfTask = 96;
constexpr int kTasksOfThread = 8;

int rows_of_task(const ModelSpec& spec, const Batch& batch, int least, int num_threads) {
    const std::int64_t all = static_cast<std::int64_t>(batch.token_ids.size()) * spec.num_heads;
    const std::int64_t shared_out = all / (static_cast<std::int64_t>(kTasksOfThread) * num_threads);
    return std::max(static_cast<int>(std::min<std::int64_t>(shared_out, kRowsOfTask)) / least, 1) * least;
}

}  // namespace

Plan make_plan(const ModelSpec& spec, const KvShape& kv, const Batch& batch, int attention_rows, int num_threads) {
    check_sizes(spec, batch);
    check_rows(spec, batch);
    check_embeds(spec, batch);
    check_ends(spec, batch);
    check_memories(spec, batch);
    if (spec.is_causal) check_pool(kv, batch);
    else check_whole(batch);
    const bool keeps_states = spec.has_states() || spec.has_recurrences();
    if (keeps_states) check_successive(batch);
    if (keeps_states) check_state_rows(batch);
    if (spec.has_states()) check_states(kv, batch);
    if (spec.has_recurrences()) check_recurrences(kv, batch);
    const int rows = rows_of_task(spec, batch, attention_rows, num_threads);
    Planner planner{spec, kv, batch, attention_tokens(rows, spec.most_group()), {}};
    Plan& plan = planner.plan;
    plan.rows = static_cast<int>(batch.token_ids.size());
    plan.slots.assign(batch.slots.begin(), batch.slots.end());
    for (std::size_t i = 0; i + 1 < batch.query_starts.size(); i++) {
        if (spec.is_causal) planner.add_sequence(i);
        else planner.add_whole_sequence(i);
        if (keeps_states)
            plan.sequence_by_row.resize(static_cast<std::size_t>(batch.query_starts[i + 1]), static_cast<int>(i));
    }
    if (spec.is_causal && plan.gathers.empty() && batch.attend_ends.empty())
        share_prefixes(plan, batch.positions, attention_tokens(attention_rows, spec.most_group()));
    return std::move(planner.plan);
}

}  // namespace weft
