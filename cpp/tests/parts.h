// Random inputs for parts of the core that no whole model is needed for; see fuzz.cpp.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "model/pack.h"
#include "model/spec.h"

namespace weft {

// A number from `low` to `high`, both included.
int draw(std::mt19937& random, int low, int high);

// Ends the program where it does not hold, and says of which seed.
void need(bool holds, const char* what, unsigned seed);

// A layer's experts, of any sizes.
ExpertsSpec draw_experts(std::mt19937& random);

// Makes attention latent, of any sizes, and takes back what does not go with that.
void draw_latent(std::mt19937& random, ModelSpec& spec);

// Short convolutions of one width in place of attention, in some layers of some models; before `draw_formats`.
void draw_convolutions(std::mt19937& random, ModelSpec& spec);

// Mamba-2 and gated delta nets in place of attention, likewise.
void draw_recurrences(std::mt19937& random, ModelSpec& spec);

// How the weights of linear layers lie, where other rounded weights are int8.
void draw_formats(std::mt19937& random, ModelSpec& spec);

// That of a matrix, by the name that it is loaded by.
const std::optional<GroupFormat>& format_of(const ModelSpec& spec, const std::string& name);

// Random numbers in groups.
class GroupedArrays {
public:
    GroupedArrays(std::mt19937& random, const GroupFormat& format, int rows, int columns);

    Source source() const;
    GroupedArrays broken() const;  // the same with a scale that is no number

private:
    GroupFormat format_;
    int rows_;
    int columns_;
    int groups_;
    std::vector<std::uint8_t> numbers_;
    std::vector<std::byte> scales_;
    std::vector<std::byte> offsets_;
};

// Int8 products, and those of weights in groups: the bits of the portable path, rows that hold NaN or infinity
// included; sizes that do not fit are refused.
void check_products(unsigned seed, const std::string& path);

// Attention is divided so that all heads are done, and threads share tasks only where all end sooner.
void check_attention_tasks(unsigned seed);

// Rows of sequences that begin with the same tiles: planned to attend together, and to the bits of each alone, by
// one thread or several.
void check_shared_prefixes(unsigned seed, const std::string& path);

}  // namespace weft
