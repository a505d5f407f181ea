#include <trireme/config/optimizer_json.h>

#include <trireme/base/overloaded.h>
#include <trireme/config/fields.h>

#include <algorithm>
#include <array>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using optim::OptimizerOptions;
using optim::ScheduleOptions;

std::string canonical_type(const JsonNode& section, const char* path) {
  return canonical_choice(path, section.find("type")->as_string());
}

void fields(const auto& each, optim::AdamOptions& o) {
  each.pair("betas", o.beta1, o.beta2);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("bias_correction", o.bias_correction);
  each("adam_w_mode", o.decoupled_weight_decay);
}

void fields(const auto& each, optim::OneBitAdamOptions& o) {
  each.pair("betas", o.beta1, o.beta2);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("bias_correction", o.bias_correction);
  each.or_auto("freeze_step", o.freeze_step);
}

void fields(const auto& each, optim::ZeroOneAdamOptions& o) {
  each.pair("betas", o.beta1, o.beta2);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("bias_correction", o.bias_correction);
  each("var_freeze_step", o.var_freeze_step);
  each("var_update_scaler", o.var_update_scaler);
  each("local_step_scaler", o.local_step_scaler);
  each("local_step_clipper", o.local_step_clipper);
}

void fields(const auto& each, optim::SgdOptions& o) {
  each("momentum", o.momentum);
  each("dampening", o.dampening);
  each("weight_decay", o.weight_decay);
  each("nesterov", o.nesterov);
}

void fields(const auto& each, optim::LambOptions& o) {
  each.pair("betas", o.beta1, o.beta2);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("bias_correction", o.bias_correction);
  each("max_coeff", o.max_coeff);
  each("min_coeff", o.min_coeff);
  each("eps_inside_sqrt", o.eps_inside_sqrt);
}

void fields(const auto& each, optim::OneBitLambOptions& o) {
  fields(each, static_cast<optim::LambOptions&>(o));
  each.or_auto("freeze_step", o.freeze_step);
  each("coeff_beta", o.coeff_beta);
  each("factor_max", o.factor_max);
  each("factor_min", o.factor_min);
  each("factor_threshold", o.factor_threshold);
}

void fields(const auto& each, optim::LionOptions& o) {
  each.pair("betas", o.beta1, o.beta2);
  each("weight_decay", o.weight_decay);
}

void fields(const auto& each, optim::AdagradOptions& o) {
  each("lr_decay", o.lr_decay);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("initial_accumulator_value", o.initial_accumulator_value);
}

void fields(const auto& each, optim::RmspropOptions& o) {
  each("alpha", o.alpha);
  each("eps", o.eps);
  each("weight_decay", o.weight_decay);
  each("momentum", o.momentum);
  each("centered", o.centered);
}

void check_rule(const Values& values, const optim::SgdOptions& o) {
  if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
    values.find("nesterov")
        ->fail(
            concat("needs momentum > 0 and dampening 0, found momentum ", o.momentum, " and dampening ", o.dampening));
  }
}

void check_rule(const Values& values, const optim::LambOptions& o) {
  if (o.min_coeff > o.max_coeff) {
    const JsonNode* at = values.find("min_coeff") != nullptr ? values.find("min_coeff") : values.find("max_coeff");
    at->fail(concat("min_coeff is ", o.min_coeff, ", more than max_coeff, ", o.max_coeff));
  }
}

void check_rule(const Values& values, const optim::OneBitLambOptions& o) {
  check_rule(values, static_cast<const optim::LambOptions&>(o));
  if (o.factor_min > 1) {
    values.find("factor_min")->fail(concat(o.factor_min, " is more than 1, where the factor begins"));
  }
}

template <class Options>
void check_rule(const Values&, const Options&) {}

void check_adam_type(const Values& values, const JsonNode& section, const std::string& type,
                     const optim::AdamOptions& o) {
  if (!o.decoupled_weight_decay && type == "AdamW") {
    values.find("adam_w_mode")
        ->fail(concat("is false, but ", section.find("type")->where(), " asks for AdamW"),
               "Write \"type\": \"Adam\", or leave adam_w_mode out.");
  }
}

// DeepSpeed's fp32_optimizer_states says with true and false what our state_dtype says by name.
void read_state_type(const Values& values, OptimizerOptions& out) {
  const std::string name = values.get<std::string>("state_dtype", "fp32");
  out.state_type = name == "int8"   ? optim::StateType::int8
                   : name == "bf16" ? optim::StateType::bf16
                                    : optim::StateType::fp32;
  if (!std::holds_alternative<optim::AdamOptions>(out.rule)) {
    return;
  }
  const auto fp32 = values.maybe<bool>("fp32_optimizer_states");
  if (fp32 && values.find("state_dtype") != nullptr && *fp32 != (out.state_type == optim::StateType::fp32)) {
    values.find("fp32_optimizer_states")
        ->fail(concat("contradicts ", values.find("state_dtype")->where(), ", where state_dtype is ", name));
  }
  if (fp32 && !*fp32 && out.state_type == optim::StateType::fp32) {
    out.state_type = optim::StateType::bf16;
  }
}

using ScheduleKind = ScheduleOptions::Kind;
using Warmup = ScheduleOptions::Warmup;

void warmup_fields(const auto& each, ScheduleOptions& s) {
  each("warmup_num_steps", s.warmup_num_steps);
  each.by(
      "warmup_type", s.warmup_type,
      [](const JsonNode& shape) { return shape.as_string() == "linear" ? Warmup::linear : Warmup::log; },
      [](Warmup shape) { return shape == Warmup::linear ? "linear" : "log"; });
}

void fields(const auto& each, ScheduleOptions& s) {
  switch (s.kind) {
    case ScheduleKind::constant:
      break;
    case ScheduleKind::warmup_decay:
      each("total_num_steps", s.total_num_steps);
      [[fallthrough]];
    case ScheduleKind::warmup:
      each("warmup_min_lr", s.warmup_min_lr);
      each("warmup_max_lr", s.warmup_max_lr);
      warmup_fields(each, s);
      break;
    case ScheduleKind::warmup_cosine:
      each("total_num_steps", s.total_num_steps);
      each("warmup_min_ratio", s.warmup_min_ratio);
      each("cos_min_ratio", s.cos_min_ratio);
      warmup_fields(each, s);
      break;
    case ScheduleKind::one_cycle:
      each("cycle_min_lr", s.cycle_min_lr);
      each("cycle_max_lr", s.cycle_max_lr);
      each("decay_lr_rate", s.decay_lr_rate);
      each("cycle_first_step_size", s.cycle_first_step_size);
      each("cycle_second_step_size", s.cycle_second_step_size);
      each("cycle_first_stair_count", s.cycle_first_stair_count);
      each("cycle_second_stair_count", s.cycle_second_stair_count);
      each("decay_step_size", s.decay_step_size);
      each("cycle_momentum", s.cycle_momentum);
      each("cycle_min_mom", s.cycle_min_mom);
      each("cycle_max_mom", s.cycle_max_mom);
      each("decay_mom_rate", s.decay_mom_rate);
      break;
    case ScheduleKind::lr_range_test:
      each("lr_range_test_min_lr", s.lr_range_test_min_lr);
      each("lr_range_test_step_size", s.lr_range_test_step_size);
      each("lr_range_test_step_rate", s.lr_range_test_step_rate);
      each("lr_range_test_staircase", s.lr_range_test_staircase);
      break;
  }
}

// In the order of ScheduleKind; a constant rate has no section.
constexpr std::array kScheduleTypes = {"", "LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};

void check_decay_end(const Values& values, const ScheduleOptions& schedule, std::vector<std::string>& notes) {
  if (schedule.total_num_steps < schedule.warmup_num_steps) {
    const JsonNode& total = *values.find("total_num_steps");
    notes.push_back(concat(total.where(), ": ", total.path(), " (", schedule.total_num_steps,
                           ") is before the end of the warm-up, step ", schedule.warmup_num_steps,
                           ": the rate never reaches its top."));
  }
}

} // namespace

std::optional<OptimizerOptions> read_optimizer(const JsonNode* section) {
  if (section == nullptr) {
    return std::nullopt;
  }
  const std::string type = canonical_type(*section, "engine.optimizer.type");
  const Values values = Values(section, "engine.optimizer").section("params", type);
  OptimizerOptions out;
  const auto read = [&](auto options) {
    options.lr = values.get("lr", options.lr);
    fields(ReadFields(values), options);
    check_rule(values, options);
    out.rule = options;
    return options;
  };
  if (type == "SGD") {
    read(optim::SgdOptions());
  } else if (type == "Lamb" || type == "FusedLamb") {
    read(optim::LambOptions());
  } else if (type == "Lion") {
    read(optim::LionOptions());
  } else if (type == "Adagrad") {
    read(optim::AdagradOptions());
  } else if (type == "RMSprop") {
    read(optim::RmspropOptions());
  } else if (type == "OneBitAdam") {
    read(optim::OneBitAdamOptions());
  } else if (type == "OneBitLamb") {
    read(optim::OneBitLambOptions());
  } else if (type == "ZeroOneAdam") {
    read(optim::ZeroOneAdamOptions());
  } else {
    check_adam_type(values, *section, type, read(optim::AdamOptions()));
  }
  read_state_type(values, out);
  out.decay_rule = values.get<std::string>("weight_decay_rule", "all") == "matrices" ? optim::DecayRule::matrices
                                                                                     : optim::DecayRule::all;
  return out;
}

ScheduleOptions read_schedule(const JsonNode* section, const std::optional<OptimizerOptions>& optimizer,
                              std::vector<std::string>& notes) {
  ScheduleOptions out;
  if (section == nullptr) {
    return out;
  }
  const std::string type = canonical_type(*section, "engine.scheduler.type");
  const Values values = Values(section, "engine.scheduler").section("params", type);
  for (const Key& key : find_section("engine.scheduler.params", type)->keys) {
    if (key.default_value == "required" && values.find(std::string(key.name)) == nullptr) {
      section->fail(concat(type, " needs \"params\": {\"", key.name, "\": ...}"), std::string(key.text));
    }
  }
  out.kind = static_cast<ScheduleKind>(std::ranges::find(kScheduleTypes, type) - kScheduleTypes.begin());
  fields(ReadFields(values), out);
  if (out.kind == ScheduleKind::warmup_decay && !out.warmup_max_lr) {
    out.warmup_max_lr = 0.001; // DeepSpeed's default is not the optimizer's rate here
    if (optimizer && optimizer->lr() != *out.warmup_max_lr) {
      notes.push_back(concat(section->where(), ": ", section->path(),
                             ": WarmupDecayLR rises to 0.001 as in DeepSpeed, not to the optimizer's lr ",
                             optimizer->lr(), ". Write \"warmup_max_lr\" to choose."));
    }
  }
  if (out.kind == ScheduleKind::warmup_decay || out.kind == ScheduleKind::warmup_cosine) {
    check_decay_end(values, out, notes);
  }
  if (out.kind == ScheduleKind::one_cycle && out.cycle_min_lr > out.cycle_max_lr) {
    values.find("cycle_min_lr")
        ->fail(concat(out.cycle_min_lr, " is more than cycle_max_lr, ", out.cycle_max_lr, ", at ",
                      values.find("cycle_max_lr")->where()));
  }
  return out;
}

ordered_json to_json(const std::optional<OptimizerOptions>& optimizer) {
  if (!optimizer) {
    return nullptr;
  }
  ordered_json params = {{"lr", optimizer->lr()}};
  std::visit([&](auto options) { fields(WriteFields(params), options); }, optimizer->rule);
  const char* const type =
      std::visit(Overloaded{
                     [](const optim::SgdOptions&) { return "SGD"; },
                     [](const optim::LambOptions&) { return "Lamb"; },
                     [](const optim::LionOptions&) { return "Lion"; },
                     [](const optim::AdagradOptions&) { return "Adagrad"; },
                     [](const optim::RmspropOptions&) { return "RMSprop"; },
                     [](const optim::OneBitAdamOptions&) { return "OneBitAdam"; },
                     [](const optim::OneBitLambOptions&) { return "OneBitLamb"; },
                     [](const optim::ZeroOneAdamOptions&) { return "ZeroOneAdam"; },
                     [](const optim::AdamOptions& o) { return o.decoupled_weight_decay ? "AdamW" : "Adam"; },
                 },
                 optimizer->rule);
  params["weight_decay_rule"] = optimizer->decay_rule == optim::DecayRule::matrices ? "matrices" : "all";
  params["state_dtype"] = optim::name(optimizer->state_type);
  return {{"type", type}, {"params", params}};
}

ordered_json to_json(const ScheduleOptions& s) {
  if (s.kind == ScheduleKind::constant) {
    return nullptr;
  }
  ordered_json params = ordered_json::object();
  ScheduleOptions copy = s;
  fields(WriteFields(params), copy);
  return {{"type", kScheduleTypes[static_cast<size_t>(s.kind)]}, {"params", params}};
}

} // namespace trireme::config
