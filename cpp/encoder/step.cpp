#include "encoder/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/share_product.h"

namespace weft {
namespace {

// Activations that are multiplied with every panel before the next rows: they stay in the second cache, and
// only weights pass. Of 32 texts a token took 1.09 times what it takes alone, and takes 1.01 with this
// (MiniLM, 60 tokens each, processor time).
constexpr int kSlabBytes = 512 << 10;
constexpr int kSlabRows = 96;  // a slab has a multiple of so many

float* floats(const Region& region) { return reinterpret_cast<float*>(region.data()); }

const float* data_or_null(const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
}

}  // namespace

EncoderStep::EncoderStep(Encoder& encoder, const EncoderBatch& batch, const EncoderPlan& plan,
                         std::span<float> states)
    : encoder_(encoder),
      spec_(encoder.spec_),
      batch_(batch),
      plan_(plan),
      states_(states),
      all_{plan.rows, encoder.space_.hidden.rows(), encoder.space_.attended.rows()},
      wanted_{static_cast<int>(batch.wanted.size()), encoder.space_.last_hidden.rows(),
              encoder.space_.last_attended.rows()} {
    std::ptrdiff_t at = 0;
    for (const Rope& rope : spec_.ropes) {
        rope_starts_.push_back(at);
        at += plan.rows * 2 * static_cast<std::ptrdiff_t>(rope.frequencies.size());
    }
}

template <class Work>
void EncoderStep::for_rows(int count, const Work& work) {
    encoder_.pool_.share(count, 1, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) work(row);
    });
}

void EncoderStep::run() {
    for_rows(plan_.rows, [&](int row) { prepare(row); });
    const int num_layers = static_cast<int>(spec_.layers.size());
    for (int index = 0; index < num_layers; index++) layer(index);
    for_rows(wanted_.count, [&](int place) { give_back(place); });
}

// The embeddings and their norm, the angles of the row's position, and what the first layer begins with.
void EncoderStep::prepare(int row) {
    const auto at = static_cast<std::size_t>(row);
    const EncoderWeights& weights = encoder_.weights_;
    float* hidden = all_.hidden.floats(row);
    const std::int32_t type = batch_.token_types.empty() ? 0 : batch_.token_types[at];
    weights.embed(batch_.token_ids[at], type, batch_.positions[at], hidden);
    std::fill(hidden + spec_.hidden_size, hidden + spec_.padded_hidden(), 0.0F);
    for (std::size_t rope = 0; rope < spec_.ropes.size(); rope++) {
        const auto pairs = static_cast<std::ptrdiff_t>(spec_.ropes[rope].frequencies.size());
        turn(spec_.ropes[rope], batch_.positions[at],
             floats(encoder_.space_.rotations) + rope_starts_[rope] + row * 2 * pairs);
    }
    const LayerNorm& before = spec_.norm_before ? weights.layers[0].attention_norm : none_;
    const LayerNormTask task{hidden,
                             nullptr,
                             data_or_null(weights.embed_norm.weight),
                             data_or_null(weights.embed_norm.bias),
                             data_or_null(before.weight),
                             data_or_null(before.bias),
                             encoder_.space_.normed.rows().row(row),
                             spec_.hidden_size,
                             spec_.padded_hidden(),
                             spec_.norm_eps};
    encoder_.kernels_.layer_norm(task);
}

const float* EncoderStep::rotations(int rope, int row) const {
    const auto at = static_cast<std::size_t>(rope);
    const auto pairs = static_cast<std::ptrdiff_t>(spec_.ropes[at].frequencies.size());
    return floats(encoder_.space_.rotations) + rope_starts_[at] + row * 2 * pairs;
}

void EncoderStep::layer(int index) {
    const EncoderLayerWeights& weights = encoder_.weights_.layers[static_cast<std::size_t>(index)];
    const bool is_last = index + 1 == static_cast<int>(spec_.layers.size());
    linear(weights.qkv, encoder_.space_.normed.rows(), all_.count, Finish::kStore, encoder_.space_.wide.rows());
    // Every key and value of the layer is in its tile before any row reads. Tokens of one tile share cache
    // lines, so neighbours are written by one thread.
    encoder_.pool_.share(all_.count, kLanes, [&](int, int begin, int end) {
        for (int row = begin; row < end; row++) write_heads(index, row);
    });
    encoder_.pool_.share(static_cast<int>(plan_.pieces.size()) * spec_.num_heads, 1,
                         [&](int thread, int begin, int end) {
                             for (int task = begin; task < end; task++) attend(index, thread, task);
                         });
    if (is_last) for_rows(wanted_.count, [&](int place) { pick(place); });
    finish_layer(index, is_last ? wanted_ : all_);
}

void EncoderStep::write_heads(int index, int row) {
    const EncoderLayer& layer = spec_.layers[static_cast<std::size_t>(index)];
    const int slot = plan_.slots[static_cast<std::size_t>(row)];
    HeadsTask task{};
    task.qkv = encoder_.space_.wide.rows().floats(row);
    task.num_heads = spec_.num_heads;
    task.num_kv_heads = spec_.num_heads;
    task.head_dim = spec_.head_dim();
    task.padded_dim = spec_.padded_dim();
    task.norm = QkNorm::kNone;
    if (layer.rope) {
        task.half = static_cast<int>(spec_.ropes[static_cast<std::size_t>(*layer.rope)].frequencies.size());
        task.cosine = rotations(*layer.rope, row);
        task.sine = task.cosine + task.half;
    }
    task.query = encoder_.space_.query.rows().row(row);
    const std::size_t tile = static_cast<std::size_t>(slot / kLanes) * encoder_.tile_bytes();
    task.keys = encoder_.space_.keys.data() + tile;
    task.values = encoder_.space_.values.data() + tile;
    task.lane = slot % kLanes;
    encoder_.kernels_.heads(task);
}

void EncoderStep::attend(int index, int thread, int number) {
    const EncoderPiece& piece = plan_.pieces[static_cast<std::size_t>(number / spec_.num_heads)];
    const int reach = spec_.layers[static_cast<std::size_t>(index)].reach.value_or(std::numeric_limits<int>::max());
    AttentionTask task{};
    task.query = encoder_.space_.query.rows().first;
    task.out = all_.attended.first;
    task.stride = all_.attended.stride;
    task.keys = encoder_.space_.keys.data();
    task.values = encoder_.space_.values.data();
    task.tiles = plan_.tiles.data() + piece.first_tile;
    task.positions = batch_.positions.data();
    task.first_row = piece.first_row;
    task.last_row = piece.last_row;
    task.first_head = number % spec_.num_heads;
    task.last_head = task.first_head + 1;
    task.num_kv_heads = spec_.num_heads;
    task.group = 1;
    task.head_dim = spec_.head_dim();
    task.padded_dim = spec_.padded_dim();
    task.before = reach;
    task.after = reach;
    task.end = piece.length;
    task.scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_dim()));
    task.scratch = encoder_.space_.scratch.data() + static_cast<std::size_t>(thread) * encoder_.scratch_bytes_;
    encoder_.kernels_.attend(task);
}

// In the last layer only the rows that are wanted go on.
void EncoderStep::pick(int place) {
    const std::int32_t row = batch_.wanted[static_cast<std::size_t>(place)];
    const auto hidden = static_cast<std::size_t>(spec_.padded_hidden());
    const auto attended = static_cast<std::size_t>(spec_.query_size() * encoder_.kernels_.activation_bytes);
    std::memcpy(wanted_.hidden.row(place), all_.hidden.row(row), hidden * sizeof(float));
    std::memcpy(wanted_.attended.row(place), all_.attended.row(row), attended);
}

// What follows attention: o, the MLP, and the norms behind or before them.
void EncoderStep::finish_layer(int index, const LayerRows& rows) {
    const auto at = static_cast<std::size_t>(index);
    const EncoderWeights& weights = encoder_.weights_;
    const EncoderLayerWeights& layer = weights.layers[at];
    const bool is_last = at + 1 == spec_.layers.size();
    const bool is_before = spec_.norm_before;
    const RowsAt& wide = encoder_.space_.wide.rows();
    const RowsAt& inner = encoder_.space_.inner.rows();
    linear(layer.o, rows.attended, rows.count, Finish::kStore, wide);
    for_rows(rows.count, [&](int row) {
        add(rows, row, is_before ? none_ : layer.attention_norm, is_before ? layer.mlp_norm : none_, false);
    });
    linear(layer.up, encoder_.space_.normed.rows(), rows.count,
           spec_.is_gated ? Finish::kActivate : Finish::kActivateAll, inner);
    linear(layer.down, inner, rows.count, Finish::kStore, wide);
    const LayerNorm& after = !is_before ? layer.mlp_norm : is_last ? weights.norm : none_;
    const LayerNorm& before = is_before && !is_last ? weights.layers[at + 1].attention_norm : none_;
    for_rows(rows.count, [&](int row) { add(rows, row, after, before, is_last); });
}

void EncoderStep::add(const LayerRows& rows, int row, const LayerNorm& after, const LayerNorm& before, bool is_end) {
    const LayerNormTask task{rows.hidden.floats(row),
                             encoder_.space_.wide.rows().floats(row),
                             data_or_null(after.weight),
                             data_or_null(after.bias),
                             data_or_null(before.weight),
                             data_or_null(before.bias),
                             is_end ? nullptr : encoder_.space_.normed.rows().row(row),
                             spec_.hidden_size,
                             spec_.padded_hidden(),
                             spec_.norm_eps};
    encoder_.kernels_.layer_norm(task);
}

void EncoderStep::linear(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out) {
    GemmTask task{};
    task.x_stride = x.stride;
    task.panels = matrix.panels;
    task.depth = matrix.depth;
    task.bias = data_or_null(matrix.bias);
    task.finish = finish;
    task.out_stride = out.stride;
    task.activation = spec_.activation;
    const int slab = std::max(kSlabBytes / (matrix.depth * x.element_bytes) / kSlabRows, 1) * kSlabRows;
    for (int first = 0; first < rows; first += slab) {
        task.x = x.row(first);
        task.out = out.row(first);
        task.last_row = std::min(slab, rows - first);
        share_panels(encoder_.pool_, matrix, task,
                     [&](int, const GemmTask& part) { encoder_.kernels_.gemm(part); });
    }
}

void EncoderStep::give_back(int place) {
    const auto size = static_cast<std::size_t>(spec_.hidden_size);
    std::memcpy(states_.data() + static_cast<std::size_t>(place) * size,
                wanted_.hidden.row(place), size * sizeof(float));
}

}  // namespace weft
