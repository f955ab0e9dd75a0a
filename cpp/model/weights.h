// The weights of a model: matrices packed into panels and tables to look up, in one region.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/place.h"
#include "model/region.h"
#include "model/shared_file.h"
#include "model/spec.h"
#include "model/thread_pool.h"

namespace weft {

// Weight and bias, padded; empty if the model has none.
struct NormWeights {
    std::vector<float> weight;
    std::vector<float> bias;

    NormVectors vectors() const {
        return {weight.empty() ? nullptr : weight.data(), bias.empty() ? nullptr : bias.data()};
    }
};

// Vectors by head, and by element of the heads' outputs; empty if the layer has none.
struct RecurrentWeights {
    std::vector<float> step_bias;
    std::vector<float> a_log;
    std::vector<float> skip;
    std::vector<float> output_scale;
    std::vector<float> step_in;  // [made_size][inner_size]
    std::vector<float> step_out;  // [inner_size][step_rank]
};

struct LayerWeights {
    Matrix qkv;  // or the first product of a convolution (B, C and x) or of a recurrence
    Matrix unrounded;  // the part of the first product that is never quantized
    Matrix q_b;  // from a vector of low rank to queries
    std::vector<float> q_a_norm;  // padded
    std::vector<float> kv_a_norm;
    std::vector<Matrix> head_keys;  // by head: from its part of a query to the latent space
    std::vector<Matrix> head_values;  // by head: from the latent space to its value
    Matrix o;  // or the last product of a layer without attention
    Matrix beside_in;  // first and last product of a recurrence beside attention
    Matrix beside_out;
    Matrix cross_q;  // of the attention to keys that come with a sequence; its keys and values are computed before
    Matrix cross_o;
    NormWeights cross_norm;
    std::vector<float> conv;  // [width][channels], weights of the oldest row first
    std::vector<float> conv_bias;  // empty if there is none
    RecurrentWeights recurrent;
    Matrix up;  // with a gate, panels alternate between gate and up
    Matrix down;
    Matrix router;  // of the experts; its last column gives the weight of the shared expert
    std::vector<float> router_correction;  // by expert; empty if there is none
    // Of the activation xIELU: positive, negative and linear, each one number; empty for others.
    std::array<std::vector<float>, 3> xielu;
    std::vector<Matrix> expert_up;
    std::vector<Matrix> expert_down;
    std::vector<float> router_norm;  // padded; empty if the router reads what the experts read
    std::vector<float> router_scales;  // by expert
    NormWeights shared_norm;  // of the results of the shared expert
    NormWeights expert_norm_before;
    NormWeights expert_norm_after;
    Matrix input_gate;  // of the layer's own input; never quantized
    Matrix input_down;
    NormWeights input_norm;
    std::vector<float> scale;  // one number; empty if there is none
    std::vector<float> sinks;  // by query head; empty if there are none
    NormWeights q_norm;  // for one head, or for all heads
    NormWeights k_norm;
    NormWeights attention_norm_before;
    NormWeights attention_norm_after;
    NormWeights attention_norm_sum;
    NormWeights mlp_norm_before;
    NormWeights mlp_norm_after;
    NormWeights mlp_norm_sum;

    // All matrices but those of experts and of latent heads; and all norms.
    std::array<Matrix*, 13> matrices() {
        return {&qkv,     &unrounded, &q_b,  &o,      &beside_in,  &beside_out, &cross_q,
                &cross_o, &up,        &down, &router, &input_gate, &input_down};
    }
    std::array<NormWeights*, 13> norms() {
        return {&q_norm, &k_norm, &cross_norm, &attention_norm_before, &attention_norm_after, &attention_norm_sum,
                &mlp_norm_before, &mlp_norm_after, &mlp_norm_sum, &shared_norm, &expert_norm_before,
                &expert_norm_after, &input_norm};
    }
};

struct ProjectionWeights {
    NormWeights norm;
    Matrix up;  // empty if there is one linear layer
    Matrix down;
};

// A matrix as it will be packed; `columns` are whole panels.
struct PackedShape {
    int depth;
    int columns;
    bool is_int8;
    std::optional<GroupFormat> groups = std::nullopt;
    bool is_float32 = false;

    std::size_t bytes(Element element) const {
        if (groups) return static_cast<std::size_t>(columns / kPanelColumns * panel_bytes(*groups, depth));
        return static_cast<std::size_t>(depth) * static_cast<std::size_t>(columns) *
               static_cast<std::size_t>(is_int8 ? 1 : element_bytes(is_float32 ? Element::kFloat32 : element));
    }
    std::size_t scale_bytes() const { return is_int8 && !groups ? static_cast<std::size_t>(columns) * sizeof(float) : 0; }
    // Number of elements per rank of an adapter on this matrix: its `a` is as deep and its `b` as wide as the matrix.
    std::size_t adapter_elements() const { return static_cast<std::size_t>(depth) + static_cast<std::size_t>(columns); }
};

struct LayerShapes {
    PackedShape qkv;
    PackedShape o;
    PackedShape up;
    PackedShape down;
    std::size_t num_experts = 0;
    PackedShape router{};
    PackedShape expert_up{};
    PackedShape expert_down{};
    std::size_t num_latent_heads = 0;
    PackedShape q_b{};
    PackedShape head_key{};
    PackedShape head_value{};
    PackedShape unrounded{};
    PackedShape beside_in{};
    PackedShape beside_out{};
    PackedShape cross_q{};
    PackedShape cross_o{};
    PackedShape input_gate{};
    PackedShape input_down{};
    std::size_t num_made = 3;  // number of matrices that form `qkv` and `unrounded`
};

// Adds the shapes of attention to keys that come with a sequence.
void add_cross_shapes(const ModelSpec& spec, LayerShapes& shapes);
LayerShapes layer_shapes(const ModelSpec& spec, const LayerSpec& layer);
PackedShape head_shape(const ModelSpec& spec);
// Shape of the matrix from the model's embeddings to the inputs of all layers; empty if layers have none.
PackedShape inputs_shape(const ModelSpec& spec);
// Shape of either matrix; empty if rows are not joined.
PackedShape join_shape(const ModelSpec& spec);
// Shapes of both matrices of a projection; the first is empty if there is one linear layer.
std::pair<PackedShape, PackedShape> projection_shapes(const ProjectionSpec& spec);

// Memory of matrices, their scales and tables; norms and biases are left out.
std::size_t weight_bytes(const ModelSpec& spec);

class Weights {
public:
    // Throws std::invalid_argument for a file with other published weights.
    Weights(const ModelSpec& spec, const std::optional<SharedFile>& file, ThreadPool& pool);
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;

    // Packs or copies the tensor with Weft's name `name`, such as "embed" or "layers.3.gate.bias". Throws
    // std::invalid_argument if this model has no such tensor or its shape differs. Returns false if it holds NaN or
    // infinity: values are checked while they are in the cache.
    bool load(const std::string& name, const Source& source, ThreadPool& pool);

    // Name of a required tensor that was not loaded, or "".
    std::string missing() const { return missing_.empty() ? "" : *missing_.begin(); }

    // Writes data outside the region to the file after the region; call after the last `load`. Returns false if
    // writing failed.
    bool publish();

    // Contents of a published file of these weights: these bytes, followed by `vector_bytes`.
    std::span<std::byte> packed_bytes() const { return {region_.data(), used_}; }
    std::string vector_bytes();

    // Writes a token's embedding to `out[0 .. hidden_size)`.
    void embed(int token, float* out) const;

    // Completes the inputs of all layers of a token in `inputs`, which holds their product: each is multiplied and normed;
    // then the token's own part is added.
    void add_inputs(int token, float* inputs) const;

    // Adds the learned embeddings of a row's token type and position, if the model has them.
    void add_place(int token_type, int position, float* out) const;

    // Maximum number of groups in the depth of a matrix.
    int most_groups() const { return most_groups_; }

    // Place of a matrix such as "layers.3.q" or "head". Throws std::invalid_argument if there is none.
    const Place& place_of(const std::string& name) const;

    std::vector<LayerWeights> layers;
    NormWeights embed_norm;
    // For models that join embeddings and hidden states: norms of both.
    NormWeights join_embed_norm;
    NormWeights join_hidden_norm;
    Matrix join_embed;  // never quantized
    Matrix join_hidden;
    Matrix inputs_join;  // from the model's embeddings to the inputs of all layers; never quantized
    NormWeights inputs_norm;  // of the input of one layer
    NormWeights norm;  // after the last layer
    Matrix head;
    std::vector<ProjectionWeights> projections;

private:
    // Rows of embeddings, as `element`, row by row.
    struct Table {
        std::byte* rows = nullptr;
        int count = 0;
        int width = 0;
    };
    // A vector of the checkpoint: `size` elements, in groups of `group` padded to `padded`.
    struct Span {
        std::vector<float>* vector;
        int size;
        int group;
        int padded;
    };

    void place_attention(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec,
                         const LayerShapes& shapes);
    void place_convolution(const std::string& prefix, LayerWeights& layer, int width);
    void place_mixing(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec, const LayerShapes& shapes);
    void place_xielu(const std::string& prefix, LayerWeights& layer);
    void place_channels(const std::string& prefix, LayerWeights& layer, int width, int channels);
    void place_recurrence(const std::string& prefix, LayerWeights& layer, const LayerSpec& of_layer);
    void place_layer(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec);
    void place_join();
    void place_cross(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes);
    void place_projection(const ProjectionSpec& spec, ProjectionWeights& projection);
    void place_inputs();
    void place_input(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes);
    void place_expert_norms(const std::string& prefix, LayerWeights& layer, const ExpertsSpec& experts);
    void place_queries(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec);
    void place_latent(const std::string& prefix, LayerWeights& layer, const LayerShapes& shapes);
    bool load_heads(LayerWeights& layer, const Source& source, ThreadPool& pool) const;
    void place_mlp(const std::string& prefix, Matrix& up, Matrix& down, int inner, bool takes_adapters);
    void place_experts(const std::string& prefix, LayerWeights& layer, const ExpertsSpec& experts,
                       const LayerShapes& shapes);
    void place_norms(const std::string& prefix, LayerWeights& layer, const LayerSpec& spec);
    void place_matrix(const std::string& name, const Place& place);
    void place_norm(const std::string& name, NormWeights& norm);
    void place_vector(const std::string& name, std::vector<float>& vector, int size);
    void place_head_norm(const std::string& name, NormWeights& norm, int num_heads, int head_dim);
    void place_table(const std::string& name, Table& table, int count, int width);
    Matrix matrix_of(const PackedShape& shape);
    std::byte* take(std::size_t bytes);
    template <class Visit>
    void visit_vectors(const Visit& visit);
    void find_vectors();
    bool load_table(const Table& table, const Source& source, ThreadPool& pool) const;
    void load_vector(const Span& span, const Source& source) const;
    template <class Put>
    void for_row(const Table& table, int row, const Put& put) const;

    const ModelSpec spec_;
    std::optional<SharedFile> file_;
    Region region_;
    std::size_t used_ = 0;
    int most_groups_ = 1;
    Table tokens_;  // empty if the head also serves as the embedding
    Table positions_;
    Table token_types_;
    Table inputs_;  // [tokens][layers][per_layer_size]
    std::map<std::string, Place> places_;
    std::map<std::string, Span> vectors_;
    std::map<std::string, Table*> tables_;
    // By name of the tensor that holds the keys and values of all heads.
    std::map<std::string, LayerWeights*> latents_;
    std::set<std::string> missing_;
};

}  // namespace weft
