#include "tests/adapters.h"

#include <list>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/load.h"
#include "tests/parts.h"

namespace weft {
namespace {

using Random = std::mt19937;

// An adapter of some of the model's matrices, with the memory of its parts.
class RandomAdapter {
public:
    RandomAdapter(const ModelSpec& s, unsigned seed) : random_(seed) {
        for (std::size_t i = 0; i < s.layers.size(); i++) {
            const std::string prefix = "layers." + std::to_string(i) + ".";
            if (const auto& recurrence = s.layers[i].recurrence) {
                for (const auto& [name, rows, columns] : recurrent_matrices(s, *recurrence))
                    maybe(prefix + name, rows, columns);
            }
            if (s.layers[i].conv_width > 0) {
                maybe(prefix + "conv_in", 3 * s.hidden_size, s.hidden_size);
                maybe(prefix + "conv_out", s.hidden_size, s.hidden_size);
            }
            if (s.layers[i].has_attention()) {
                for (const auto& [name, rows, columns] : attention_matrices(s, s.layers[i]))
                    maybe(prefix + name, rows, columns);
            }
            const int inner = s.mlp_size(s.layers[i]);
            if (inner > 0 && s.is_gated) maybe(prefix + "gate", inner, s.hidden_size);
            if (inner > 0) maybe(prefix + "up", inner, s.hidden_size);
            if (inner > 0) maybe(prefix + "down", s.hidden_size, inner);
        }
        if (s.has_head) maybe("head", s.head_columns(), s.hidden_size);
        if (!s.joins_hidden) maybe("embed", s.hidden_size, s.vocab_size);
        if (s.has_head && draw(random_, 0, 3) == 0) parts_.whole.push_back({"head", tensor(s.head_columns(), s.hidden_size)});
        if (!s.joins_hidden && draw(random_, 0, 3) == 0) parts_.whole.push_back({"embed", tensor(s.vocab_size, s.hidden_size)});
    }

    const AdapterParts& parts() const { return parts_; }

    // The same adapter with one part that fits no matrix.
    AdapterParts broken() {
        AdapterParts parts = parts_;
        if (parts.low_rank.empty()) parts.low_rank.push_back({"layers.0.q", {}, {}});
        LowRank& part = parts.low_rank.back();
        switch (draw(random_, 0, 5)) {
            case 0: part.name = "layers.7.q"; break;
            case 5: part.name = "layers.0.experts.0.up"; break;
            case 1: part.name = "norm"; break;
            case 2: part.a.rows++; break;
            case 3: part.b.columns = part.a.rows = 0; break;
            default: part.b.rows--; break;
        }
        return parts;
    }

private:
    void maybe(const std::string& name, int rows, int columns) {
        if (draw(random_, 0, 2) == 0) return;
        const int rank = draw(random_, 1, 40);
        parts_.low_rank.push_back({name, tensor(rank, columns), tensor(rows, rank)});
    }

    Source tensor(int rows, int columns) {
        std::vector<float>& values = tensors_.emplace_back();
        values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
        for (float& value : values) value = static_cast<float>(draw(random_, -100, 100)) / 900.0F;
        return {values.data(), Stored::kFloat32, rows, columns};
    }

    Random random_;
    std::list<std::vector<float>> tensors_;
    AdapterParts parts_;
};

}  // namespace

void add_adapters(Model& model, unsigned seed) {
    for (int id = 1; id <= 3; id++) {
        RandomAdapter adapter(model.spec(), seed * 4 + static_cast<unsigned>(id));
        model.add_adapter(id, adapter.parts());
        bool is_refused = false;
        try {
            model.add_adapter(9, adapter.broken());
        } catch (const std::invalid_argument&) {
            is_refused = true;
        }
        need(is_refused, "a broken adapter was taken", seed);
    }
    model.remove_adapter(3);
}

}  // namespace weft
