// The interface of a kernel file, and the layouts that kernels and model share. No standard containers here or in any
// file that is compiled for one instruction set: the linker may keep such a file's copy of a shared template, and
// then an older CPU would run it.
//
// A cell is 64 bytes: 16 columns by one element (float) or by a pair of elements (bfloat16) of depth. Weights lie in
// panels of 32 output rows, [depth steps][2 cells]. A tile of the KV cache holds 16 tokens of one head: keys as
// [head_dim steps][cell of 16 tokens], values as [head_dim / 16][token steps][cell of 16 elements]. So scores and
// outputs are computed like the products of linear layers. Keys and values are stored apart, because they are read
// apart: hardware prefetches a stream without gaps at three times the rate of a stream that skips every other run of
// some kilobytes.
//
// Whatever the number of rows, each sum runs over its depth in one chain from the first element to the last. That is
// why a row gives the same bits alone and together with other rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/recurrent_tasks.h"

namespace weft {

constexpr int kLanes = 16;         // floats handled together; tokens of a KV tile
constexpr int kPanelColumns = 32;  // output rows of a weight panel

enum class Element { kBfloat16, kFloat32 };
enum class Activation { kSilu, kGeluTanh, kRelu, kGelu, kTanh, kReluSquared, kXielu };
enum class Finish { kStore, kActivate, kActivateAll, kLogits };
enum class QkNorm { kNone, kHead, kFull, kHeadAfterRope, kHeadLayer };
// Stages of an attention task. Threads that share a task finish a stage before they begin the next.
enum class AttentionStage { kWhole, kScore, kWeigh, kCombine };

// Learned numbers of the activation xIELU: positive * x^2 + linear * x for positive x, and
// negative * (exp(x) - 1 - x) + linear * x for others.
struct Xielu {
    float positive = 0;
    float negative = 0;
    float linear = 0;
};

constexpr int kMostTilesPerTurn = 8;  // maximum number of tiles of keys or values per turn

constexpr int kInt8ScaleBytes = kLanes * 4;  // a float for each token of a head of a tile

// Rows [first_row, last_row) times panels [first_panel, last_panel).
struct GemmTask {
    const void* x;  // activations of row 0, [rows][x_stride]
    std::ptrdiff_t x_stride;
    int first_row;
    int last_row;
    const void* panels;  // panels of the whole matrix
    int depth;           // padded to a multiple of 16
    int first_panel;
    int last_panel;
    const float* bias;  // by packed column, or null
    // Results of adapters, added before anything else is done to a sum; null: none. A row of `added` holds the
    // columns from `first_panel` on. By row of the task: the index of its row in `added`, from 1; 0: none.
    const float* added;
    std::ptrdiff_t added_stride;
    const std::int32_t* added_places;
    Finish finish;
    // kStore: float [rows][out_stride]. kActivate: activations, 16 for each panel, whose first 16
    // columns are gates. kActivateAll: activations [rows][out_stride], each by itself. kLogits: float,
    // divided and capped, no column from `columns` on.
    void* out;
    std::ptrdiff_t out_stride;
    Activation activation;
    // Limit of gate and up for kActivate, combined as in gpt-oss; 0: use `activation`.
    float swiglu_limit;
    float swiglu_alpha;
    Xielu xielu;
    int columns;
    float divisor;
    float cap;  // 0: none
};

// Weight and bias, padded with zeros; a null weight means no norm. Only layer norms have a bias; otherwise it is
// null.
struct NormVectors {
    const float* weight;
    const float* bias;
};

// One row: x += after(y) * scale, then x = sum(x * whole), then out = before(x) as activations. Null leaves a part out.
struct ResidualTask {
    float* x;
    const float* y;
    NormVectors after;
    NormVectors sum;
    NormVectors before;
    void* out;
    int size;
    int padded;
    float scale;
    float eps;
    float whole = 1;
};

// One row's queries, keys and values after their product: applies norms and rope, and writes to the cache.
struct HeadsTask {
    // [query heads + 2 * KV heads][padded head_dim], overwritten; only queries if `keys` is null.
    float* qkv;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    int padded_dim;
    QkNorm norm;
    const float* q_norm;  // weights for one head, or for all heads; null: each is 1
    const float* k_norm;
    bool norms_values;  // each head of the values is normed, without weights
    float eps;
    const float* cosine;  // null if there is no rope
    const float* sine;
    int half;  // number of rotary pairs
    void* query;   // activations, [query heads][padded head_dim]
    void* keys;  // the token's tile of the first KV head; null: another layer has written keys and values
    void* values;  // the same
    int lane;      // place of the token in the tile
};

// One row of latent attention, in parts as their products are ready; null leaves a part out.
struct LatentTask {
    // The vector of low rank that queries are computed from, padded with zeros; normed in place.
    float* low;
    const float* low_norm;
    int low_size;
    int low_padded;
    void* low_out;  // output, as activations
    float* kept;    // [padded_dim]: `rank` elements to be normed, then the rotary elements; overwritten
    const float* norm;
    int rank;
    int padded_dim;
    void* keys;      // the token's tile
    int lane;        // place of the token in the tile
    // [heads][query_size]: `key_size` elements, then the rotary elements; overwritten.
    float* queries;
    int num_heads;
    int key_size;
    int query_size;
    void* own;  // output: activations, [heads][key_size]
    void* query;  // output: activations, [heads][padded_dim], elements from `rank` on
    const float* cosine;
    const float* sine;
    int half;  // number of rotary pairs
    bool is_interleaved;  // the elements of a pair are adjacent
    float eps;
};

// A few rows of one sequence, or of several sequences that begin with the same tiles, for KV heads [first_head,
// last_head).
struct AttentionTask {
    const void* query;  // activations, row 0 of the step
    void* out;          // activations, row 0 of the step
    std::ptrdiff_t stride;
    const void* keys;           // the layer's tiles, [tiles][KV heads][padded head_dim * 16]
    const void* values;  // as keys; null: the values are computed from the keys
    const std::int32_t* tiles;  // index of a tile in the pool, by index in the sequence
    const std::int32_t* positions;
    int first_row;
    int last_row;
    // For rows of several sequences: row `order[i]` for i from `first_row` on, each of a different sequence, whose
    // tiles begin at `tiles[row_tiles[row]]`. The first `shared_tiles` of all sequences are the same. Null for one
    // sequence.
    const std::int32_t* order;
    const std::int64_t* row_tiles;
    int shared_tiles;
    int first_head;
    int last_head;
    int num_kv_heads;
    int group;  // number of query heads per KV head
    int head_dim;
    int padded_dim;
    // A row sees its own key, `before` keys before and `after` keys after it, and none from `end` on; and only those of
    // its chunk, if positions are divided into chunks.
    int before;
    int chunk;  // number of positions; 0: none
    int after;
    int end;
    float scale;
    float cap;           // 0: none
    // By query head: a score that adds to the sum of weights and has no value; null: none.
    const float* sinks;
    void* scratch;  // for all shares of the task
    AttentionStage stage = AttentionStage::kWhole;
    // Share of a stage: scores of some tiles, weights of some rows, some columns of the output.
    int share = 0;
    int num_shares = 1;
    // By row: the last position that it sees, instead of `after` keys after its own; null: none.
    const std::int32_t* ends = nullptr;
};

struct Kernels {
    Element element;
    int activation_bytes;
    // Minimum rows of an attention task: tokens times group, and at least one token.
    int attention_rows;
    // Pieces per thread of a product with many rows; each piece reads all weights again.
    int pieces;
    void (*gemm)(const GemmTask&);
    void (*rms_residual)(const ResidualTask&);
    void (*layer_residual)(const ResidualTask&);
    // Floats as activations; `count` is a multiple of 16.
    void (*to_activations)(const float* from, void* to, int count);
    void (*heads)(const HeadsTask&);
    void (*attend)(const AttentionTask&);
    // `heads` and `attend` for an int8 KV cache.
    void (*int8_heads)(const HeadsTask&);
    void (*int8_attend)(const AttentionTask&);
    void (*latent)(const LatentTask&);
    // Multiplies a row of attention outputs (activations) by the sigmoids of its gates; `count` is a multiple of 16.
    void (*gate_outputs)(const float* gates, void* row, int count);
    void (*convolve_channels)(const ChannelsTask&);
    void (*mamba_scan)(const MambaScanTask&);
    void (*mamba1_row)(const Mamba1RowTask&);
    void (*mamba1_scan)(const Mamba1ScanTask&);
    void (*delta_row)(const DeltaRowTask&);
    void (*delta_scan)(const DeltaScanTask&);
    void (*gated_norm)(const GatedNormTask&);
    // For benchmarks: the number of operations in `rounds` of the micro-kernel, and one pass over memory.
    double (*probe_arithmetic)(int rounds, float* sink);
    void (*probe_reading)(const void* data, std::size_t bytes, float* sink);
};

inline int element_bytes(Element element) { return element == Element::kFloat32 ? 4 : 2; }

inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Number of tokens of one sequence in an attention task of up to `rows` rows.
inline int attention_tokens(int rows, int group) { return group >= rows ? 1 : rows / group; }

// The first of the keys that a row at `position` sees.
static inline int first_key(const AttentionTask& task, int position) {
    const int first = position > task.before ? position - task.before : 0;
    const int chunk = task.chunk == 0 ? 0 : position / task.chunk * task.chunk;
    return first > chunk ? first : chunk;
}

// Keys of this many tiles, beginning at a multiple of it, are weighted together; the bits of results depend on it.
constexpr int kTilesPerBlock = 32;
// Number of scores that a task keeps at a time, so that they and their weights stay in the second cache.
constexpr int kScoresAtOnce = 64 << 10;

// Number of blocks whose scores are kept at a time, for `rows` of all heads of a task; all blocks if threads share
// the task. Static: each kernel file must keep the copy that is compiled for its own instructions.
static inline int attention_blocks_at_once(int rows, int num_shares) {
    if (num_shares > 1) return 1 << 20;
    const int fitting = kScoresAtOnce / (rows * kTilesPerBlock * kLanes);
    return fitting > 1 ? fitting : 1;
}

// Size in bytes of `AttentionTask::scratch` for up to `rows` rows and keys in `num_tiles` tiles. Each share has
// queries of its own.
static inline std::size_t attention_scratch(int heads, int rows, int padded_dim, int num_tiles, int num_shares) {
    const std::size_t all_rows = static_cast<std::size_t>(heads) * static_cast<std::size_t>(rows);
    const std::size_t dim = static_cast<std::size_t>(padded_dim);
    const std::size_t of_block = all_rows * kTilesPerBlock * kLanes;
    // A task with fewer rows keeps scores of more blocks.
    const std::size_t at_once = (of_block > kScoresAtOnce ? of_block : kScoresAtOnce) + all_rows * kLanes;
    std::size_t scores = all_rows * (static_cast<std::size_t>(num_tiles) + 1) * kLanes;
    if (num_shares == 1 && at_once < scores) scores = at_once;
    // Memory of `Attention` besides the weights.
    const std::size_t weighed = all_rows * (kLanes + 2) + scores / kLanes;
    // Values of the edge tiles; or values of a turn, if they are made from keys, for one head.
    const std::size_t values = (2 * static_cast<std::size_t>(heads) + kMostTilesPerTurn) * dim * kLanes * 4;
    const std::size_t queries = static_cast<std::size_t>(num_shares) * (dim * 4 * all_rows + 64);
    return queries + 2 * scores * 4 + weighed * 4 + all_rows * dim * 4 + values + 1024;
}

// One function per kernel file: the kernels of that path for weights of `element`.
const Kernels& portable_kernels(Element element);
const Kernels& avx2_kernels(Element element);
const Kernels& avx512_kernels(Element element);
const Kernels& avx512_bf16_kernels(Element element);
const Kernels& amx_kernels(Element element);
const Kernels& neon_kernels(Element element);
const Kernels& neon_bf16_kernels(Element element);

}  // namespace weft
