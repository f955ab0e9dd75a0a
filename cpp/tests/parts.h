// Random inputs for parts of the core that need no whole model; see fuzz.cpp.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "model/pack.h"
#include "model/spec.h"

namespace weft {

// Draws a number from `low` to `high`, both included.
int draw(std::mt19937& random, int low, int high);

// Draws numbers from -3.4 to 3.4.
std::vector<float> draw_floats(std::mt19937& random, int count);

// Ends the program, naming the seed, if the condition does not hold.
void need(bool holds, const char* what, unsigned seed);

// Draws the format of a matrix with scales per group.
GroupFormat draw_format(std::mt19937& random);

// The format of a matrix, by the name under which it is loaded.
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

// Checks products of int8 weights and of weights in groups: they have the bits of the portable path, also for rows
// with NaN or infinity; inconsistent sizes are refused.
void check_products(unsigned seed, const std::string& path);

}  // namespace weft
