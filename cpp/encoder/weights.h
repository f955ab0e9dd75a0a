// The weights of an encoder: matrices packed into panels and tables to look up, in one region.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "encoder/spec.h"
#include "model/place.h"
#include "model/region.h"
#include "model/thread_pool.h"

namespace weft {

// Both padded; empty where the model has none.
struct LayerNorm {
    std::vector<float> weight;
    std::vector<float> bias;
};

struct EncoderLayerWeights {
    Matrix qkv;
    Matrix o;
    Matrix up;  // gate and up take turns in panels where there is a gate
    Matrix down;
    LayerNorm attention_norm;
    LayerNorm mlp_norm;
};

class EncoderWeights {
public:
    explicit EncoderWeights(const EncoderSpec& spec);
    EncoderWeights(const EncoderWeights&) = delete;
    EncoderWeights& operator=(const EncoderWeights&) = delete;

    // Takes over the tensor that Weft calls `name`, such as "embed" or "layers.3.up.bias". Throws
    // std::invalid_argument if this model has no such tensor or its shape is another one. False if it
    // holds NaN or infinity: it is looked at on the way, while it is in the cache.
    bool load(const std::string& name, const Source& source, ThreadPool& pool);

    // Name of a tensor that is needed and was not loaded, or "".
    std::string missing() const { return missing_.empty() ? "" : *missing_.begin(); }

    // The sum of a row's embeddings, into `out[0 .. hidden_size)`.
    void embed(int token, int token_type, int position, float* out) const;

    std::vector<EncoderLayerWeights> layers;
    LayerNorm embed_norm;
    LayerNorm norm;  // after the last layer

private:
    // Rows of embeddings, as `element`, row by row.
    struct Table {
        std::byte* rows = nullptr;
        int count = 0;
    };

    void place_layer(const std::string& prefix, EncoderLayerWeights& layer, const EncoderLayer& spec);
    void place(const std::string& name, const Place& place);
    void place_norm(const std::string& name, LayerNorm& norm);
    void place_table(const std::string& name, Table& table, int count);
    Matrix matrix_of(int depth, int columns);
    std::byte* take(std::size_t bytes);
    bool load_table(const Table& table, const Source& source, ThreadPool& pool) const;
    void add_row(const Table& table, int row, float* out) const;

    const EncoderSpec spec_;
    Region region_;
    std::size_t used_ = 0;
    Table tokens_;
    Table positions_;
    Table token_types_;
    std::map<std::string, Place> places_;
    std::map<std::string, std::vector<float>*> vectors_;
    std::map<std::string, Table*> tables_;
    std::set<std::string> missing_;
};

}  // namespace weft
