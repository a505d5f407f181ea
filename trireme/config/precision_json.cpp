#include <trireme/config/precision_json.h>

#include <nlohmann/json.hpp>

#include <cmath>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using precision::PrecisionOptions;
using precision::Type;

constexpr double kLargestScale = 0x1p127; // of fp32's powers of two

// One of DeepSpeed's names; check_keys() refuses others.
Type type_of(const std::string& name) {
  if (name == "fp32") {
    return Type::fp32;
  }
  return name == "bf16" || name == "bfloat16" || name == "torch.bfloat16" ? Type::bf16 : Type::fp16;
}

// The only text that check_keys() accepts.
bool is_auto(const Values& section) {
  const JsonNode* enabled = section.find("enabled");
  return enabled != nullptr && enabled->kind() == JsonNode::Kind::string;
}

bool is_enabled(const Values& section) {
  return !is_auto(section) && section.get("enabled", false);
}

void read_loss_scale(const Values& fp16, precision::LossScaleOptions& out) {
  out.loss_scale = fp16.get("loss_scale", out.loss_scale);
  out.initial_scale_power = fp16.get("initial_scale_power", out.initial_scale_power);
  out.loss_scale_window = fp16.get("loss_scale_window", out.loss_scale_window);
  out.hysteresis = fp16.get("hysteresis", out.hysteresis);
  out.consecutive_hysteresis = fp16.get("consecutive_hysteresis", out.consecutive_hysteresis);
  out.min_loss_scale = fp16.get("min_loss_scale", out.min_loss_scale);
}

// Checked only if the loss is scaled: files often keep settings that nothing uses.
void check_loss_scale(const Values& fp16, const precision::LossScaleOptions& options) {
  if (options.loss_scale > kLargestScale) {
    fp16.find("loss_scale")
        ->fail(concat(options.loss_scale, " times a loss is infinite in fp32"), "Write 0 for a dynamic scale.");
  }
  const double first = std::ldexp(1.0, static_cast<int>(options.initial_scale_power));
  if (options.loss_scale == 0 && options.min_loss_scale > first) {
    fp16.find("min_loss_scale")
        ->fail(
            concat(options.min_loss_scale, " is more than the first scale, ", first, " (2 to the initial_scale_power)"),
            "Lower it, or raise initial_scale_power.");
  }
}

fp8::Options read_fp8(const Values& section) {
  fp8::Options out;
  out.enabled = section.get("enabled", out.enabled);
  const std::string recipe = section.get<std::string>("recipe", fp8::recipe_name(out.recipe));
  for (const fp8::Recipe one : {fp8::Recipe::tensorwise, fp8::Recipe::rowwise, fp8::Recipe::rowwise_with_gw_hp}) {
    out.recipe = recipe == fp8::recipe_name(one) ? one : out.recipe;
  }
  out.round_scales_to_power_of_2 = section.get("round_scales_to_power_of_2", out.round_scales_to_power_of_2);
  out.filter_fqns = section.get("filter_fqns", out.filter_fqns);
  return out;
}

void check_autocast(const Values& autocast, const Values& fp16, const Values& bf16) {
  for (const Values* other : {&fp16, &bf16}) {
    if (is_enabled(autocast) && is_enabled(*other)) {
      const JsonNode& enabled = *other->find("enabled");
      autocast.find("enabled")->fail(concat("autocast casts fp32 parameters, but ", enabled.path(), " at ",
                                            enabled.where(), " makes them lower already"),
                                     "Enable one of the two.");
    }
  }
}

} // namespace

Values bf16_section(const Values& engine) {
  const Values old_name = engine.section("bfloat16");
  const bool old = engine.find("bf16") == nullptr || is_enabled(old_name) || is_auto(old_name);
  return engine.section(old ? "bfloat16" : "bf16");
}

PrecisionOptions read_precision(const Values& engine) {
  const Values fp16 = engine.section("fp16");
  const Values bf16 = bf16_section(engine);
  const Values autocast = engine.section("torch_autocast");
  const Values types = engine.section("data_types");
  check_autocast(autocast, fp16, bf16);

  PrecisionOptions out;
  out.fp8 = read_fp8(engine.section("fp8"));
  out.compute = is_enabled(fp16) ? Type::fp16 : is_enabled(bf16) ? Type::bf16 : Type::fp32;
  out.bf16_if_faster = is_auto(bf16) && !is_enabled(fp16) && !is_enabled(autocast);
  if (out.bf16_if_faster && out.fp8.enabled) { // which needs it
    out.bf16_if_faster = false;
    out.compute = Type::bf16;
  }
  out.cast_inputs = fp16.get("auto_cast", out.cast_inputs);
  out.check_grad_overflow = bf16.get("check_grad_overflow", out.check_grad_overflow);
  out.autocast = is_enabled(autocast);
  out.autocast_type = type_of(autocast.get<std::string>("dtype", "bf16"));
  read_loss_scale(fp16, out.loss_scale);
  if (out.scales_loss()) {
    check_loss_scale(fp16, out.loss_scale);
  }
  const auto communication = engine.maybe<std::string>("communication_data_type");
  if (communication && (type_of(*communication) != out.compute || out.bf16_if_faster)) {
    out.communication = type_of(*communication);
  }
  out.grad_accumulation = type_of(types.get<std::string>("grad_accum_dtype", "fp32"));
  if (out.grad_accumulation == Type::fp16 && out.compute != Type::fp16) {
    types.find("grad_accum_dtype")
        ->fail(concat("gradients of ", precision::type_name(out.compute),
                      " have a wider range than fp16, where their sum is infinite"),
               "Write \"fp32\", or enable fp16.");
  }
  return out;
}

void write_precision(const PrecisionOptions& options, ordered_json& out) {
  const precision::LossScaleOptions& scale = options.loss_scale;
  out["fp16"] = {{"enabled", options.compute == Type::fp16},
                 {"auto_cast", options.cast_inputs},
                 {"loss_scale", scale.loss_scale},
                 {"initial_scale_power", scale.initial_scale_power},
                 {"loss_scale_window", scale.loss_scale_window},
                 {"hysteresis", scale.hysteresis},
                 {"consecutive_hysteresis", scale.consecutive_hysteresis},
                 {"min_loss_scale", scale.min_loss_scale}};
  out["bf16"] = {
      {"enabled", options.bf16_if_faster ? ordered_json("auto") : ordered_json(options.compute == Type::bf16)},
      {"check_grad_overflow", options.check_grad_overflow}};
  out["torch_autocast"] = {{"enabled", options.autocast}, {"dtype", precision::type_name(options.autocast_type)}};
  out["fp8"] = {{"enabled", options.fp8.enabled},
                {"recipe", fp8::recipe_name(options.fp8.recipe)},
                {"round_scales_to_power_of_2", options.fp8.round_scales_to_power_of_2},
                {"filter_fqns", options.fp8.filter_fqns}};
  const auto& communication = options.communication;
  out["communication_data_type"] =
      communication ? ordered_json(precision::type_name(*communication)) : ordered_json(nullptr);
  out["data_types"] = {{"grad_accum_dtype", precision::type_name(options.grad_accumulation)}};
}

} // namespace trireme::config
