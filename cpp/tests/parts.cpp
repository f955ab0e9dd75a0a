#include "tests/parts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/select.h"
#include "model/attention_tasks.h"
#include "model/groups.h"
#include "model/int8_product.h"
#include "model/plan.h"
#include "model/thread_pool.h"

namespace weft {

int draw(std::mt19937& random, int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
}

void need(bool holds, const char* what, unsigned seed) {
    if (holds) return;
    std::fprintf(stderr, "seed %u: %s\n", seed, what);
    std::exit(1);
}

namespace {

using Random = std::mt19937;

std::vector<float> draw_floats(Random& random, int count) {
    std::vector<float> floats(static_cast<std::size_t>(count));
    for (float& value : floats) value = static_cast<float>(draw(random, -100, 100)) / 30.0F;
    return floats;
}

template <class Act>
bool is_refused(const Act& act) {
    try {
        act();
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

// Rows of sequences with common tiles, and the data that they attend to.
class PrefixTest {
public:
    PrefixTest(Random& random, const Kernels& kernels) : kernels_(kernels), window_(draw(random, 0, 1) * 70) {
        spec_.layers.emplace_back();
        spec_.vocab_size = 9;
        spec_.num_kv_heads = draw(random, 1, 3);
        spec_.num_heads = spec_.num_kv_heads * draw(random, 1, 5);
        spec_.head_dim = draw(random, 1, 40);
        const int num_rows = draw(random, 2, 40);
        const int num_common = draw(random, 6, 9) + draw(random, 0, 1) * kTilesPerBlock;
        int next = num_common;
        for (int row = 0; row < num_rows; row++) {
            const int num_own = draw(random, 1, 3);
            const int num_shared = row % 5 == 4 ? 0 : num_common - row % 2;
            for (int tile = 0; tile < kWidth; tile++)
                tables_.push_back(tile < num_shared ? tile : tile < num_shared + num_own ? next++ : 0);
            positions_.push_back((num_shared + num_own) * kLanes - draw(random, 1, kLanes));
            slots_.push_back(tables_[static_cast<std::size_t>(row * kWidth + positions_.back() / kLanes)] * kLanes +
                             positions_.back() % kLanes);
            starts_.push_back(row + 1);
        }
        const std::vector<std::int32_t> tokens(positions_.size(), 0);
        Batch batch;
        batch.token_ids = tokens;
        batch.positions = positions_;
        batch.slots = slots_;
        batch.query_starts = starts_;
        batch.block_tables = tables_;
        batch.table_width = kWidth;
        plan_ = make_plan(spec_, {next, kLanes}, batch, kernels.attention_rows, 1);
        const int cell = spec_.padded_dim() * kLanes * spec_.num_kv_heads;
        keys_ = draw_elements(random, next * cell, element_bytes(kernels.element));
        values_ = draw_elements(random, next * cell, element_bytes(kernels.element));
        query_ = draw_elements(random, num_rows * spec_.query_size(), kernels.activation_bytes);
    }

    bool are_rows_whole() const {
        std::vector<int> seen(positions_.size(), 0);
        for (const Piece& piece : plan_.pieces)
            for (int i = piece.first_row; i < piece.last_row; i++) seen[row_of(piece, i)]++;
        return std::count(seen.begin(), seen.end(), 1) == static_cast<std::ptrdiff_t>(seen.size());
    }

    bool are_tiles_shared() const {
        for (const Piece& piece : plan_.pieces)
            for (int i = piece.first_row; piece.shared_tiles > 0 && i < piece.last_row; i++) {
                const std::int32_t* own = tables_.data() + row_of(piece, i) * kWidth;
                const std::int32_t* first = tables_.data() + row_of(piece, piece.first_row) * kWidth;
                if (!std::equal(own, own + piece.shared_tiles, first)) return false;
                if (positions_[row_of(piece, i)] < piece.shared_tiles * kLanes) return false;
            }
        return true;
    }

    bool is_any_shared() const {
        return kernels_.attention_rows < 2 * spec_.group() || positions_.size() < 4 ||
               std::any_of(plan_.pieces.begin(), plan_.pieces.end(), [](const Piece& p) { return p.shared_tiles > 0; });
    }

    // Returns the outputs of attention, in the pieces of the plan or row by row, with `num_shares` threads per task.
    std::vector<std::byte> attend(bool in_pieces, int num_shares) const {
        std::vector<std::byte> out(query_.size());
        for (const Piece& piece : plan_.pieces) {
            const int step = in_pieces ? piece.last_row - piece.first_row : 1;
            for (int i = piece.first_row; i < piece.last_row; i += step)
                for (int head = 0; head < spec_.num_kv_heads; head++) {
                    AttentionTask task = task_of(head);
                    const std::size_t row = row_of(piece, i);
                    task.first_row = in_pieces ? i : static_cast<int>(row);
                    task.last_row = task.first_row + step;
                    task.tiles = tables_.data() + row * kWidth;
                    if (in_pieces && piece.shared_tiles > 0) share(task, piece.shared_tiles);
                    task.num_shares = num_shares;
                    std::vector<std::byte> scratch(attention_scratch(1, step * spec_.group(), spec_.padded_dim(),
                                                                     plan_.max_tiles, num_shares));
                    task.scratch = scratch.data();
                    task.out = out.data();
                    run(task);
                }
        }
        return out;
    }

private:
    void run(const AttentionTask& task) const {
        if (task.num_shares == 1) return kernels_.attend(task);
        static ThreadPool pool(3);
        for (const AttentionStage stage : {AttentionStage::kScore, AttentionStage::kWeigh, AttentionStage::kCombine})
            pool.share(task.num_shares, 1, [&](int, int begin, int end) {
                AttentionTask part = task;
                part.stage = stage;
                for (part.share = begin; part.share < end; part.share++) kernels_.attend(part);
            });
    }

    static constexpr int kWidth = kTilesPerBlock + 13;

    // Draws numbers from -3.4 to 3.4, as floats or as their upper halves.
    static std::vector<std::byte> draw_elements(Random& random, int count, int bytes) {
        const std::vector<float> floats = draw_floats(random, count);
        std::vector<std::byte> elements(floats.size() * static_cast<std::size_t>(bytes));
        for (std::size_t i = 0; i < floats.size(); i++)
            std::memcpy(elements.data() + i * static_cast<std::size_t>(bytes),
                        reinterpret_cast<const std::byte*>(&floats[i]) + 4 - bytes, static_cast<std::size_t>(bytes));
        return elements;
    }

    std::size_t row_of(const Piece& piece, int i) const {
        return static_cast<std::size_t>(piece.shared_tiles > 0 ? plan_.order[static_cast<std::size_t>(i)] : i);
    }

    void share(AttentionTask& task, int shared_tiles) const {
        task.tiles = plan_.tiles.data();
        task.order = plan_.order.data();
        task.row_tiles = plan_.row_tiles.data();
        task.shared_tiles = shared_tiles;
    }

    AttentionTask task_of(int head) const {
        AttentionTask task{};
        task.query = query_.data();
        task.stride = spec_.query_size();
        task.keys = keys_.data();
        task.values = values_.data();
        task.positions = positions_.data();
        task.first_head = head;
        task.last_head = head + 1;
        task.num_kv_heads = spec_.num_kv_heads;
        task.group = spec_.group();
        task.head_dim = spec_.head_dim;
        task.padded_dim = spec_.padded_dim();
        task.before = window_ > 0 ? window_ : std::numeric_limits<int>::max();
        task.end = std::numeric_limits<int>::max();
        task.scale = 0.1F;
        return task;
    }

    const Kernels& kernels_;
    const int window_;
    ModelSpec spec_;
    std::vector<std::int32_t> positions_, slots_, starts_{0}, tables_;
    std::vector<std::byte> keys_, values_, query_;
    Plan plan_;
};

// Draws scales with small exponents, in any type.
std::vector<std::byte> draw_scales(Random& random, ScaleType type, std::size_t count) {
    std::vector<std::byte> bytes(count * static_cast<std::size_t>(bytes_of(type)));
    for (std::size_t i = 0; i < count; i++) {
        const float value = static_cast<float>(draw(random, -100, 100)) / 10000.0F;
        const auto half = static_cast<std::uint16_t>(draw(random, 0x2000, 0x2400) | draw(random, 0, 1) << 15);
        const std::uint16_t upper = narrow_bfloat16(value);
        if (type == ScaleType::kFloat32) std::memcpy(&bytes[4 * i], &value, 4);
        else std::memcpy(&bytes[2 * i], type == ScaleType::kBfloat16 ? &upper : &half, 2);
    }
    return bytes;
}

// Checks products of weights in groups: they have the bits of the portable path, and inconsistent sizes are refused.
void check_grouped_products(Random& random, unsigned seed, const std::string& path) {
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 40);
        const int depth = draw(random, 1, 300);
        const int columns = draw(random, 1, 100);
        const GroupFormat format = draw_format(random);
        const GroupedArrays arrays(random, format, columns, depth);
        const std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_grouped("portable", format, x, arrays.source(), expected);
        multiply_grouped(path, format, x, arrays.source(), got);
        need(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0, "grouped products differ", seed);
        for (int field = 0; field < (format == kRoundedFormat ? 3 : 4); field++) {  // other types are rounded to that
            Source broken = arrays.source();
            if (field == 0) broken.groups++;
            if (field == 1) broken.scale_size += 2;
            if (field == 2) broken.offsets = broken.offsets == nullptr ? broken.scales : nullptr;
            if (field == 3) broken.stored = Stored::kInt8;
            need(is_refused([&] { multiply_grouped(path, format, x, broken, got); }), "a broken group was taken", seed);
        }
    }
}

// Checks that four-bit numbers in halves of a file's bytes, at any place, give the same products as numbers of one
// byte each.
void check_halved_products(Random& random, unsigned seed, const std::string& path) {
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 10);
        const int columns = draw(random, 1, 70);
        const int run = draw(random, 1, 40);
        const int block_bytes = run * draw(random, 1, 3);
        const int blocks = draw(random, 1, 4);
        const int block_step = block_bytes + draw(random, 0, 5);
        const int row_step = blocks * block_step + draw(random, 0, 5);
        const int depth = 2 * block_bytes * blocks;
        GroupFormat format = draw_format(random);
        format.bits = 4;
        const GroupedArrays arrays(random, format, columns, depth);
        const Source source = arrays.source();
        const auto* numbers = static_cast<const std::uint8_t*>(source.data);
        const int size = (columns - 1) * row_step + (blocks - 1) * block_step + block_bytes;
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
        for (int i = 0; i < columns * depth; i++) {
            const int in_block = i % depth % (2 * block_bytes);
            const int place = i / depth * row_step + i % depth / (2 * block_bytes) * block_step +
                              in_block / (2 * run) * run + in_block % run;
            bytes[static_cast<std::size_t>(place)] |=
                static_cast<std::uint8_t>(numbers[i] << (in_block % (2 * run) < run ? 0 : 4));
        }
        Source halved = source;
        halved.data = bytes.data();
        halved.halves = {run, block_bytes, block_step, row_step};
        const std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_grouped(path, format, x, source, expected);
        multiply_grouped(path, format, x, halved, got);
        need(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0, "halves differ", seed);
    }
}

}  // namespace

GroupFormat draw_format(Random& random) {
    const int groups[] = {16, 32, 64, 128, 0};
    GroupFormat format;
    format.bits = draw(random, 0, 1) == 1 ? 4 : 8;
    format.group = groups[draw(random, 0, format.bits == 4 ? 4 : 3)];
    format.offset = static_cast<Offset>(draw(random, 0, format.bits == 4 ? 3 : 2));
    format.scales = static_cast<ScaleType>(draw(random, 0, 2));
    return format;
}

const std::optional<GroupFormat>& format_of(const ModelSpec& spec, const std::string& name) {
    static const std::optional<GroupFormat> none;
    if (!name.starts_with("layers.") || name.ends_with(".bias") || name.find(".input.") != std::string::npos) return none;
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(name[7] - '0')];
    const std::string part = name.substr(name.rfind('.') + 1);
    if (name.find(".experts.") != std::string::npos)
        return part == "down" ? layer.experts->down_groups : layer.experts->up_groups;
    if (layer.is_beside && (part.starts_with("mamba_") || part.starts_with("delta_"))) return none;
    for (const char* name : {"q", "k", "v", "q_a", "kv_a", "conv_in", "mamba_in", "delta_qkvz", "delta_qkv", "delta_z"})
        if (part == name) return layer.qkv_groups;
    if (part == "q_b") return layer.q_b_groups;
    for (const char* name : {"o", "conv_out", "mamba_out", "delta_out"})
        if (part == name) return layer.o_groups;
    if (part == "gate" || part == "up") return layer.up_groups;
    return part == "down" ? layer.down_groups : none;
}

GroupedArrays::GroupedArrays(std::mt19937& random, const GroupFormat& format, int rows, int columns)
    : format_(format), rows_(rows), columns_(columns), groups_(num_groups(format, columns)) {
    numbers_.resize(static_cast<std::size_t>(rows * columns));
    for (std::uint8_t& number : numbers_) number = static_cast<std::uint8_t>(draw(random, 0, (1 << format.bits) - 1));
    const auto count = static_cast<std::size_t>(rows * groups_);
    scales_ = draw_scales(random, format.scales, count);
    if (format.offset == Offset::kMinimums) offsets_ = draw_scales(random, format.scales, count);
    if (format.offset != Offset::kZeros) return;
    offsets_.resize(count * 2);
    for (std::size_t i = 0; i < count; i++) {
        const auto zero = static_cast<std::int16_t>(draw(random, 0, 1 << format.bits));
        std::memcpy(&offsets_[2 * i], &zero, 2);
    }
}

Source GroupedArrays::source() const {
    Source source{numbers_.data(), Stored::kGrouped, rows_, columns_, scales_.data()};
    source.groups = groups_;
    source.scale_size = static_cast<std::size_t>(bytes_of(format_.scales));
    source.offsets = offsets_.empty() ? nullptr : offsets_.data();
    source.offset_size = format_.offset == Offset::kZeros ? 2 : source.scale_size;
    return source;
}

GroupedArrays GroupedArrays::broken() const {
    GroupedArrays other = *this;
    // All ones are NaN in every scale type.
    std::fill(other.scales_.end() - bytes_of(format_.scales), other.scales_.end(), std::byte{0xFF});
    return other;
}

void check_products(unsigned seed, const std::string& path) {
    Random random(seed);
    check_grouped_products(random, seed, path);
    check_halved_products(random, seed, path);
    for (int round = 0; round < 6; round++) {
        const int rows = draw(random, 1, 40);
        const int depth = draw(random, 1, 300);
        const int columns = draw(random, 1, 100);
        std::vector<float> x = draw_floats(random, rows * depth);
        std::vector<float> weights = draw_floats(random, columns * depth);
        const float strange[] = {NAN, INFINITY, 1e-38F, 3e38F, 0.0F};
        if (round % 2 == 1) x[static_cast<std::size_t>(draw(random, 0, rows * depth - 1))] = strange[draw(random, 0, 4)];
        if (round % 3 == 2) std::fill_n(weights.begin(), depth, 0.0F);
        const Source source{weights.data(), Stored::kFloat32, columns, depth};
        std::vector<float> expected(static_cast<std::size_t>(rows * columns));
        std::vector<float> got(expected.size());
        multiply_int8("portable", x, source, expected);
        multiply_int8(path, x, source, got);
        for (std::size_t i = 0; i < got.size(); i++) {
            const bool is_same = std::memcmp(&got[i], &expected[i], sizeof(float)) == 0;
            need(is_same || (std::isnan(got[i]) && std::isnan(expected[i])), "int8 products differ", seed);
        }
        const std::span<const float> fewer(x.data(), x.size() - 1);
        const std::span<float> short_out(got.data(), got.size() - 1);
        const bool is_one_deep = depth == 1;  // then fewer numbers are fewer rows
        need(is_one_deep || is_refused([&] { multiply_int8(path, fewer, source, got); }), "a cut row", seed);
        need(is_refused([&] { multiply_int8(path, x, source, short_out); }), "an output too small", seed);
    }
}

void check_attention_tasks(unsigned seed) {
    Random random(seed);
    ModelSpec spec;
    spec.num_kv_heads = draw(random, 1, 16);
    spec.num_heads = spec.num_kv_heads * draw(random, 1, 8);
    spec.head_dim = draw(random, 1, 256);
    Plan plan;
    plan.max_tokens = draw(random, 1, 3);
    plan.pieces.resize(static_cast<std::size_t>(draw(random, 1, 40)));
    const int num_threads = draw(random, 1, 64);
    const int num_tiles = draw(random, 1, 2048);
    const AttentionTasks tasks(plan, spec, spec.heads(), num_threads);
    need(tasks.count * tasks.heads == static_cast<int>(plan.pieces.size()) * spec.num_kv_heads, "heads are left out", seed);
    const int shares = shares_of_task(tasks, spec, spec.heads(), num_tiles, num_threads);
    const int columns = spec.padded_dim() / kLanes;
    need(columns % shares == 0 && (shares == 1 || shares * kTilesOfShare <= num_tiles), "shares are too small, or unequal", seed);
    // The work of the last thread to finish, in shares, with `of_task` shares per task.
    const auto turns = [&](int of_task) { return (tasks.count * of_task + num_threads - 1) / num_threads; };
    need(turns(shares) <= turns(1) * shares, "sharing takes longer", seed);
    need(shares == 1 || turns(shares) < turns(1) * shares, "sharing gains nothing", seed);
    const bool is_idle = tasks.count * 2 <= num_threads && columns % 2 == 0 && num_tiles >= 2 * kTilesOfShare;
    need(!is_idle || shares > 1, "threads have nothing to do", seed);
}

void check_shared_prefixes(unsigned seed, const std::string& path) {
    Random random(seed);
    const PrefixTest test(random, kernels_of(path, draw(random, 0, 1) == 1 ? Element::kBfloat16 : Element::kFloat32));
    need(test.are_rows_whole(), "a row is in no piece, or in two", seed);
    need(test.are_tiles_shared(), "rows share tiles that are not the same, or not before all of them", seed);
    need(test.is_any_shared(), "nothing is shared", seed);
    const std::vector<std::byte> alone = test.attend(false, 1);
    need(test.attend(true, 1) == alone, "rows that share tiles have other bits", seed);
    const int num_shares = draw(random, 2, 5);
    need(test.attend(true, num_shares) == alone && test.attend(false, num_shares) == alone,
         "what threads share has other bits", seed);
}

}  // namespace weft
