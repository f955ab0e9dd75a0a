#include "tests/attention_parts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/select.h"
#include "model/attention_tasks.h"
#include "model/plan.h"
#include "model/thread_pool.h"
#include "tests/parts.h"

namespace weft {
namespace {

using Random = std::mt19937;

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

}  // namespace

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
