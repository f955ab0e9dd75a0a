// One step of an encoder from token ids to hidden states, part by part; the threads share out each part.
#pragma once

#include <vector>

#include "encoder/encoder.h"

namespace weft {

class EncoderStep {
public:
    EncoderStep(Encoder& encoder, const EncoderBatch& batch, const EncoderPlan& plan, std::span<float> states);

    void run();

private:
    void prepare(int row);
    const float* rotations(int rope, int row) const;
    void layer(int index);
    void write_heads(int index, int row);
    void attend(int index, int thread, int number);
    void pick(int place);
    void finish_layer(int index, const LayerRows& rows);
    void linear(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out);
    void add(const LayerRows& rows, int row, const LayerNorm& after, const LayerNorm& before, bool is_end);
    void give_back(int place);

    template <class Work>
    void for_rows(int count, const Work& work);

    Encoder& encoder_;
    const EncoderSpec& spec_;
    const EncoderBatch& batch_;
    const EncoderPlan& plan_;
    const std::span<float> states_;
    std::vector<std::ptrdiff_t> rope_starts_;  // floats, in the workspace
    LayerRows all_;
    LayerRows wanted_;
    const LayerNorm none_;
};

}  // namespace weft
