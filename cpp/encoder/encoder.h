// An encoder with its weights: checks a step, makes room for it and runs it. It keeps nothing of it.
#pragma once

#include <mutex>
#include <span>
#include <string>

#include "encoder/plan.h"
#include "encoder/spec.h"
#include "encoder/weights.h"
#include "kernels/kernels.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"

namespace weft {

// Memory of one step's values; kept, and made larger when a step needs more.
struct EncoderSpace {
    RowBuffer hidden;    // float [padded_hidden], what the layers add to
    RowBuffer normed;    // activations [padded_hidden]
    RowBuffer wide;      // float [qkv columns], or the result of o and down
    RowBuffer query;     // activations [query_size]
    RowBuffer attended;  // activations [query_size]
    RowBuffer inner;     // activations [padded_inner]
    Region rotations;  // float [ropes][rows][cosines, sines]
    Region keys;       // of one layer, in tiles
    Region values;     // the same
    Region scratch;    // for attention, by thread
    RowBuffer last_hidden;  // rows of the last layer whose states are wanted
    RowBuffer last_attended;
};

class Encoder {
public:
    // `path` is one of `usable_paths()`; `num_threads` at least 1.
    Encoder(const EncoderSpec& spec, const std::string& path, int num_threads);

    // False if the tensor holds NaN or infinity. See `EncoderWeights::load`.
    bool load(const std::string& name, const Source& source);

    // Runs one step; states [wanted][hidden_size], after the last norm. Throws std::invalid_argument,
    // before anything is changed, for a batch that does not fit the model. One call at a time.
    void forward(const EncoderBatch& batch, std::span<float> states);

    const EncoderSpec& spec() const { return spec_; }
    int num_threads() const { return pool_.size(); }

private:
    friend class EncoderStep;

    void make_room(const EncoderPlan& plan, std::size_t num_wanted);
    std::size_t tile_bytes() const;  // of the keys of all heads; the values take as much

    const EncoderSpec spec_;
    const Kernels& kernels_;
    ThreadPool pool_;
    EncoderWeights weights_;
    EncoderSpace space_;
    std::size_t scratch_bytes_ = 0;  // of one thread
    std::mutex mutex_;
};

}  // namespace weft
