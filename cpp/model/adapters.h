// LoRA adapters, packed like the model's own weights.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/pack.h"
#include "model/region.h"
#include "model/spec.h"
#include "model/thread_pool.h"
#include "model/weights.h"

namespace weft {

// What is added to the matrix `name`: `b` [out][rank] times `a` [rank][in].
struct LowRank {
    std::string name;
    Source a;
    Source b;
};

// What takes the place of "embed" or "head".
struct Whole {
    std::string name;
    Source matrix;
};

struct AdapterParts {
    std::vector<LowRank> low_rank;
    std::vector<Whole> whole;
};

// What is added to one packed matrix: rows times `a`, and that times `b`. Of matrices that are packed
// into one, such as q, k and v, the ranks lie side by side; `b` is 0 where they do not belong together.
struct Delta {
    Matrix a;
    Matrix b;

    int rank() const { return b.depth; }  // padded
};

// Memory of an adapter that is on every matrix: by rank, of those that are packed alone, in pairs and in
// threes. The ranks of those that are packed together lie side by side, and are padded together.
struct AdapterBytes {
    std::array<std::size_t, 3> per_rank;
    int padded_to;
};

AdapterBytes adapter_bytes(const ModelSpec& spec);

class Adapter {
public:
    // Throws std::invalid_argument for a part that fits no matrix of the model.
    Adapter(const ModelSpec& spec, const Weights& weights, const AdapterParts& parts, ThreadPool& pool);
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;

    // What is added to products with `matrix`, which is the model's or `head()`; null: nothing.
    const Delta* find(const Matrix& matrix) const;
    // What takes the place of the model's head; null: nothing.
    const Matrix* head() const { return head_.panels == nullptr ? nullptr : &head_; }

    // What takes the place of a token's embedding, into `out[0 .. hidden_size)`; false: nothing.
    bool embed(int token, float* out) const;
    // What is added to the embedding: `low_of` the token, times this; null: nothing.
    const Matrix* embed_b() const { return embed_b_.panels == nullptr ? nullptr : &embed_b_; }
    // `embed_b()->depth` elements of a token, widened.
    void low_of(int token, float* out) const;

private:
    // One of the parts, and where it belongs.
    struct Placed {
        const LowRank* part;
        Place place;
        const Matrix* matrix;  // that it is added to
        int first_rank;        // of those in its delta
    };

    void plan(const Whole& whole);
    void plan(const LowRank& part, const Weights& weights);
    void allocate();
    void pack(const Placed& placed, ThreadPool& pool);
    void pack(const Whole& whole, ThreadPool& pool);
    void pack_embedding(const LowRank& part, ThreadPool& pool);

    const ModelSpec spec_;
    Region region_;
    std::vector<Placed> placed_;
    std::map<const Matrix*, Delta> deltas_;  // by the matrix that they are added to
    Matrix head_;
    Matrix embed_b_;
    // Tables: their columns are tokens, row by row, and not in panels.
    Matrix embed_a_;
    Matrix embedding_;
};

}  // namespace weft
