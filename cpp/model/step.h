// One step from token ids to logits or hidden states, part by part; the threads share each part.
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "model/attention_tasks.h"
#include "model/model.h"

namespace weft {

class Step {
public:
    // `adapters` by row, null for none; empty if no row has one.
    Step(Model& model, const Batch& batch, const Plan& plan, std::span<float> outputs,
         std::vector<const Adapter*> adapters);

    // Runs the step; writes `hidden` [rows][hidden size] if the batch wants it.
    void run(std::span<float> hidden);
    // Runs the head alone, on hidden states as `run` writes them.
    void run_head(std::span<const float> hidden);

    const std::array<double, kNumParts>& seconds() const { return seconds_; }

private:
    using Clock = std::chrono::steady_clock;

    void prepare(int row);
    void turn_row(int row);
    void join();
    void give_hidden(std::span<float> hidden);
    const float* rotations(int rope, int row) const;
    void layer(int index);
    bool attention(int index, bool is_last);
    bool convolution(int index, bool is_last);
    bool recurrence(int index, bool is_last);
    RowsAt mixed_by_recurrence(int index, const RowsAt& rows) const;
    void write_heads(int index, int row);
    void heat(const LayerSpec& layer, int position, float* queries) const;
    void write_latent(int index, int row, bool has_kept, bool has_queries);
    void make_queries(int index);
    void gather(int index, int tile);
    void attend(int index);
    void cross(int index);
    AttentionTask cross_task(int index, int number) const;
    AttentionTask attention_task(int index, const AttentionTasks& tasks, int number) const;
    void pick(int wanted, std::size_t attended_bytes);
    void pick_adapters();
    void finish_layer(int index, const LayerRows& rows);
    void add_mixed(int index, const LayerRows& rows);
    void set_xielu(const LayerWeights& layer);
    void add_deep(int index);
    void make_inputs();
    void add_input(int index, const LayerRows& rows);
    void add_experts(int index, const LayerRows& rows);
    void linear(const Matrix& matrix, const RowsAt& x, int rows, Finish finish, const RowsAt& out);
    template <class Task, class Gemm>
    void share(const Matrix& matrix, const Task& task, Gemm gemm);
    void int8_linear(const Matrix& matrix, const RowsAt& x, const GemmTask& task);
    // Norms around the addition of a row: see `ResidualTask`.
    struct Norms {
        const NormWeights& after;
        const NormWeights& sum;
        const NormWeights& before;
        bool is_end = false;  // True if no product follows
        float whole = 1;
    };
    void residual(const RowsAt& hidden, int row, const float* added, const Norms& norms);
    void add_rows(const LayerRows& rows, const Norms& norms, bool adds = true);
    void leave_layer(int index, const LayerRows& rows);
    void head();
    void give_states();
    void lap(Part part);
    // True if the last layer has outputs.
    bool has_ends() const { return last_.count > 0 || batch_.wants_hidden; }
    // The end of the layers of this step.
    int end_layer() const { return batch_.end_layer == 0 ? static_cast<int>(spec_.layers.size()) : batch_.end_layer; }

    std::byte* layer_keys(int index) const;
    std::byte* layer_values(int index) const { return layer_keys(index) + half_layer(index); }
    std::size_t half_layer(int index) const;

    Model& model_;
    const ModelSpec& spec_;
    const Batch& batch_;
    const Plan& plan_;
    const std::span<float> outputs_;
    void (*const residual_)(const ResidualTask&);
    const float attention_scale_;
    std::vector<std::ptrdiff_t> rope_starts_;  // offsets in the workspace, in floats
    const std::vector<const Adapter*> adapter_by_row_;
    // Embeddings that come with the batch, else null; empty if there are none.
    std::vector<const float*> embed_by_row_;
    AdapterStep adapters_;
    ExpertStep experts_;
    LatentStep latent_;
    ConvStep convolution_;
    RecurrentStep recurrence_;
    LayerRows all_;
    LayerRows last_;
    std::array<double, kNumParts> seconds_{};
    const NormWeights none_;
    Xielu xielu_{};  // of the layer that is computed
    Clock::time_point since_;
};

}  // namespace weft
