// The additions of adapters to the products of a step. Rows with the same adapter are multiplied with it together; a
// row's result does not depend on other rows in its group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "model/adapters.h"
#include "model/row_buffer.h"
#include "model/thread_pool.h"

namespace weft {

// Memory for the adapters of one step; kept between steps, and enlarged when a step needs more.
struct AdapterSpace {
    RowBuffer taken;  // activations [depth] of rows that are not adjacent
    Region sums;      // float [rows][rank]
    Region low;       // activations [rows][rank], rounded from `sums`
    Region added;     // float [threads][rows][columns of a few panels]
    Region embedded;  // float [rows][padded_hidden]
};

class AdapterStep {
public:
    AdapterStep(const ModelSpec& spec, const Kernels& kernels, ThreadPool& pool, AdapterSpace& space);

    // Sets the rows, by the adapter of each: null for none.
    void take(std::vector<const Adapter*> by_row);
    bool is_idle() const { return groups_.empty(); }

    // Prepares the additions to the embeddings of the rows; then `embed` applies them row by row.
    void begin_embedding(std::span<const std::int32_t> token_ids);
    void embed(int row, int token, float* hidden) const;

    // Computes the first half of the additions to `x` times `matrix`; `x` has rows of activations, or of floats.
    // `multiply` computes the second half.
    void begin(const Matrix& matrix, const RowsAt& x);
    bool has_begun() const { return !products_.empty(); }
    void end() { products_.clear(); }
    // Runs `gemm` of the task with the additions. Threads do this for panels of their own.
    template <class Task, class Gemm>
    void multiply(int thread, Task task, Gemm gemm) const {
        const int end = task.last_panel;
        task.added = added(thread);
        task.added_stride = panels_at_once_ * kPanelColumns;
        task.added_places = places_.data();
        for (int panel = task.first_panel; panel < end; panel += panels_at_once_) {
            task.first_panel = panel;
            task.last_panel = std::min(end, panel + panels_at_once_);
            add_panels(panel, task.last_panel, added(thread), task.added_stride);
            gemm(task);
        }
    }

    // A run of adjacent rows whose adapter has a head of its own.
    struct HeadRun {
        const Adapter* adapter;
        int first_row;
        int num_rows;
    };
    std::vector<HeadRun> head_runs() const;

private:
    struct Group {
        const Adapter* adapter;
        std::vector<int> rows;
    };
    // The product of a group's rows with one delta.
    struct Product {
        const Group* group;
        const Matrix* a;
        const Matrix* b;
        int first_place;  // index of the group's first row among the rows of all products
        std::ptrdiff_t low_start;  // start of its rows in `low`
    };
    // Some rows of a product, which one thread computes.
    struct Piece {
        const Product* product;
        int first_row;  // index in the group
        int last_row;
    };

    void add_product(const Group& group, const Matrix* a, const Matrix* b);
    void make_room(int depth);
    template <class Work>
    void for_pieces(const Work& work);
    void take_low(const Piece& piece, const RowsAt& x) const;
    void look_up(const Piece& piece, std::span<const std::int32_t> token_ids) const;
    RowsAt rows_of(const Piece& piece, const RowsAt& x, int depth) const;
    void add_panels(int first_panel, int last_panel, float* out, std::ptrdiff_t stride) const;
    float* sums(const Piece& piece) const;
    std::byte* low(const Product& product, int row) const;
    float* added(int thread) const;

    const ModelSpec& spec_;
    const Kernels& kernels_;
    ThreadPool& pool_;
    AdapterSpace& space_;
    std::vector<const Adapter*> by_row_;
    std::vector<Group> groups_;
    std::vector<Product> products_;
    std::vector<std::int32_t> places_;  // by row, counted from 1; 0: no addition
    int num_places_ = 0;
    std::ptrdiff_t low_size_ = 0;
    int panels_at_once_ = 1;
};

}  // namespace weft
