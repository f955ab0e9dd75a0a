// Weights in a file that several processes share: their vectors follow the region.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "model/weights.h"

namespace weft {

// Visits the vectors, always in the same order.
template <class Visit>
void Weights::visit_vectors(const Visit& visit) {
    const auto of_matrix = [&](Matrix& matrix) {
        visit(matrix.bias);
        visit(matrix.scales);
    };
    const auto of_norm = [&](NormWeights& of) {
        visit(of.weight);
        visit(of.bias);
    };
    for (LayerWeights& layer : layers) {
        for (Matrix* matrix : layer.matrices())
            of_matrix(*matrix);
        for (std::vector<Matrix>* matrices : {&layer.expert_up, &layer.expert_down})
            for (Matrix& matrix : *matrices) of_matrix(matrix);
        visit(layer.conv);
        visit(layer.conv_bias);
        RecurrentWeights& recurrent = layer.recurrent;
        for (std::vector<float>* vector :
             {&recurrent.step_bias, &recurrent.a_log, &recurrent.skip, &recurrent.output_scale})
            visit(*vector);
        visit(layer.router_correction);
        for (std::vector<float>& vector : layer.xielu) visit(vector);
        visit(layer.router_norm);
        visit(layer.router_scales);
        visit(layer.scale);
        visit(layer.sinks);
        visit(layer.q_a_norm);
        visit(layer.kv_a_norm);
        for (NormWeights* of : layer.norms())
            of_norm(*of);
    }
    for (NormWeights* of : {&embed_norm, &join_embed_norm, &join_hidden_norm, &inputs_norm, &norm}) of_norm(*of);
    for (Matrix* matrix : {&join_embed, &join_hidden, &inputs_join, &head}) of_matrix(*matrix);
    for (ProjectionWeights& projection : projections) {
        of_norm(projection.norm);
        for (Matrix* matrix : {&projection.up, &projection.down}) of_matrix(*matrix);
    }
}

std::string Weights::vector_bytes() {
    if (const std::string name = missing(); !name.empty())
        throw std::invalid_argument("tensor " + name + " was not loaded");
    std::string bytes;
    const auto add = [&](const void* data, std::size_t size) { bytes.append(static_cast<const char*>(data), size); };
    visit_vectors([&](const std::vector<float>& vector) {
        const std::uint64_t count = vector.size();
        add(&count, sizeof count);
        add(vector.data(), vector.size() * sizeof(float));
    });
    return bytes;
}

bool Weights::publish() {
    if (!file_) throw std::invalid_argument("these weights are in no file");
    const std::string bytes = vector_bytes();
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t written = pwrite(file_->descriptor, bytes.data() + done, bytes.size() - done,
                                       static_cast<off_t>(region_.size() + done));
        if (written <= 0) return false;
        done += static_cast<std::size_t>(written);
    }
    return true;
}

void Weights::find_vectors() {
    const std::byte* at = region_.data() + used_;
    std::size_t left = region_.size() - used_;
    const auto take_bytes = [&](std::size_t count, std::size_t size) {
        if (count > left / size) throw std::invalid_argument("the file holds other weights than those of this model");
        const std::byte* taken = at;
        at += count * size;
        left -= count * size;
        return taken;
    };
    visit_vectors([&](std::vector<float>& vector) {
        std::uint64_t count = 0;
        std::memcpy(&count, take_bytes(1, sizeof count), sizeof count);
        const std::byte* values = take_bytes(count, sizeof(float));
        vector.resize(count);
        if (count != 0) std::memcpy(vector.data(), values, count * sizeof(float));
    });
    missing_.clear();
}

}  // namespace weft
