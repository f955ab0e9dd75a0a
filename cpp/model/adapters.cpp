#include "model/adapters.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace weft {
namespace {

constexpr int kMostRank = 1 << 12;
// Ranks of matrices that are packed together are padded to a multiple.
constexpr int kRankStep = kPanelColumns;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
    throw std::invalid_argument("adapter: " + name + " " + what);
}

void check_shape(const std::string& name, const Source& source, std::int64_t rows, std::int64_t columns) {
    if (source.rows == rows && source.columns == columns) return;
    refuse(name, "must have shape [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
}

// Returns the rank of a part, after checking that it has the inputs and outputs of its matrix.
int checked_rank(const LowRank& part, int inputs, int outputs) {
    if (part.a.rows < 1 || part.a.rows > kMostRank) refuse(part.name + ": a", "must have from 1 to 4096 rows");
    check_shape(part.name + ": a", part.a, part.a.rows, inputs);
    check_shape(part.name + ": b", part.b, outputs, part.a.rows);
    return static_cast<int>(part.a.rows);
}

void check_names(const AdapterParts& parts) {
    std::set<std::string> low_rank;
    std::set<std::string> whole;
    for (const LowRank& part : parts.low_rank)
        if (!low_rank.insert(part.name).second) refuse(part.name, "is there twice");
    for (const Whole& part : parts.whole)
        if (!whole.insert(part.name).second) refuse(part.name, "is there twice");
}

std::size_t num_elements(const Matrix& matrix) {
    return static_cast<std::size_t>(matrix.depth) * static_cast<std::size_t>(matrix.columns);
}

// Widens a row of a table to floats.
void widen_row(const Matrix& table, Element element, int row, float* out) {
    const Stored stored = element == Element::kFloat32 ? Stored::kFloat32 : Stored::kBfloat16;
    const Source source{table.panels, stored, table.columns, table.depth};
    for (int i = 0; i < table.depth; i++)
        out[i] = element_of(source, static_cast<std::int64_t>(row) * table.depth + i);
}

}  // namespace

AdapterBytes adapter_bytes(const ModelSpec& spec) {
    const auto width = static_cast<std::size_t>(element_bytes(spec.element));
    // Elements of matrices that are packed alone, in pairs, and in threes.
    std::array<std::size_t, 3> elements{};
    for (const LayerSpec& layer : spec.layers) {  // experts are left out
        const LayerShapes shapes = layer_shapes(spec, layer);
        elements[0] += shapes.o.adapter_elements() + shapes.down.adapter_elements() + shapes.q_b.adapter_elements();
        elements[0] += shapes.beside_in.adapter_elements() + shapes.beside_out.adapter_elements();
        elements[spec.is_gated ? 1 : 0] += shapes.up.adapter_elements();
        elements[shapes.num_made - 1] += shapes.qkv.adapter_elements() + shapes.unrounded.adapter_elements();
    }
    const std::size_t embedding =
        static_cast<std::size_t>(spec.vocab_size) + static_cast<std::size_t>(spec.padded_hidden());
    const std::size_t head = spec.has_head ? head_shape(spec).adapter_elements() : 0;
    elements[0] += head + embedding;
    for (std::size_t& of_kind : elements) of_kind *= width;
    return {elements, kRankStep};
}

Adapter::Adapter(const ModelSpec& spec, const Weights& weights, const AdapterParts& parts, ThreadPool& pool)
    : spec_(spec) {
    check_names(parts);
    // First, because a delta may belong to one of them.
    for (const Whole& whole : parts.whole) plan(whole);
    for (const LowRank& part : parts.low_rank) plan(part, weights);
    allocate();
    for (const Whole& whole : parts.whole) pack(whole, pool);
    for (const Placed& placed : placed_) pack(placed, pool);
    for (const LowRank& part : parts.low_rank)
        if (part.name == "embed") pack_embedding(part, pool);
    placed_.clear();
}

const Delta* Adapter::find(const Matrix& matrix) const {
    const auto found = deltas_.find(&matrix);
    return found == deltas_.end() ? nullptr : &found->second;
}

void Adapter::plan(const Whole& whole) {
    if (whole.name == "head") {
        check_shape(whole.name, whole.matrix, spec_.head_columns(), spec_.hidden_size);
        head_.depth = spec_.padded_hidden();
        head_.columns = round_up(spec_.head_columns(), kPanelColumns);
    } else if (whole.name == "embed") {
        check_shape(whole.name, whole.matrix, spec_.vocab_size, spec_.hidden_size);
        embedding_.depth = spec_.hidden_size;
        embedding_.columns = spec_.vocab_size;
    } else {
        refuse(whole.name, "cannot be replaced as a whole");
    }
}

void Adapter::plan(const LowRank& part, const Weights& weights) {
    if (part.name == "embed") {
        const int rank = checked_rank(part, spec_.vocab_size, spec_.hidden_size);
        embed_a_.depth = embed_b_.depth = round_up(rank, kRankStep);
        embed_a_.columns = spec_.vocab_size;
        embed_b_.columns = spec_.padded_hidden();
        return;
    }
    const Place place = weights.place_of(part.name);
    const int rank = checked_rank(part, place.columns, place.rows);
    const bool is_of_whole = place.matrix == &weights.head && head_.columns > 0;
    const Matrix* matrix = is_of_whole ? &head_ : place.matrix;
    Delta& delta = deltas_[matrix];
    int first_rank = delta.b.depth;
    // The matrices of a fused module share one `a`, so rows are multiplied with it once.
    for (const Placed& other : placed_)
        if (other.matrix == matrix && other.part->a.data == part.a.data && other.part->a.rows == rank)
            first_rank = other.first_rank;
    placed_.push_back({&part, place, matrix, first_rank});
    delta.b.depth = std::max(delta.b.depth, first_rank + rank);
}

void Adapter::allocate() {
    std::vector<Matrix*> all{&head_, &embedding_, &embed_a_, &embed_b_};
    for (auto& [matrix, delta] : deltas_) {
        delta.a.depth = matrix->depth;
        delta.a.columns = delta.b.depth = round_up(delta.b.depth, kRankStep);
        delta.b.columns = matrix->columns;
        all.insert(all.end(), {&delta.a, &delta.b});
    }
    // Each matrix begins at an aligned cell.
    const auto bytes_of = [&](const Matrix& matrix) {
        const std::size_t bytes = num_elements(matrix) * static_cast<std::size_t>(element_bytes(spec_.element));
        return (bytes + 63) / 64 * 64;
    };
    std::size_t bytes = 0;
    for (const Matrix* matrix : all) bytes += bytes_of(*matrix);
    region_ = Region(bytes);
    std::size_t used = 0;
    for (Matrix* matrix : all) {
        if (num_elements(*matrix) > 0) matrix->panels = region_.data() + used;
        used += bytes_of(*matrix);
    }
}

void Adapter::pack(const Placed& placed, ThreadPool& pool) {
    const Delta& delta = deltas_.at(placed.matrix);
    const Place& place = placed.place;
    const int rank = static_cast<int>(placed.part->a.rows);
    // Inputs that are adjacent in the depth, as in `pack_matrix`.
    const int run = place.is_of_heads ? place.head_dim : place.columns;
    const int padded = place.is_of_heads ? round_up(run, kLanes) : run;
    pool.share(rank, 1, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++)
            for (int group = 0; group * run < place.columns; group++)
                pack_run(placed.part->a, row, group * run, (group + 1) * run, delta.a, spec_.element,
                         placed.first_rank + row, group * padded);
    });
    pool.share(place.rows, 4 * kPanelColumns, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++)
            pack_run(placed.part->b, row, 0, rank, delta.b, spec_.element, column_of(place, row),
                     placed.first_rank);
    });
}

void Adapter::pack(const Whole& whole, ThreadPool& pool) {
    pool.share(static_cast<int>(whole.matrix.rows), 4 * kPanelColumns, [&](int, int begin, int end) {
        const std::int64_t width = whole.matrix.columns;
        if (whole.name == "embed")
            copy_elements(whole.matrix, begin * width, end * width, spec_.element, embedding_.panels);
        else
            for (int row = begin; row < end; row++)
                pack_run(whole.matrix, row, 0, spec_.hidden_size, head_, spec_.element, row, 0);
    });
}

void Adapter::pack_embedding(const LowRank& part, ThreadPool& pool) {
    const std::int64_t rank = part.a.rows;
    pool.share(spec_.vocab_size, 4 * kPanelColumns, [&](int, int begin, int end) {
        for (std::int64_t token = begin; token < end; token++)
            for (std::int64_t i = 0; i < rank; i++) {
                const float value = element_of(part.a, i * spec_.vocab_size + token);
                const Source one{&value, Stored::kFloat32, 1, 1};
                const std::int64_t at = token * embed_a_.depth + i;
                copy_elements(one, 0, 1, spec_.element,
                              embed_a_.panels + at * element_bytes(spec_.element));
            }
    });
    for (int row = 0; row < spec_.hidden_size; row++)
        pack_run(part.b, row, 0, static_cast<int>(rank), embed_b_, spec_.element, row, 0);
}

bool Adapter::embed(int token, float* out) const {
    if (embedding_.panels == nullptr) return false;
    widen_row(embedding_, spec_.element, token, out);
    return true;
}

void Adapter::low_of(int token, float* out) const { widen_row(embed_a_, spec_.element, token, out); }

}  // namespace weft
