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

// The addition to the matrix `name`: `b` [out][rank] times `a` [rank][in].
struct LowRank {
    std::string name;
    Source a;
    Source b;
};

// A replacement of "embed" or "head".
struct Whole {
    std::string name;
    Source matrix;
};

struct AdapterParts {
    std::vector<LowRank> low_rank;
    std::vector<Whole> whole;
};

// The addition to one packed matrix: rows times `a`, times `b`. If matrices such as q, k and v are packed into one,
// their ranks are side by side, and `b` is 0 between a matrix and ranks of another one.
struct Delta {
    Matrix a;
    Matrix b;

    int rank() const { return b.depth; }  // the padded rank
};

// Memory of an adapter on every matrix, per rank: for matrices that are packed alone, in pairs, and in threes. Ranks
// of matrices that are packed together are side by side, and are padded together.
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

    // The addition to products with `matrix`, which is one of the model's or `head()`; null if there is none.
    const Delta* find(const Matrix& matrix) const;
    // The replacement of the model's head; null if there is none.
    const Matrix* head() const { return head_.panels == nullptr ? nullptr : &head_; }

    // Writes the replacement of a token's embedding to `out[0 .. hidden_size)`; returns false if there is none.
    bool embed(int token, float* out) const;
    // The addition to an embedding is `low_of` the token times this matrix; null if there is none.
    const Matrix* embed_b() const { return embed_b_.panels == nullptr ? nullptr : &embed_b_; }
    // Writes the `embed_b()->depth` elements of a token, widened.
    void low_of(int token, float* out) const;

private:
    // A part of the adapter, and the matrix that it belongs to.
    struct Placed {
        const LowRank* part;
        Place place;
        const Matrix* matrix;  // the matrix that the part is added to
        int first_rank;  // index of the part's first rank in its delta
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
    std::map<const Matrix*, Delta> deltas_;  // by the matrix that is added to
    Matrix head_;
    Matrix embed_b_;
    // Tables with one row per token, not in panels.
    Matrix embed_a_;
    Matrix embedding_;
};

}  // namespace weft
