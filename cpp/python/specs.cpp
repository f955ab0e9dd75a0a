// The specs of a model, as attributes that Python sets.
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "model/adapters.h"
#include "model/weights.h"
#include "python/arrays.h"

namespace {

weft::GroupFormat group_format(int bits, int group, const std::string& offset, const std::string& scales) {
    return {bits, group,
            choice<weft::Offset>("offset", offset, {{"symmetric", weft::Offset::kSymmetric},
                                                    {"zeros", weft::Offset::kZeros},
                                                    {"minimums", weft::Offset::kMinimums},
                                                    {"e2m1", weft::Offset::kE2m1}}),
            choice<weft::ScaleType>("scales", scales, {{"float32", weft::ScaleType::kFloat32},
                                                       {"bfloat16", weft::ScaleType::kBfloat16},
                                                       {"float16", weft::ScaleType::kFloat16}})};
}

weft::Norm norm_named(const std::string& name) {
    return choice<weft::Norm>("norm", name, {{"rms", weft::Norm::kRms}, {"layer", weft::Norm::kLayer}});
}

weft::Activation activation_named(const std::string& name) {
    return choice<weft::Activation>("activation", name,
                                    {{"silu", weft::Activation::kSilu},
                                     {"gelu", weft::Activation::kGelu},
                                     {"gelu_tanh", weft::Activation::kGeluTanh},
                                     {"relu", weft::Activation::kRelu},
                                     {"tanh", weft::Activation::kTanh},
                                     {"relu_squared", weft::Activation::kReluSquared},
                                     {"xielu", weft::Activation::kXielu}});
}

weft::ProjectionSpec projection(const std::string& name, int input, int output, const std::string& norm, int norm_size,
                                float norm_eps, int inner, const std::string& activation) {
    return {name, input, norm_size, norm_named(norm), norm_eps, inner, activation_named(activation), output};
}

}  // namespace

void bind_specs(nb::module_& module) {
    using weft::ModelSpec;
    nb::class_<weft::GroupFormat>(module, "GroupFormat")
        .def(nb::new_(&group_format), nb::arg("bits"), nb::arg("group"), nb::arg("offset"), nb::arg("scales"));
    nb::class_<weft::ExpertsSpec>(module, "ExpertsSpec")
        .def(nb::init<>())
        .def_rw("count", &weft::ExpertsSpec::count)
        .def_rw("per_token", &weft::ExpertsSpec::per_token)
        .def_rw("inner_size", &weft::ExpertsSpec::inner_size)
        .def_rw("shared_size", &weft::ExpertsSpec::shared_size)
        .def_rw("has_shared_gate", &weft::ExpertsSpec::has_shared_gate)
        .def_rw("is_normalized", &weft::ExpertsSpec::is_normalized)
        .def_rw("is_sigmoid", &weft::ExpertsSpec::is_sigmoid)
        .def_rw("has_correction", &weft::ExpertsSpec::has_correction)
        .def_rw("weighs_inputs", &weft::ExpertsSpec::weighs_inputs)
        .def_rw("num_groups", &weft::ExpertsSpec::num_groups)
        .def_rw("groups_per_token", &weft::ExpertsSpec::groups_per_token)
        .def_rw("scale", &weft::ExpertsSpec::scale)
        .def_rw("epsilon", &weft::ExpertsSpec::epsilon)
        .def_rw("has_norms", &weft::ExpertsSpec::has_norms)
        .def_rw("up_groups", &weft::ExpertsSpec::up_groups, nb::arg().none())
        .def_rw("down_groups", &weft::ExpertsSpec::down_groups, nb::arg().none());
    nb::class_<weft::LatentSpec>(module, "LatentSpec")
        .def(nb::init<>())
        .def_rw("rank", &weft::LatentSpec::rank)
        .def_rw("rope_size", &weft::LatentSpec::rope_size)
        .def_rw("key_size", &weft::LatentSpec::key_size)
        .def_rw("value_size", &weft::LatentSpec::value_size)
        .def_rw("query_rank", &weft::LatentSpec::query_rank)
        .def_rw("is_interleaved", &weft::LatentSpec::is_interleaved)
        .def_rw("norm_eps", &weft::LatentSpec::norm_eps);
    nb::class_<weft::MambaSpec>(module, "MambaSpec")
        .def(nb::init<>())
        .def_rw("num_heads", &weft::MambaSpec::num_heads)
        .def_rw("head_dim", &weft::MambaSpec::head_dim)
        .def_rw("state_dim", &weft::MambaSpec::state_dim)
        .def_rw("num_groups", &weft::MambaSpec::num_groups)
        .def_rw("conv_width", &weft::MambaSpec::conv_width)
        .def_rw("min_step", &weft::MambaSpec::min_step)
        .def_rw("max_step", &weft::MambaSpec::max_step)
        .def_rw("is_normed", &weft::MambaSpec::is_normed)
        .def_rw("is_gated_first", &weft::MambaSpec::is_gated_first);
    nb::class_<weft::Mamba1Spec>(module, "Mamba1Spec")
        .def(nb::init<>())
        .def_rw("inner_size", &weft::Mamba1Spec::inner_size)
        .def_rw("state_dim", &weft::Mamba1Spec::state_dim)
        .def_rw("step_rank", &weft::Mamba1Spec::step_rank)
        .def_rw("conv_width", &weft::Mamba1Spec::conv_width)
        .def_rw("has_norms", &weft::Mamba1Spec::has_norms)
        .def_rw("step_eps", &weft::Mamba1Spec::step_eps);
    nb::class_<weft::DeltaSpec>(module, "DeltaSpec")
        .def(nb::init<>())
        .def_rw("num_key_heads", &weft::DeltaSpec::num_key_heads)
        .def_rw("num_value_heads", &weft::DeltaSpec::num_value_heads)
        .def_rw("key_size", &weft::DeltaSpec::key_size)
        .def_rw("value_size", &weft::DeltaSpec::value_size)
        .def_rw("conv_width", &weft::DeltaSpec::conv_width)
        .def_rw("is_by_key_head", &weft::DeltaSpec::is_by_key_head);
    nb::class_<weft::LayerSpec>(module, "LayerSpec")
        .def(nb::init<>())
        .def_rw("rope", &weft::LayerSpec::rope, nb::arg().none())
        .def_rw("window", &weft::LayerSpec::window, nb::arg().none())
        .def_rw("chunk", &weft::LayerSpec::chunk)
        .def_rw("temperature_interval", &weft::LayerSpec::temperature_interval)
        .def_rw("temperature_slope", &weft::LayerSpec::temperature_slope)
        .def_rw("has_attention_norm", &weft::LayerSpec::has_attention_norm)
        .def_rw("has_qk_norm", &weft::LayerSpec::has_qk_norm)
        .def_rw("num_kv_heads", &weft::LayerSpec::num_kv_heads)
        .def_rw("head_dim", &weft::LayerSpec::head_dim)
        .def_rw("intermediate_size", &weft::LayerSpec::intermediate_size)
        .def_rw("kv_layer", &weft::LayerSpec::kv_layer, nb::arg().none())
        .def_rw("conv_width", &weft::LayerSpec::conv_width)
        .def_rw("recurrence", &weft::LayerSpec::recurrence, nb::arg().none())
        .def_rw("is_beside", &weft::LayerSpec::is_beside)
        .def_rw("has_mlp", &weft::LayerSpec::has_mlp)
        .def_rw("qkv_groups", &weft::LayerSpec::qkv_groups, nb::arg().none())
        .def_rw("q_b_groups", &weft::LayerSpec::q_b_groups, nb::arg().none())
        .def_rw("o_groups", &weft::LayerSpec::o_groups, nb::arg().none())
        .def_rw("up_groups", &weft::LayerSpec::up_groups, nb::arg().none())
        .def_rw("down_groups", &weft::LayerSpec::down_groups, nb::arg().none())
        .def_rw("experts", &weft::LayerSpec::experts, nb::arg().none());
    nb::class_<weft::Rope>(module, "Rope")
        .def(nb::init<>())
        .def_rw("frequencies", &weft::Rope::frequencies)
        .def_rw("attention_factor", &weft::Rope::attention_factor)
        .def_rw("axes", &weft::Rope::axes);
    nb::class_<weft::ProjectionSpec>(module, "ProjectionSpec")
        .def(nb::new_(&projection), nb::arg("name"), nb::arg("width"), nb::arg("output"), nb::arg("norm"),
             nb::arg("norm_size"), nb::arg("norm_eps"), nb::arg("inner"), nb::arg("activation"));
    nb::class_<ModelSpec>(module, "ModelSpec")
        .def(nb::init<>())
        .def_rw("vocab_size", &ModelSpec::vocab_size)
        .def_rw("num_outputs", &ModelSpec::num_outputs)
        .def_rw("has_int8_cache", &ModelSpec::has_int8_cache)
        .def_rw("hidden_size", &ModelSpec::hidden_size)
        .def_rw("intermediate_size", &ModelSpec::intermediate_size)
        .def_rw("num_heads", &ModelSpec::num_heads)
        .def_rw("num_kv_heads", &ModelSpec::num_kv_heads)
        .def_rw("head_dim", &ModelSpec::head_dim)
        .def_rw("layers", &ModelSpec::layers)
        .def_rw("ropes", &ModelSpec::ropes)
        .def_rw("is_causal", &ModelSpec::is_causal)
        .def_rw("num_positions", &ModelSpec::num_positions)
        .def_rw("position_offset", &ModelSpec::position_offset)
        .def_rw("num_token_types", &ModelSpec::num_token_types)
        .def_rw("has_embed_norm", &ModelSpec::has_embed_norm)
        .def_rw("norm_eps", &ModelSpec::norm_eps)
        .def_rw("is_gated", &ModelSpec::is_gated)
        .def_rw("attention_scale", &ModelSpec::attention_scale)
        .def_rw("attention_soft_cap", &ModelSpec::attention_soft_cap)
        .def_rw("has_sinks", &ModelSpec::has_sinks)
        .def_rw("has_output_gate", &ModelSpec::has_output_gate)
        .def_rw("has_value_norm", &ModelSpec::has_value_norm)
        .def_rw("has_qk_weights", &ModelSpec::has_qk_weights)
        .def_rw("per_layer_size", &ModelSpec::per_layer_size)
        .def_rw("has_layer_scales", &ModelSpec::has_layer_scales)
        .def_rw("swiglu_limit", &ModelSpec::swiglu_limit)
        .def_rw("swiglu_alpha", &ModelSpec::swiglu_alpha)
        .def_rw("final_soft_cap", &ModelSpec::final_soft_cap)
        .def_rw("latent", &ModelSpec::latent, nb::arg().none())
        .def_rw("embedding_multiplier", &ModelSpec::embedding_multiplier)
        .def_rw("residual_multiplier", &ModelSpec::residual_multiplier)
        .def_rw("logits_divisor", &ModelSpec::logits_divisor)
        .def_rw("joins_hidden", &ModelSpec::joins_hidden)
        .def_rw("has_head", &ModelSpec::has_head)
        .def_rw("has_last_norm", &ModelSpec::has_last_norm)
        .def_rw("projections", &ModelSpec::projections)
        .def_rw("num_cross_keys", &ModelSpec::num_cross_keys)
        .def_prop_ro("cross_bytes", &ModelSpec::cross_bytes)
        // Of each layer that stores keys and values: bytes of the keys of 16 tokens.
        .def_prop_ro("tile_bytes",
             [](const ModelSpec& spec) {
                 std::vector<std::size_t> bytes;
                 for (const weft::LayerSpec& layer : spec.layers)
                     if (layer.stores_kv()) bytes.push_back(spec.tile_bytes(layer));
                 return bytes;
             })
        .def_rw("tied_head", &ModelSpec::tied_head)
        .def_prop_rw(
            "element",
            [](const ModelSpec& spec) {
                return spec.element == weft::Element::kBfloat16 ? "bfloat16" : "float32";
            },
            [](ModelSpec& spec, const std::string& name) { spec.element = element_named(name); })
        .def("sizes",
             [](const ModelSpec& spec) {
                 check(spec);
                 const weft::AdapterBytes adapter = weft::adapter_bytes(spec);
                 return std::make_tuple(weft::weight_bytes(spec), spec.kv_bytes_per_token(),
                                        spec.num_convolutions() * spec.state_bytes(), adapter.per_rank,
                                        adapter.padded_to);
             })
        .def("set_norm",
             [](ModelSpec& spec, const std::string& name) {
                 spec.norm = norm_named(name);
             })
        .def("set_norm_placement",
             [](ModelSpec& spec, const std::string& name) {
                 spec.norm_placement = choice<weft::NormPlacement>("norm_placement", name,
                                                                   {{"before", weft::NormPlacement::kBefore},
                                                                    {"after", weft::NormPlacement::kAfter},
                                                                    {"both", weft::NormPlacement::kBoth},
                                                                    {"sum", weft::NormPlacement::kSum},
                                                                    {"parallel", weft::NormPlacement::kParallel}});
             })
        .def("set_qk_norm",
             [](ModelSpec& spec, const std::string& name) {
                 spec.qk_norm = choice<weft::QkNorm>("qk_norm", name,
                                                     {{"none", weft::QkNorm::kNone},
                                                      {"head", weft::QkNorm::kHead},
                                                      {"full", weft::QkNorm::kFull},
                                                      {"head_after_rope", weft::QkNorm::kHeadAfterRope},
                                                      {"head_layer", weft::QkNorm::kHeadLayer}});
             })
        .def("set_quantization",
             [](ModelSpec& spec, const std::string& name) {
                 spec.quantization = quantization_named(name);
             })
        .def("set_activation", [](ModelSpec& spec, const std::string& name) {
            spec.activation = activation_named(name);
        });
}
