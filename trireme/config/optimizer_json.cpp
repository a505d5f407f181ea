#include <trireme/config/optimizer_json.h>

#include <trireme/base/overloaded.h>
#include <trireme/config/key_check.h>

#include <nlohmann/json.hpp>

#include <set>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using optim::OptimizerOptions;
using optim::ScheduleOptions;

std::string canonical_type(const JsonNode& section, const char* path) {
  return canonical_choice(path, section.find("type")->as_string());
}

template <class Options>
void read_betas(const Values& values, Options& out) {
  const auto betas = values.get("betas", std::vector<double>{out.beta1, out.beta2});
  if (betas.size() != 2) {
    values.find("betas")->fail(concat("must be two numbers, found ", betas.size()), "Write [0.9, 0.999].");
  }
  out.beta1 = betas[0];
  out.beta2 = betas[1];
}

void read_adam(const Values& values, const JsonNode& section, const std::string& type, optim::AdamOptions& out) {
  read_betas(values, out);
  out.eps = values.get("eps", out.eps);
  out.bias_correction = values.get("bias_correction", out.bias_correction);
  out.decoupled_weight_decay = values.get("adam_w_mode", out.decoupled_weight_decay);
  if (!out.decoupled_weight_decay && type == "AdamW") {
    values.find("adam_w_mode")
        ->fail(concat("is false, but ", section.find("type")->where(), " asks for AdamW"),
               "Write \"type\": \"Adam\", or leave adam_w_mode out.");
  }
}

std::optional<int64_t> read_freeze_step(const Values& values, std::optional<int64_t> unless_said) {
  const JsonNode* const steps = values.find("freeze_step");
  const bool by_itself = steps != nullptr && steps->kind() == JsonNode::Kind::string; // "auto"
  return by_itself ? std::nullopt : std::optional(values.get<int64_t>("freeze_step", *unless_said));
}

void read_one_bit_adam(const Values& values, optim::OneBitAdamOptions& out) {
  read_betas(values, out);
  out.eps = values.get("eps", out.eps);
  out.bias_correction = values.get("bias_correction", out.bias_correction);
  out.freeze_step = read_freeze_step(values, out.freeze_step);
}

void read_zero_one_adam(const Values& values, optim::ZeroOneAdamOptions& out) {
  read_betas(values, out);
  out.eps = values.get("eps", out.eps);
  out.bias_correction = values.get("bias_correction", out.bias_correction);
  out.var_freeze_step = values.get("var_freeze_step", out.var_freeze_step);
  out.var_update_scaler = values.get("var_update_scaler", out.var_update_scaler);
  out.local_step_scaler = values.get("local_step_scaler", out.local_step_scaler);
  out.local_step_clipper = values.get("local_step_clipper", out.local_step_clipper);
}

void read_sgd(const Values& values, optim::SgdOptions& out) {
  out.momentum = values.get("momentum", out.momentum);
  out.dampening = values.get("dampening", out.dampening);
  out.nesterov = values.get("nesterov", out.nesterov);
  if (out.nesterov && (out.momentum <= 0 || out.dampening != 0)) {
    values.find("nesterov")
        ->fail(concat("needs momentum > 0 and dampening 0, found momentum ", out.momentum, " and dampening ",
                      out.dampening));
  }
}

void read_lamb(const Values& values, optim::LambOptions& out) {
  read_betas(values, out);
  out.eps = values.get("eps", out.eps);
  out.bias_correction = values.get("bias_correction", out.bias_correction);
  out.max_coeff = values.get("max_coeff", out.max_coeff);
  out.min_coeff = values.get("min_coeff", out.min_coeff);
  out.eps_inside_sqrt = values.get("eps_inside_sqrt", out.eps_inside_sqrt);
  if (out.min_coeff > out.max_coeff) {
    const JsonNode* at = values.find("min_coeff") != nullptr ? values.find("min_coeff") : values.find("max_coeff");
    at->fail(concat("min_coeff is ", out.min_coeff, ", more than max_coeff, ", out.max_coeff));
  }
}

void read_one_bit_lamb(const Values& values, optim::OneBitLambOptions& out) {
  read_lamb(values, out);
  out.freeze_step = read_freeze_step(values, out.freeze_step);
  out.coeff_beta = values.get("coeff_beta", out.coeff_beta);
  out.factor_max = values.get("factor_max", out.factor_max);
  out.factor_min = values.get("factor_min", out.factor_min);
  out.factor_threshold = values.get("factor_threshold", out.factor_threshold);
  if (out.factor_min > 1) {
    values.find("factor_min")->fail(concat(out.factor_min, " is more than 1, where the factor begins"));
  }
}

void read_adagrad(const Values& values, optim::AdagradOptions& out) {
  out.lr_decay = values.get("lr_decay", out.lr_decay);
  out.eps = values.get("eps", out.eps);
  out.initial_accumulator_value = values.get("initial_accumulator_value", out.initial_accumulator_value);
}

void read_rmsprop(const Values& values, optim::RmspropOptions& out) {
  out.alpha = values.get("alpha", out.alpha);
  out.eps = values.get("eps", out.eps);
  out.momentum = values.get("momentum", out.momentum);
  out.centered = values.get("centered", out.centered);
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

void read_warmup(const Values& values, ScheduleOptions& out) {
  out.warmup_num_steps = values.get("warmup_num_steps", out.warmup_num_steps);
  const std::string shape = values.get<std::string>("warmup_type", "log");
  out.warmup_type = shape == "linear" ? ScheduleOptions::Warmup::linear : ScheduleOptions::Warmup::log;
}

void read_warmup_lr(const Values& values, ScheduleOptions& out) {
  out.warmup_min_lr = values.get("warmup_min_lr", out.warmup_min_lr);
  out.warmup_max_lr = values.maybe<double>("warmup_max_lr");
}

void read_one_cycle(const Values& values, ScheduleOptions& out) {
  out.cycle_min_lr = values.get("cycle_min_lr", out.cycle_min_lr);
  out.cycle_max_lr = values.get("cycle_max_lr", out.cycle_max_lr);
  out.decay_lr_rate = values.get("decay_lr_rate", out.decay_lr_rate);
  out.cycle_first_step_size = values.get("cycle_first_step_size", out.cycle_first_step_size);
  out.cycle_second_step_size = values.maybe<int64_t>("cycle_second_step_size");
  out.cycle_first_stair_count = values.get("cycle_first_stair_count", out.cycle_first_stair_count);
  out.cycle_second_stair_count = values.maybe<int64_t>("cycle_second_stair_count");
  out.decay_step_size = values.get("decay_step_size", out.decay_step_size);
  out.cycle_momentum = values.get("cycle_momentum", out.cycle_momentum);
  out.cycle_min_mom = values.get("cycle_min_mom", out.cycle_min_mom);
  out.cycle_max_mom = values.get("cycle_max_mom", out.cycle_max_mom);
  out.decay_mom_rate = values.get("decay_mom_rate", out.decay_mom_rate);
  if (out.cycle_min_lr > out.cycle_max_lr) {
    values.find("cycle_min_lr")
        ->fail(concat(out.cycle_min_lr, " is more than cycle_max_lr, ", out.cycle_max_lr, ", at ",
                      values.find("cycle_max_lr")->where()));
  }
}

void read_range_test(const Values& values, ScheduleOptions& out) {
  out.lr_range_test_min_lr = values.get("lr_range_test_min_lr", out.lr_range_test_min_lr);
  out.lr_range_test_step_size = values.get("lr_range_test_step_size", out.lr_range_test_step_size);
  out.lr_range_test_step_rate = values.get("lr_range_test_step_rate", out.lr_range_test_step_rate);
  out.lr_range_test_staircase = values.get("lr_range_test_staircase", out.lr_range_test_staircase);
}

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
  const auto read = [&](auto options, const auto& read_own) {
    options.lr = values.get("lr", options.lr);
    options.weight_decay = values.get("weight_decay", options.weight_decay);
    read_own(values, options);
    out.rule = options;
  };
  if (type == "SGD") {
    read(optim::SgdOptions(), read_sgd);
  } else if (type == "Lamb" || type == "FusedLamb") {
    read(optim::LambOptions(), read_lamb);
  } else if (type == "Lion") {
    read(optim::LionOptions(), [](const Values& given, optim::LionOptions& options) { read_betas(given, options); });
  } else if (type == "Adagrad") {
    read(optim::AdagradOptions(), read_adagrad);
  } else if (type == "RMSprop") {
    read(optim::RmspropOptions(), read_rmsprop);
  } else if (type == "OneBitAdam") {
    read(optim::OneBitAdamOptions(), read_one_bit_adam);
  } else if (type == "OneBitLamb") {
    read(optim::OneBitLambOptions(), read_one_bit_lamb);
  } else if (type == "ZeroOneAdam") {
    read(optim::ZeroOneAdamOptions(), read_zero_one_adam);
  } else {
    read(optim::AdamOptions(),
         [&](const Values& given, optim::AdamOptions& options) { read_adam(given, *section, type, options); });
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
  using Kind = ScheduleOptions::Kind;
  if (type == "WarmupLR") {
    out.kind = Kind::warmup;
    read_warmup(values, out);
    read_warmup_lr(values, out);
  } else if (type == "WarmupDecayLR") {
    out.kind = Kind::warmup_decay;
    out.total_num_steps = values.get<int64_t>("total_num_steps", 0);
    read_warmup(values, out);
    read_warmup_lr(values, out);
    if (!out.warmup_max_lr) {
      out.warmup_max_lr = 0.001; // DeepSpeed's default is not the optimizer's rate here
      if (optimizer && optimizer->lr() != *out.warmup_max_lr) {
        notes.push_back(concat(section->where(), ": ", section->path(),
                               ": WarmupDecayLR rises to 0.001 as in DeepSpeed, not to the optimizer's lr ",
                               optimizer->lr(), ". Write \"warmup_max_lr\" to choose."));
      }
    }
    check_decay_end(values, out, notes);
  } else if (type == "WarmupCosineLR") {
    out.kind = Kind::warmup_cosine;
    out.total_num_steps = values.get<int64_t>("total_num_steps", 0);
    out.warmup_min_ratio = values.get("warmup_min_ratio", out.warmup_min_ratio);
    out.cos_min_ratio = values.get("cos_min_ratio", out.cos_min_ratio);
    read_warmup(values, out);
    check_decay_end(values, out, notes);
  } else if (type == "OneCycle") {
    out.kind = Kind::one_cycle;
    read_one_cycle(values, out);
  } else {
    out.kind = Kind::lr_range_test;
    read_range_test(values, out);
  }
  return out;
}

ordered_json to_json(const std::optional<OptimizerOptions>& optimizer) {
  if (!optimizer) {
    return nullptr;
  }
  ordered_json params = {{"lr", optimizer->lr()}};
  const auto betas = [](const auto& o) { return ordered_json::array({o.beta1, o.beta2}); };
  const auto freeze_step = [](const auto& o) {
    return o.freeze_step ? ordered_json(*o.freeze_step) : ordered_json("auto");
  };
  const auto write = [&](const char* type, const ordered_json& own) {
    params.update(own);
    return type;
  };
  const char* const type = std::visit(
      Overloaded{
          [&](const optim::SgdOptions& o) {
            return write("SGD", {{"momentum", o.momentum},
                                 {"dampening", o.dampening},
                                 {"weight_decay", o.weight_decay},
                                 {"nesterov", o.nesterov}});
          },
          [&](const optim::LambOptions& o) {
            return write("Lamb", {{"betas", betas(o)},
                                  {"eps", o.eps},
                                  {"weight_decay", o.weight_decay},
                                  {"bias_correction", o.bias_correction},
                                  {"max_coeff", o.max_coeff},
                                  {"min_coeff", o.min_coeff},
                                  {"eps_inside_sqrt", o.eps_inside_sqrt}});
          },
          [&](const optim::LionOptions& o) {
            return write("Lion", {{"betas", betas(o)}, {"weight_decay", o.weight_decay}});
          },
          [&](const optim::AdagradOptions& o) {
            return write("Adagrad", {{"lr_decay", o.lr_decay},
                                     {"eps", o.eps},
                                     {"weight_decay", o.weight_decay},
                                     {"initial_accumulator_value", o.initial_accumulator_value}});
          },
          [&](const optim::RmspropOptions& o) {
            return write("RMSprop", {{"alpha", o.alpha},
                                     {"eps", o.eps},
                                     {"weight_decay", o.weight_decay},
                                     {"momentum", o.momentum},
                                     {"centered", o.centered}});
          },
          [&](const optim::OneBitAdamOptions& o) {
            return write("OneBitAdam", {{"betas", betas(o)},
                                        {"eps", o.eps},
                                        {"weight_decay", o.weight_decay},
                                        {"bias_correction", o.bias_correction},
                                        {"freeze_step", freeze_step(o)}});
          },
          [&](const optim::OneBitLambOptions& o) {
            return write("OneBitLamb", {{"betas", betas(o)},
                                        {"eps", o.eps},
                                        {"weight_decay", o.weight_decay},
                                        {"bias_correction", o.bias_correction},
                                        {"freeze_step", freeze_step(o)},
                                        {"max_coeff", o.max_coeff},
                                        {"min_coeff", o.min_coeff},
                                        {"coeff_beta", o.coeff_beta},
                                        {"factor_max", o.factor_max},
                                        {"factor_min", o.factor_min},
                                        {"factor_threshold", o.factor_threshold},
                                        {"eps_inside_sqrt", o.eps_inside_sqrt}});
          },
          [&](const optim::ZeroOneAdamOptions& o) {
            return write("ZeroOneAdam", {{"betas", betas(o)},
                                         {"eps", o.eps},
                                         {"weight_decay", o.weight_decay},
                                         {"bias_correction", o.bias_correction},
                                         {"var_freeze_step", o.var_freeze_step},
                                         {"var_update_scaler", o.var_update_scaler},
                                         {"local_step_scaler", o.local_step_scaler},
                                         {"local_step_clipper", o.local_step_clipper}});
          },
          [&](const optim::AdamOptions& o) {
            return write(o.decoupled_weight_decay ? "AdamW" : "Adam", {{"betas", betas(o)},
                                                                       {"eps", o.eps},
                                                                       {"weight_decay", o.weight_decay},
                                                                       {"bias_correction", o.bias_correction},
                                                                       {"adam_w_mode", o.decoupled_weight_decay}});
          },
      },
      optimizer->rule);
  params["weight_decay_rule"] = optimizer->decay_rule == optim::DecayRule::matrices ? "matrices" : "all";
  params["state_dtype"] = optim::name(optimizer->state_type);
  return {{"type", type}, {"params", params}};
}

ordered_json to_json(const ScheduleOptions& s) {
  using Kind = ScheduleOptions::Kind;
  const auto number = [](const auto& value) { return value ? ordered_json(*value) : ordered_json(nullptr); };
  const char* warmup_type = s.warmup_type == ScheduleOptions::Warmup::linear ? "linear" : "log";
  const auto section = [](const char* type, ordered_json params) {
    return ordered_json{{"type", type}, {"params", std::move(params)}};
  };
  switch (s.kind) {
    case Kind::constant:
      return nullptr;
    case Kind::warmup:
      return section("WarmupLR", {{"warmup_min_lr", s.warmup_min_lr},
                                  {"warmup_max_lr", number(s.warmup_max_lr)},
                                  {"warmup_num_steps", s.warmup_num_steps},
                                  {"warmup_type", warmup_type}});
    case Kind::warmup_decay:
      return section("WarmupDecayLR", {{"total_num_steps", s.total_num_steps},
                                       {"warmup_min_lr", s.warmup_min_lr},
                                       {"warmup_max_lr", number(s.warmup_max_lr)},
                                       {"warmup_num_steps", s.warmup_num_steps},
                                       {"warmup_type", warmup_type}});
    case Kind::warmup_cosine:
      return section("WarmupCosineLR", {{"total_num_steps", s.total_num_steps},
                                        {"warmup_min_ratio", s.warmup_min_ratio},
                                        {"warmup_num_steps", s.warmup_num_steps},
                                        {"cos_min_ratio", s.cos_min_ratio},
                                        {"warmup_type", warmup_type}});
    case Kind::one_cycle:
      return section("OneCycle", {{"cycle_min_lr", s.cycle_min_lr},
                                  {"cycle_max_lr", s.cycle_max_lr},
                                  {"decay_lr_rate", s.decay_lr_rate},
                                  {"cycle_first_step_size", s.cycle_first_step_size},
                                  {"cycle_second_step_size", number(s.cycle_second_step_size)},
                                  {"cycle_first_stair_count", s.cycle_first_stair_count},
                                  {"cycle_second_stair_count", number(s.cycle_second_stair_count)},
                                  {"decay_step_size", s.decay_step_size},
                                  {"cycle_momentum", s.cycle_momentum},
                                  {"cycle_min_mom", s.cycle_min_mom},
                                  {"cycle_max_mom", s.cycle_max_mom},
                                  {"decay_mom_rate", s.decay_mom_rate}});
    case Kind::lr_range_test:
      return section("LRRangeTest", {{"lr_range_test_min_lr", s.lr_range_test_min_lr},
                                     {"lr_range_test_step_size", s.lr_range_test_step_size},
                                     {"lr_range_test_step_rate", s.lr_range_test_step_rate},
                                     {"lr_range_test_staircase", s.lr_range_test_staircase}});
  }
  return nullptr;
}

} // namespace trireme::config
