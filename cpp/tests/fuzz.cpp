// Runs random models with random plans, valid and invalid, under the sanitizers (`make sanitize`).
//
// Every path of this CPU, both element types, int8 weights and caches, adapters and every switch of the spec are
// drawn; a schedule in random chunks must give the bits of one token at a time, and a broken plan must be refused.
// Where a model is not causal, sequences together must give the bits of each alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

#include "kernels/select.h"
#include "model/model.h"
#include "tests/adapters.h"
#include "tests/attention_parts.h"
#include "tests/load.h"
#include "tests/parts.h"
#include "tests/samples.h"
#include "tests/specs.h"

namespace {

using Random = std::mt19937;
using Ints = std::vector<std::int32_t>;
using weft::draw;
using weft::need;

// A batch that owns its arrays.
struct Arrays {
    Ints token_ids, positions, slots, query_starts{0}, block_tables, logit_rows, adapter_ids, token_types, embed_rows;
    Ints state_reads, state_writes, num_state_rows, rope_positions;
    std::vector<float> embeds;
    std::vector<std::span<const std::byte>> memories;
    std::int64_t table_width = 0;

    weft::Batch batch() const {
        weft::Batch batch{token_ids,   positions,  slots,       query_starts, block_tables,
                          table_width, logit_rows, adapter_ids, token_types,  embed_rows,
                          embeds,      state_reads, state_writes, num_state_rows, false};
        batch.rope_positions = rope_positions;
        batch.memories = memories;
        return batch;
    }
};

// Keys and values that come with sequences: the same for a sequence of the same number.
class Memories {
public:
    Memories(weft::Model& model, std::size_t num_sequences) {
        const weft::ModelSpec& s = model.spec();
        if (s.num_cross_keys == 0) return;
        const std::size_t width = 2 * s.layers.size() * static_cast<std::size_t>(s.num_kv_heads * s.head_dim);
        for (std::size_t sequence = 0; sequence < num_sequences; sequence++) {
            std::vector<float> rows(static_cast<std::size_t>(s.num_cross_keys) * width);
            for (std::size_t i = 0; i < rows.size(); i++) rows[i] = static_cast<float>((7 * i + 13 * sequence) % 19) / 30.0F;
            model.pack_memory(rows, packed_.emplace_back(s.cross_bytes()));
        }
    }

    void add(Arrays& to, std::size_t sequence) const {
        if (!packed_.empty()) to.memories.emplace_back(packed_[sequence]);
    }

private:
    std::vector<std::vector<std::byte>> packed_;
};

struct Pool {
    int block_size;
    std::vector<Ints> tables;  // by sequence, all of one width
};

Pool draw_pool(Random& random, const std::vector<Ints>& sequences) {
    const int sizes[] = {1, 3, 8, 16, 32, 50};
    Pool pool{sizes[draw(random, 0, 5)], {}};
    const int width = 100 / pool.block_size + 1;
    Ints blocks(sequences.size() * static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < blocks.size(); i++) blocks[i] = static_cast<std::int32_t>(i);
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (std::size_t i = 0; i < sequences.size(); i++)
        pool.tables.emplace_back(blocks.begin() + static_cast<std::ptrdiff_t>(i) * width,
                                 blocks.begin() + static_cast<std::ptrdiff_t>(i + 1) * width);
    return pool;
}

// The token decides its type, and whether it is passed as an embedding.
void add_tokens(Arrays& to, const weft::ModelSpec& spec, std::size_t sequence, const Ints& tokens, int from, int until) {
    to.adapter_ids.push_back(static_cast<std::int32_t>(sequence % 3));
    for (int p = from; p < until; p++) {
        const std::int32_t token = tokens[static_cast<std::size_t>(p)];
        if (spec.joins_hidden || token % 5 == 0) {
            to.embed_rows.push_back(static_cast<std::int32_t>(to.token_ids.size()));
            to.embeds.insert(to.embeds.end(), static_cast<std::size_t>(spec.input_size()), 0.1F * static_cast<float>(token));
        }
        to.logit_rows.push_back(static_cast<std::int32_t>(to.token_ids.size()));
        to.token_ids.push_back(token);
        to.positions.push_back(p);
        to.token_types.push_back(token % std::max(spec.num_token_types, 1));
        if (!spec.ropes[0].axes.empty()) to.rope_positions.insert(to.rope_positions.end(), {p, token % 7, p / 3});
    }
    to.query_starts.push_back(static_cast<std::int32_t>(to.token_ids.size()));
}

void add_rows(Arrays& to, const weft::ModelSpec& spec, const Pool& pool, std::size_t sequence, const Ints& tokens,
              int from, int until, std::pair<int, int> states) {
    add_tokens(to, spec, sequence, tokens, from, until);
    to.state_reads.push_back(states.first);
    to.state_writes.push_back(states.second);
    const Ints& table = pool.tables[sequence];
    to.table_width = static_cast<std::int64_t>(table.size());
    to.block_tables.insert(to.block_tables.end(), table.begin(), table.end());
    for (int p = from; p < until; p++)
        to.slots.push_back(table[static_cast<std::size_t>(p / pool.block_size)] * pool.block_size +
                           p % pool.block_size);
}

bool gives_hidden(const weft::ModelSpec& spec) { return spec.has_head && !spec.has_norm_of_sum(); }

// Runs a step that also returns hidden states; without an adapter, the head alone must make the same logits from
// them.
void forward_hidden(weft::Model& model, const Arrays& arrays, std::vector<float>& logits) {
    const auto size = static_cast<std::size_t>(model.spec().hidden_size);
    const auto columns = static_cast<std::size_t>(model.spec().output_columns());
    std::vector<float> hidden(arrays.token_ids.size() * size);
    weft::Batch batch = arrays.batch();
    batch.wants_hidden = true;
    model.forward(batch, logits, hidden);
    std::vector<float> again(logits.size());
    model.logits(hidden, again);
    for (std::size_t i = 0; i < arrays.adapter_ids.size(); i++) {
        if (arrays.adapter_ids[i] != 0) continue;
        const std::size_t first = static_cast<std::size_t>(arrays.query_starts[i]) * columns;
        const std::size_t last = static_cast<std::size_t>(arrays.query_starts[i + 1]) * columns;
        need(std::memcmp(&logits[first], &again[first], (last - first) * sizeof(float)) == 0,
             "the head alone gives other logits", 0);
    }
}

// Returns logits of every position, from steps of up to `max_chunk` rows per sequence.
std::vector<float> run(weft::Model& model, Random& random, const std::vector<Ints>& sequences, int max_chunk) {
    const Pool pool = draw_pool(random, sequences);
    const auto width = static_cast<int>(pool.tables[0].size());
    const auto num_sequences = static_cast<int>(sequences.size());
    model.allocate_kv(num_sequences * width, pool.block_size, 2 * num_sequences);
    for (const std::span<std::byte> bytes : {model.kv_bytes(), model.state_bytes(), model.slot_bytes()})
        std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});  // NaN in every slot
    const auto vocab = static_cast<std::size_t>(model.spec().output_columns());
    std::vector<std::size_t> starts(sequences.size() + 1, 0);
    for (std::size_t i = 0; i < sequences.size(); i++) starts[i + 1] = starts[i] + sequences[i].size();
    std::vector<float> all(starts.back() * vocab);
    const Memories memories(model, sequences.size());
    Ints done(sequences.size(), 0);
    Ints states(sequences.size(), 0);  // which of its two slots a sequence is in
    for (bool is_open = true; is_open;) {
        Arrays arrays;
        std::vector<std::size_t> rows;
        for (std::size_t i = 0; i < sequences.size(); i++) {
            const int left = static_cast<int>(sequences[i].size()) - done[i];
            if (left == 0 || draw(random, 0, 3) == 0) continue;
            const int chunk = draw(random, 1, std::min(left, max_chunk));
            // States may advance by the first rows only; the other rows are then repeated.
            const int certain = draw(random, 0, 2) == 0 ? draw(random, 1, chunk) : chunk;
            const int first = 2 * static_cast<int>(i);
            const int read = first + states[i];
            states[i] = draw(random, 0, 1);
            add_rows(arrays, model.spec(), pool, i, sequences[i], done[i], done[i] + chunk, {read, first + states[i]});
            arrays.num_state_rows.push_back(certain);
            memories.add(arrays, i);
            for (int k = 0; k < chunk; k++) rows.push_back(starts[i] + static_cast<std::size_t>(done[i] + k));
            done[i] += certain;
        }
        if (!rows.empty()) {
            std::vector<float> logits(rows.size() * vocab);
            if (gives_hidden(model.spec()) && draw(random, 0, 1) == 0) forward_hidden(model, arrays, logits);
            else model.forward(arrays.batch(), logits);
            for (std::size_t r = 0; r < rows.size(); r++)
                std::memcpy(&all[rows[r] * vocab], &logits[r * vocab], vocab * sizeof(float));
        }
        is_open = false;
        for (std::size_t i = 0; i < sequences.size(); i++)
            is_open |= done[i] < static_cast<std::int32_t>(sequences[i].size());
    }
    return all;
}

// Puts a wrong number somewhere. The plan may still be valid; it must then be computed.
constexpr int kWrong[] = {-1, 0, 1, 7, 64, 1 << 20, 2147483647, -2147483647 - 1};

void damage(Ints& field, Random& random) {
    const int what = draw(random, 0, 3);
    if (what == 0 && !field.empty()) field.pop_back();
    else if (what == 1) field.push_back(kWrong[draw(random, 0, 7)]);
    else if (!field.empty())
        field[static_cast<std::size_t>(draw(random, 0, static_cast<int>(field.size()) - 1))] = kWrong[draw(random, 0, 7)];
}

void damage(Arrays& arrays, Random& random) {
    if (!arrays.memories.empty() && draw(random, 0, 9) == 0) {
        if (draw(random, 0, 1) == 1) arrays.memories.pop_back();
        else arrays.memories.back() = arrays.memories.back().first(arrays.memories.back().size() - 1);
    }
    Ints* fields[] = {&arrays.token_ids,    &arrays.positions,    &arrays.slots,
                      &arrays.query_starts, &arrays.block_tables, &arrays.logit_rows,
                      &arrays.adapter_ids,  &arrays.token_types,  &arrays.embed_rows,
                      &arrays.state_reads,  &arrays.state_writes, &arrays.num_state_rows,
                      &arrays.rope_positions};
    damage(*fields[draw(random, 0, 12)], random);
    if (draw(random, 0, 9) == 0) arrays.table_width = kWrong[draw(random, 0, 4)];
}

int break_plans(weft::Model& model, Random& random, const Arrays& arrays) {
    int num_refused = 0;
    for (int round = 0; round < 30; round++) {
        Arrays broken = arrays;
        for (int times = draw(random, 1, 3); times > 0; times--) damage(broken, random);
        std::vector<float> outputs(broken.logit_rows.size() *
                                   static_cast<std::size_t>(model.spec().output_columns()));
        try {
            model.forward(broken.batch(), outputs);
        } catch (const std::invalid_argument&) {
            num_refused++;
        }
    }
    return num_refused;
}

// Makes one step with the beginnings of all sequences, and a pool for them.
Arrays begin_all(weft::Model& model, Random& random, const std::vector<Ints>& sequences, const Memories& memories) {
    Arrays arrays;
    const Pool pool = draw_pool(random, sequences);
    const auto num_sequences = static_cast<int>(sequences.size());
    model.allocate_kv(num_sequences * static_cast<int>(pool.tables[0].size()), pool.block_size, num_sequences);
    std::memset(model.kv_bytes().data(), 0, model.kv_bytes().size());
    for (std::size_t i = 0; i < sequences.size(); i++) {
        const int until = std::min(20, static_cast<int>(sequences[i].size()));
        add_rows(arrays, model.spec(), pool, i, sequences[i], 0, until, {static_cast<int>(i), static_cast<int>(i)});
        memories.add(arrays, i);
    }
    return arrays;
}

std::vector<Ints> draw_sequences(Random& random, const weft::ModelSpec& spec, int most) {
    std::vector<Ints> sequences(static_cast<std::size_t>(draw(random, 1, most)));
    for (Ints& sequence : sequences) {
        sequence.resize(static_cast<std::size_t>(draw(random, 1, 90)));
        for (std::int32_t& token : sequence) token = draw(random, 0, spec.vocab_size - 1);
    }
    return sequences;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_causal(unsigned seed, const std::string& path) {
    Random random(seed);
    const weft::ModelSpec spec = weft::draw_spec(random, true);
    const std::vector<Ints> sequences = draw_sequences(random, spec, 4);
    weft::Model single(spec, path, 1);
    weft::Model several(spec, path, draw(random, 2, 3));
    for (weft::Model* model : {&single, &several}) weft::load_all(*model, seed), weft::add_adapters(*model, seed);
    const std::vector<float> expected = run(single, random, sequences, 1);
    for (float value : expected) need(value == value, "a result is NaN", seed);
    for (int max_chunk : {4, 40})
        need(same(run(several, random, sequences, max_chunk), expected), "chunks change the bits", seed);
    const Memories memories(several, sequences.size());
    const Arrays arrays = begin_all(several, random, sequences, memories);
    need(break_plans(several, random, arrays) > 0, "no broken plan was refused", seed);
}

std::vector<float> run_whole(weft::Model& model, const Arrays& arrays) {
    std::vector<float> outputs(arrays.logit_rows.size() * static_cast<std::size_t>(model.spec().output_columns()));
    model.forward(arrays.batch(), outputs);
    return outputs;
}

void check_whole(unsigned seed, const std::string& path) {
    Random random(seed);
    const weft::ModelSpec spec = weft::draw_spec(random, false);
    weft::Model single(spec, path, 1);
    weft::Model several(spec, path, draw(random, 2, 3));
    for (weft::Model* model : {&single, &several}) weft::load_all(*model, seed), weft::add_adapters(*model, seed);
    Arrays together;
    std::vector<float> expected;
    const std::vector<Ints> sequences = draw_sequences(random, spec, 6);
    for (std::size_t i = 0; i < sequences.size(); i++) {
        const int length = static_cast<int>(sequences[i].size());
        add_tokens(together, spec, i, sequences[i], 0, length);
        Arrays alone;
        add_tokens(alone, spec, i, sequences[i], 0, length);
        for (float value : run_whole(single, alone)) expected.push_back(value);
    }
    for (float value : expected) need(value == value, "a result is NaN", seed);
    need(same(run_whole(several, together), expected), "company changes the bits", seed);
    need(break_plans(several, random, together) > 0, "no broken batch was refused", seed);
    bool is_refused = false;
    try {
        several.allocate_kv(1, 16);
    } catch (const std::invalid_argument&) {
        is_refused = true;
    }
    need(is_refused, "a pool was made that nothing would use", seed);
}

}  // namespace

int main(int argc, char** argv) {
    const int num_seeds = argc > 1 ? std::atoi(argv[1]) : 10;
    for (const std::string& path : weft::usable_paths())
        for (int seed = 0; seed < num_seeds; seed++) {
            check_causal(static_cast<unsigned>(seed), path);
            check_whole(static_cast<unsigned>(seed), path);
            weft::check_samples(static_cast<unsigned>(seed), path);
            weft::check_strange_samples(static_cast<unsigned>(seed), path);
            weft::check_products(static_cast<unsigned>(seed), path);
            weft::check_attention_tasks(static_cast<unsigned>(seed));
            weft::check_shared_prefixes(static_cast<unsigned>(seed), path);
            std::printf("%s: %d of %d\n", path.c_str(), seed + 1, num_seeds);
            std::fflush(stdout);
        }
    std::puts("clean");
    return 0;
}
