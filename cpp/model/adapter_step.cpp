#include "model/adapter_step.h"

#include <cstring>

#include "model/share_product.h"

namespace weft {
namespace {

// Number of rows of a group that one thread multiplies with `a`.
constexpr int kPieceRows = 48;
// A single row is multiplied with several panels side by side; more rows are multiplied with one panel after the
// other.
constexpr int kPanelsOfOneRow = 4;

float* floats(const Region& region) { return reinterpret_cast<float*>(region.data()); }

}  // namespace

AdapterStep::AdapterStep(const ModelSpec& spec, const Kernels& kernels, ThreadPool& pool, AdapterSpace& space)
    : spec_(spec), kernels_(kernels), pool_(pool), space_(space) {}

void AdapterStep::take(std::vector<const Adapter*> by_row) {
    by_row_ = std::move(by_row);
    groups_.clear();
    products_.clear();
    std::map<const Adapter*, std::size_t> seen;
    for (std::size_t row = 0; row < by_row_.size(); row++) {
        if (by_row_[row] == nullptr) continue;
        const auto [at, is_new] = seen.try_emplace(by_row_[row], groups_.size());
        if (is_new) groups_.push_back({by_row_[row], {}});
        groups_[at->second].rows.push_back(static_cast<int>(row));
    }
    places_.assign(by_row_.size(), 0);
    panels_at_once_ = by_row_.size() == 1 ? kPanelsOfOneRow : 1;
}

void AdapterStep::begin(const Matrix& matrix, const RowsAt& x) {
    end();
    for (const Group& group : groups_)
        if (const Delta* delta = group.adapter->find(matrix)) add_product(group, &delta->a, &delta->b);
    if (!has_begun()) return;
    make_room(matrix.depth);
    for_pieces([&](const Piece& piece) { take_low(piece, x); });
}

void AdapterStep::begin_embedding(std::span<const std::int32_t> token_ids) {
    end();
    for (const Group& group : groups_)
        if (const Matrix* b = group.adapter->embed_b()) add_product(group, nullptr, b);
    if (!has_begun()) return;
    make_room(0);
    const std::ptrdiff_t width = spec_.padded_hidden();
    grow(space_.embedded, static_cast<std::size_t>(num_places_ * width) * sizeof(float));
    for_pieces([&](const Piece& piece) { look_up(piece, token_ids); });
    pool_.share(spec_.padded_hidden() / kPanelColumns, 1, [&](int, int begin, int end) {
        add_panels(begin, end, floats(space_.embedded) + begin * kPanelColumns, width);
    });
}

void AdapterStep::embed(int row, int token, float* hidden) const {
    const auto at = static_cast<std::size_t>(row);
    if (by_row_[at] == nullptr) return;
    by_row_[at]->embed(token, hidden);
    if (!has_begun() || places_[at] == 0) return;
    const float* added = floats(space_.embedded) +
                         static_cast<std::ptrdiff_t>(places_[at] - 1) * spec_.padded_hidden();
    for (int i = 0; i < spec_.hidden_size; i++) hidden[i] += added[i];
}

std::vector<AdapterStep::HeadRun> AdapterStep::head_runs() const {
    std::vector<HeadRun> runs;
    for (const Group& group : groups_) {
        if (group.adapter->head() == nullptr) continue;
        for (const int row : group.rows) {
            const bool follows = !runs.empty() && runs.back().adapter == group.adapter &&
                                 runs.back().first_row + runs.back().num_rows == row;
            if (follows) runs.back().num_rows++;
            else runs.push_back({group.adapter, row, 1});
        }
    }
    return runs;
}

void AdapterStep::add_product(const Group& group, const Matrix* a, const Matrix* b) {
    if (products_.empty()) {
        std::fill(places_.begin(), places_.end(), 0);
        num_places_ = 0;
        low_size_ = 0;
    }
    products_.push_back({&group, a, b, num_places_, low_size_});
    for (const int row : group.rows) places_[static_cast<std::size_t>(row)] = ++num_places_;
    low_size_ += static_cast<std::ptrdiff_t>(group.rows.size()) * b->depth;
}

void AdapterStep::make_room(int depth) {
    const auto rows = static_cast<std::size_t>(num_places_);
    const auto act = static_cast<std::size_t>(kernels_.activation_bytes);
    const auto low = static_cast<std::size_t>(low_size_);
    space_.taken.make_room(rows, depth, kernels_.activation_bytes);
    grow(space_.sums, low * sizeof(float));
    grow(space_.low, low * act);
    grow(space_.added, static_cast<std::size_t>(pool_.size()) * rows *
                           static_cast<std::size_t>(panels_at_once_ * kPanelColumns) * sizeof(float));
}

template <class Work>
void AdapterStep::for_pieces(const Work& work) {
    std::vector<Piece> pieces;
    for (const Product& product : products_) {
        const int rows = static_cast<int>(product.group->rows.size());
        for (int row = 0; row < rows; row += kPieceRows)
            pieces.push_back({&product, row, std::min(rows, row + kPieceRows)});
    }
    pool_.share(static_cast<int>(pieces.size()), 1, [&](int, int begin, int end) {
        for (int i = begin; i < end; i++) work(pieces[static_cast<std::size_t>(i)]);
    });
}

void AdapterStep::take_low(const Piece& piece, const RowsAt& x) const {
    const Product& product = *piece.product;
    const int rows = piece.last_row - piece.first_row;
    const RowsAt taken = rows_of(piece, x, product.a->depth);
    const RowsAt summed{reinterpret_cast<std::byte*>(sums(piece)), product.b->depth, sizeof(float)};
    kernels_.gemm(gemm_task(*product.a, taken, rows, Finish::kStore, summed));
    kernels_.to_activations(sums(piece), low(product, piece.first_row), rows * product.b->depth);
}

void AdapterStep::look_up(const Piece& piece, std::span<const std::int32_t> token_ids) const {
    const Group& group = *piece.product->group;
    const int rank = piece.product->b->depth;
    float* to = sums(piece);
    for (int i = piece.first_row; i < piece.last_row; i++) {
        const auto row = static_cast<std::size_t>(group.rows[static_cast<std::size_t>(i)]);
        group.adapter->low_of(token_ids[row], to + static_cast<std::ptrdiff_t>(i - piece.first_row) * rank);
    }
    kernels_.to_activations(to, low(*piece.product, piece.first_row), (piece.last_row - piece.first_row) * rank);
}

// The rows of a piece as contiguous activations: in place if they are contiguous already, otherwise copied.
RowsAt AdapterStep::rows_of(const Piece& piece, const RowsAt& x, int depth) const {
    const std::vector<int>& rows = piece.product->group->rows;
    const auto first = static_cast<std::size_t>(piece.first_row);
    const auto last = static_cast<std::size_t>(piece.last_row);
    const bool is_run = rows[last - 1] - rows[first] == static_cast<int>(last - first) - 1;
    const bool is_same = x.element_bytes == kernels_.activation_bytes;
    if (is_run && is_same) return x.from(rows[first]);
    const RowsAt taken = space_.taken.rows().from(piece.product->first_place + piece.first_row);
    for (std::size_t i = first; i < last; i++) {
        std::byte* to = taken.row(static_cast<std::ptrdiff_t>(i - first));
        if (is_same) std::memcpy(to, x.row(rows[i]), static_cast<std::size_t>(depth * x.element_bytes));
        else kernels_.to_activations(x.floats(rows[i]), to, depth);
    }
    return taken;
}

// The second half of the addition, for panels [first_panel, last_panel), by place.
void AdapterStep::add_panels(int first_panel, int last_panel, float* out, std::ptrdiff_t stride) const {
    for (const Product& one : products_) {
        const int rows = static_cast<int>(one.group->rows.size());
        const RowsAt x{low(one, 0), one.b->depth, kernels_.activation_bytes};
        const RowsAt added{reinterpret_cast<std::byte*>(out), stride, sizeof(float)};
        GemmTask task = gemm_task(*one.b, x, rows, Finish::kStore, added.from(one.first_place));
        task.panels = one.b->panels + static_cast<std::ptrdiff_t>(first_panel) * one.b->depth * kPanelColumns *
                                          element_bytes(spec_.element);
        task.last_panel = last_panel - first_panel;
        kernels_.gemm(task);
    }
}

float* AdapterStep::sums(const Piece& piece) const {
    return floats(space_.sums) + piece.product->low_start +
           static_cast<std::ptrdiff_t>(piece.first_row) * piece.product->b->depth;
}

std::byte* AdapterStep::low(const Product& product, int row) const {
    const std::ptrdiff_t at = product.low_start + static_cast<std::ptrdiff_t>(row) * product.b->depth;
    return space_.low.data() + at * kernels_.activation_bytes;
}

float* AdapterStep::added(int thread) const {
    return floats(space_.added) + static_cast<std::ptrdiff_t>(thread) * num_places_ * panels_at_once_ * kPanelColumns;
}

}  // namespace weft
