// The weights of a model, packed into panels in one region.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "model/place.h"
#include "model/region.h"
#include "model/spec.h"
#include "model/thread_pool.h"

namespace weft {

struct LayerWeights {
    Matrix qkv;
    Matrix o;
    Matrix gate_up;
    Matrix down;
    // Norms; empty where the model has none.
    std::vector<float> q_norm;
    std::vector<float> k_norm;
    std::vector<float> attention_norm_before;
    std::vector<float> attention_norm_after;
    std::vector<float> mlp_norm_before;
    std::vector<float> mlp_norm_after;
};

class Weights {
public:
    explicit Weights(const ModelSpec& spec);

    // Takes over the tensor that Weft calls `name`, such as "embed" or "layers.3.gate.bias". Throws
    // std::invalid_argument if this model has no such tensor or its shape is another one. False if it
    // holds NaN or infinity: it is looked at on the way, while it is in the cache.
    bool load(const std::string& name, const Source& source, ThreadPool& pool);

    // Name of a tensor that is needed and was not loaded, or "".
    std::string missing() const { return missing_.empty() ? "" : missing_.front(); }

    // The embedding of a token, widened, into `out[0 .. hidden_size)`.
    void embed(int token, float* out) const;

    // Where the matrix "layers.3.q" or "head" is. Throws std::invalid_argument if there is none.
    Place place_of(const std::string& name);

    std::vector<LayerWeights> layers;
    std::vector<float> norm;
    Matrix head;

private:
    // A vector of the checkpoint: `size` elements, in groups of `group` padded to `padded`.
    struct Span {
        std::vector<float>* vector;
        int size;
        int group;
        int padded;
    };

    // Whether the packed head gives the embedding too: not where it is rounded to int8.
    bool shares_embedding() const { return spec_.tied_head && !spec_.is_int8(); }
    LayerWeights& layer_of(const std::string& name, std::string& local);
    bool find_matrix(const std::string& local, LayerWeights& layer, Place& place);
    bool find_vector(const std::string& local, LayerWeights& layer, Span& span);
    void load_vector(const Span& span, const Source& source) const;
    void load_embedding(const Source& source, ThreadPool& pool, std::atomic<bool>& is_finite) const;
    Matrix matrix_of(int depth, int columns, bool is_int8);

    const ModelSpec spec_;
    Region region_;
    std::size_t used_ = 0;
    std::byte* embedding_ = nullptr;  // row by row; null where the head serves as the embedding
    LayerWeights outside_;            // stands in for a layer where a tensor belongs to none
    std::vector<std::string> missing_;
};

}  // namespace weft
