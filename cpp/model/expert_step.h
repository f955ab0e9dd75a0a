// The experts of a layer: each row goes through a few of them. Rows are sorted by expert, and an expert's panels are
// read once for all of its rows. A row's result depends on its own numbers only, not on other rows of the step.
#pragma once

#include <cstdint>
#include <vector>

#include "int8/int8.h"
#include "kernels/kernels.h"
#include "model/rounded_rows.h"
#include "model/row_buffer.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// Memory for one layer's experts; kept between steps, and enlarged when a step needs more.
struct ExpertSpace {
    void make_room(const ModelSpec& spec, std::size_t rows, int activation_bytes, int most_groups);

    RowBuffer widened;  // float [padded_hidden], the router's input if activations are not floats
    RowBuffer routed;  // activations [padded_hidden], the router's input if it has a norm of its own
    RowBuffer logits;   // float [columns of the router]
    // The following have a row for each pair of a row and one of its experts, ordered by expert.
    RowBuffer taken;    // activations [padded_hidden]
    RowBuffer inner;  // activations [padded inner]; float for int8 weights
    RowBuffer results;  // float [padded_hidden]
    RoundedRows rounded;
};

// Counts of one layer over all steps: rows of each expert, and rows of the busiest expert per step.
struct ExpertLoads {
    std::vector<std::int64_t> rows;
    std::int64_t most = 0;
};

class ExpertStep {
public:
    struct Parts {
        const ModelSpec& spec;
        const Kernels& kernels;
        const Kernels& float32_kernels;
        const Int8Kernels& int8_kernels;
        ThreadPool& pool;
        ExpertSpace& space;
    };

    explicit ExpertStep(const Parts& parts) : parts_(parts) {}

    // Computes the results of a layer's experts for rows of activations, in `out` [rows][padded_hidden], which holds
    // the result of the shared expert, if any, on entry.
    // `routed` are the same rows for the router.
    void run(const ExpertsSpec& experts, const LayerWeights& weights, const RowsAt& x, const RowsAt& routed, int rows,
             const RowsAt& out, ExpertLoads& loads);

private:
    // An expert that a row has chosen, with its weight.
    struct Choice {
        int expert;
        float weight;
        int place;  // index among all pairs, sorted by expert
    };
    // The pairs of rows with one expert, which are adjacent.
    struct Run {
        int expert;
        int first;
        int last;
    };

    template <class Work>
    void for_each_row(int rows, const Work& work);
    void route(const ExpertsSpec& experts, const LayerWeights& weights, const RowsAt& x, int rows);
    void weigh_inputs();
    static void make_scores(const ExpertsSpec& experts, float* logits);
    static float choose(const ExpertsSpec& experts, const float* keys, Choice* choices);
    void choose_by_logits(const ExpertsSpec& experts, const float* logits, int row);
    void choose_by_scores(const ExpertsSpec& experts, const std::vector<float>& correction, float* logits, int row);
    void scale(const ExpertsSpec& experts, const std::vector<float>& scales, int row);
    void sort(const ExpertsSpec& experts);
    void count(ExpertLoads& loads) const;
    void multiply(const std::vector<Matrix>& matrices, const RowsAt& x, Finish finish, const RowsAt& out);
    void multiply(const Matrix& matrix, const GemmTask& task, const Run& run) const;
    void round(const Matrix& matrix, const RowsAt& x);
    void add_up(const ExpertsSpec& experts, const LayerWeights& weights, int row, float* out) const;

    const Parts parts_;
    std::vector<Choice> choices_;  // [rows][per_token], by expert number
    std::vector<int> rows_;  // row of each pair, by place
    std::vector<Run> runs_;
};

}  // namespace weft
