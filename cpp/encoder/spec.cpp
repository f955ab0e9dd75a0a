#include "encoder/spec.h"

#include <limits>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

constexpr int kMostSize = 1 << 24;

void need(bool holds, const std::string& field, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(field + " must be " + allowed);
}

void check_size(int value, const std::string& field, int least) {
    need(value >= least && value <= kMostSize, field, "from " + std::to_string(least) + " to 2^24");
}

void check_layer(const EncoderSpec& spec, const EncoderLayer& layer) {
    const int num_ropes = static_cast<int>(spec.ropes.size());
    if (layer.rope) need(*layer.rope >= 0 && *layer.rope < num_ropes, "layers: rope", "the index of a rope");
    if (layer.reach) need(*layer.reach >= 0, "layers: reach", "at least 0");
    need(layer.has_attention_norm || spec.norm_before, "layers: has_attention_norm",
         "true where norms come after");
}

}  // namespace

void check(const EncoderSpec& spec) {
    check_size(spec.vocab_size, "vocab_size", 1);
    check_size(spec.hidden_size, "hidden_size", 1);
    check_size(spec.intermediate_size, "intermediate_size", 1);
    check_size(spec.num_heads, "num_heads", 1);
    check_size(spec.num_positions, "num_positions", 0);
    check_size(spec.num_token_types, "num_token_types", 0);
    need(spec.hidden_size % spec.num_heads == 0, "num_heads", "a divisor of hidden_size");
    need(spec.position_offset >= 0 && (spec.num_positions == 0 || spec.position_offset < spec.num_positions),
         "position_offset", "from 0 to under num_positions");
    const std::int64_t columns = 3 * static_cast<std::int64_t>(spec.num_heads) * spec.padded_dim();
    need(columns <= std::numeric_limits<int>::max() / 2, "num_heads", "small enough for hidden_size");
    need(!spec.layers.empty() && spec.layers.size() <= 1 << 16, "layers", "from 1 to 2^16 layers");
    for (const Rope& rope : spec.ropes) {
        const int pairs = static_cast<int>(rope.frequencies.size());
        need(pairs >= 1 && 2 * pairs <= spec.head_dim(), "ropes", "at most head_dim / 2 frequencies");
    }
    for (const EncoderLayer& layer : spec.layers) check_layer(spec, layer);
}

}  // namespace weft
