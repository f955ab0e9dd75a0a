// A model with its weights and, if it is causal, its KV pool: checks a step, makes room for it and runs it.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "int8/int8.h"
#include "kernels/kernels.h"
#include "model/adapter_step.h"
#include "model/adapters.h"
#include "model/conv_step.h"
#include "model/expert_step.h"
#include "model/latent_step.h"
#include "model/plan.h"
#include "model/recurrent_step.h"
#include "model/rounded_rows.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// Parts of a step whose time is measured. Norms count as linear.
enum class Part { kPrepare, kLinear, kCache, kAttention, kHead };
constexpr int kNumParts = 5;
constexpr std::array<const char*, kNumParts> kPartNames{"prepare", "linear", "cache", "attention", "head"};

// Memory for the values of one step; kept between steps, and enlarged when a step needs more.
struct Workspace {
    RowBuffer hidden;    // float [padded_hidden], the residual stream
    RowBuffer normed;    // activations [padded_hidden]
    RowBuffer wide;  // float [columns of the first product], or the result of o and down
    RowBuffer query;     // activations [query_size]
    // Activations [query_size], or the output of the layer that replaces attention.
    RowBuffer attended;
    RowBuffer convolved;  // float [most_convolved]
    RowBuffer inner;  // activations [padded_inner]; float for int8 weights
    Region rotations;  // float [ropes][rows][cosines, sines]
    Region tiles;  // keys and values of one layer, if the model keeps none
    Region gathered;   // tiles put together from scattered slots
    Region scratch;  // memory of attention, by thread
    RoundedRows rounded;  // quantized input of an int8 product
    RowBuffer last_hidden;  // the wanted rows of the last layer
    RowBuffer last_attended;
    RowBuffer inputs;  // float [padded_inputs], inputs of all layers
    RowBuffer gated;  // activations [padded_input], a layer's input times its gate
    AdapterSpace adapters;
    ExpertSpace experts;
    LatentSpace latent;
    ConvSpace convolution;
};

class Model {
public:
    // `path` is one of `usable_paths()`; `num_threads` at least 1.
    Model(const ModelSpec& spec, const std::string& path, int num_threads,
          const std::optional<SharedFile>& file = std::nullopt);

    // False if the tensor holds NaN or infinity. See `Weights::load`.
    bool load(const std::string& name, const Source& source);

    // See `Weights`.
    bool publish();
    std::span<std::byte> packed_bytes() const { return weights_.packed_bytes(); }
    std::string vector_bytes();

    // Adds an adapter under an unused id of at least 1, or removes one. Throws std::invalid_argument for an invalid
    // id, and for parts that fit no matrix of the model.
    void add_adapter(int id, const AdapterParts& parts);
    void remove_adapter(int id);

    // Replaces the pool, and the states beside it. Throws std::invalid_argument for invalid sizes, and for a model
    // without a pool.
    void allocate_kv(std::int64_t num_blocks, std::int64_t block_size, std::int64_t num_state_slots = 0);

    // Runs one step; outputs [logit rows][output columns], logits or hidden states. Throws std::invalid_argument,
    // before anything is changed, for a batch that does not fit the model or the pool. One call at a time. If the
    // batch wants them, also writes the hidden states of all rows after the last norm to `hidden`.
    void forward(const Batch& batch, std::span<float> outputs, std::span<float> hidden = {});

    // Embeddings of tokens [tokens][hidden size], and logits of hidden states as at the end of a step: the parts that
    // a head for further tokens shares. Both throw std::invalid_argument for sizes or tokens that do not fit.
    void embed(std::span<const std::int32_t> token_ids, std::span<float> out);
    void logits(std::span<const float> hidden, std::span<float> outputs);

    // Computes the projection `name` of rows [rows][input]; writes [rows][output]. Throws std::invalid_argument for
    // an unknown name, and for sizes that do not fit.
    void project(const std::string& name, std::span<const float> x, std::span<float> out);

    // Packs the keys and values of one sequence [num_cross_keys][layers][keys, values][heads][head_dim] for `Batch::memories`.
    // Throws std::invalid_argument for sizes that do not fit, and for a model that attends to no such keys.
    void pack_memory(std::span<const float> rows, std::span<std::byte> out);

    // Seconds by part since the model was made.
    std::array<double, kNumParts> seconds() const { return seconds_; }

    // Loads by layer; a layer without experts has no rows.
    const std::vector<ExpertLoads>& expert_loads() const { return expert_loads_; }

    const ModelSpec& spec() const { return spec_; }
    int num_threads() const { return pool_.size(); }
    void set_num_threads(int num_threads);
    // The KV pool's memory: by layer all keys, then all values, in tiles; or only keys, if they are the values too.
    std::span<std::byte> kv_bytes() const { return {kv_.data(), kv_.size()}; }
    // The states of blocks: by layer with a convolution [blocks][width - 1][hidden].
    std::span<std::byte> state_bytes() const { return {states_.data(), states_.size()}; }
    // The states of sequences: by layer with a recurrence [slots][state_size].
    std::span<std::byte> slot_bytes() const { return {slots_.data(), slots_.size()}; }

private:
    friend class Step;

    void check_loaded() const;
    void make_room(const Plan& plan, std::size_t num_sequences, std::size_t num_logits);
    void make_scratch(const Plan& plan);
    std::vector<const Adapter*> adapters_of(const Batch& batch) const;
    std::byte* kv_of(int layer) const;
    std::byte* states_of(int layer) const;
    float* slots_of(int layer) const;

    const ModelSpec spec_;
    const Kernels& kernels_;
    const Kernels& float32_kernels_;  // for routers
    const Int8Kernels& int8_kernels_;
    ThreadPool pool_;
    Weights weights_;
    std::map<int, Adapter> adapters_;
    KvShape kv_shape_;
    Region kv_;
    Region states_;
    Region slots_;
    std::vector<std::size_t> places_;  // by layer: number of convolution layers before it
    // By layer: bytes of a tile of all layers before the one whose keys and values it sees.
    std::vector<std::size_t> kv_starts_;
    std::vector<std::size_t> slot_starts_;  // by layer: offset of its floats in a slot
    std::vector<std::int32_t> cross_tiles_;  // tiles of keys that come with a sequence, in order
    Workspace space_;
    std::size_t scratch_bytes_ = 0;  // for one thread
    std::array<double, kNumParts> seconds_{};
    std::vector<ExpertLoads> expert_loads_;
    std::mutex mutex_;
};

}  // namespace weft
