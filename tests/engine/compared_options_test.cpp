// Every field of the options is compared between the ranks, or is named here as one that each rank may have for itself.
#include <trireme/engine/same_options.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <utility>
#include <vector>

namespace trireme::engine {
namespace {

using config::EngineConfig;
using Change = std::function<void(EngineConfig&)>;

// A field that is added breaks its line: add a change of it below.
[[maybe_unused]] void count_fields() {
  [[maybe_unused]] const auto& [e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13, e14, e15, e16, e17, e18, e19,
                                e20, e21, e22, e23, e24, e25, e26, e27] = EngineConfig();
  [[maybe_unused]] const auto& [o1, o2, o3] = optim::OptimizerOptions();
  [[maybe_unused]] const auto& [a1, a2, a3, a4, a5, a6, a7] = optim::AdamOptions();
  [[maybe_unused]] const auto& [g1, g2, g3, g4, g5] = optim::SgdOptions();
  [[maybe_unused]] const auto& [l1, l2, l3, l4, l5, l6, l7, l8, l9] = optim::LambOptions();
  [[maybe_unused]] const auto& [i1, i2, i3, i4] = optim::LionOptions();
  [[maybe_unused]] const auto& [d1, d2, d3, d4, d5] = optim::AdagradOptions();
  [[maybe_unused]] const auto& [r1, r2, r3, r4, r5, r6] = optim::RmspropOptions();
  [[maybe_unused]] const auto& [s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19,
                                s20, s21, s22, s23, s24] = optim::ScheduleOptions();
  [[maybe_unused]] const auto& [p1, p2, p3, p4, p5, p6, p7, p8, p9] = parallel::DataParallelOptions();
  [[maybe_unused]] const auto& [v1, v2, v3, v4, v5, v6, v7] = parallel::AveragingOptions();
  [[maybe_unused]] const auto& [w1, w2, w3, w4, w5, w6] = parallel::ServerOptions();
  [[maybe_unused]] const auto& [c1, c2, c3, c4] = compress::GradientCompressionOptions();
  [[maybe_unused]] const auto& [z1, z2, z3, z4, z5, z6] = zero::ZeroOptions();
  [[maybe_unused]] const auto& [f1, f2, f3] = offload::Options();
  [[maybe_unused]] const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9] = offload::OptimizerOptions();
  [[maybe_unused]] const auto& [n1, n2, n3, n4, n5] = offload::ParameterOptions();
  [[maybe_unused]] const auto& [t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11] = activations::Options();
  [[maybe_unused]] const auto& [x1, x2, x3, x4, x5, x6, x7, x8, x9, x10] = precision::PrecisionOptions();
  [[maybe_unused]] const auto& [y1, y2, y3, y4, y5, y6] = precision::LossScaleOptions();
  [[maybe_unused]] const auto& [h1, h2, h3, h4] = fp8::Options();
  [[maybe_unused]] const auto& [k1, k2, k3] = checkpoint::CheckpointOptions();
  [[maybe_unused]] const auto& [u1, u2] = tensor::TensorParallelKeys();
  [[maybe_unused]] const auto& [j1, j2, j3, j4] = tensor::SplitRule();
  [[maybe_unused]] const auto& [q1, q2, q3, q4, q5, q6, q7, q8, q9, q10] = pipeline::PipelineOptions();
}

// Everything is switched on, so that every field has a meaning.
EngineConfig everything() {
  EngineConfig config;
  config.averaging.every = 4;
  config.compression.kind = compress::GradientCompressionOptions::Kind::top_k;
  config.activations.automatic = true;
  config.tensor_parallel.rules = {{.pattern = "a"}};
  return config;
}

EngineConfig with_schedule(optim::ScheduleOptions::Kind kind) {
  EngineConfig config = everything();
  config.schedule.kind = kind;
  return config;
}

EngineConfig with_rule(const optim::Rule& rule) {
  EngineConfig config = everything();
  config.optimizer = optim::OptimizerOptions{.rule = rule};
  return config;
}

template <class Rule>
Change of_rule(const std::function<void(Rule&)>& change) {
  return [change](EngineConfig& config) { change(std::get<Rule>(config.optimizer->rule)); };
}

void expect_compared(const EngineConfig& config, const std::vector<Change>& changes, bool compared = true) {
  for (size_t i = 0; i < changes.size(); ++i) {
    EngineConfig other = config;
    changes[i](other);
    EXPECT_EQ(compared_options(other) != compared_options(config), compared) << "change " << i << " of\n"
                                                                             << compared_options(config);
  }
}

TEST(ComparedOptionsTest, EveryFieldOfAnOptimizer) {
  const auto of_most = [](auto rule, std::vector<Change> changes) {
    using Rule = decltype(rule);
    changes.push_back(of_rule<Rule>([](Rule& o) { o.lr = 0.5; }));
    changes.push_back(of_rule<Rule>([](Rule& o) { o.weight_decay = 0.5; }));
    changes.push_back([](EngineConfig& c) { c.optimizer->state_type = optim::StateType::bf16; });
    changes.push_back([](EngineConfig& c) { c.optimizer->decay_rule = optim::DecayRule::matrices; });
    expect_compared(with_rule(rule), changes);
  };
  const auto of_betas = []<class Rule>(Rule, std::vector<Change> changes) {
    changes.push_back(of_rule<Rule>([](Rule& o) { o.beta1 = 0.5; }));
    changes.push_back(of_rule<Rule>([](Rule& o) { o.beta2 = 0.5; }));
    return changes;
  };
  const auto of_adam = [&]<class Rule>(Rule rule, std::vector<Change> changes) {
    changes.push_back(of_rule<Rule>([](Rule& o) { o.eps = 0.5; }));
    changes.push_back(of_rule<Rule>([](Rule& o) { o.bias_correction = false; }));
    return of_betas(rule, std::move(changes));
  };
  const auto of_lamb = [&]<class Rule>(Rule rule, std::vector<Change> changes) {
    changes.push_back(of_rule<Rule>([](Rule& o) { o.max_coeff = 5; }));
    changes.push_back(of_rule<Rule>([](Rule& o) { o.min_coeff = 0.5; }));
    changes.push_back(of_rule<Rule>([](Rule& o) { o.eps_inside_sqrt = true; }));
    return of_adam(rule, std::move(changes));
  };
  using optim::AdagradOptions, optim::AdamOptions, optim::LambOptions, optim::LionOptions, optim::RmspropOptions,
      optim::SgdOptions;
  using optim::OneBitAdamOptions, optim::OneBitLambOptions, optim::ZeroOneAdamOptions;
  of_most(AdamOptions(),
          of_adam(AdamOptions(), {of_rule<AdamOptions>([](auto& o) { o.decoupled_weight_decay = false; })}));
  of_most(LambOptions(), of_lamb(LambOptions(), {}));
  of_most(LionOptions(), of_betas(LionOptions(), {}));
  of_most(SgdOptions(), {of_rule<SgdOptions>([](auto& o) { o.momentum = 0.5; }),
                         of_rule<SgdOptions>([](auto& o) { o.dampening = 0.5; }),
                         of_rule<SgdOptions>([](auto& o) { o.nesterov = true; })});
  of_most(AdagradOptions(), {of_rule<AdagradOptions>([](auto& o) { o.lr_decay = 0.5; }),
                             of_rule<AdagradOptions>([](auto& o) { o.eps = 0.5; }),
                             of_rule<AdagradOptions>([](auto& o) { o.initial_accumulator_value = 0.5; })});
  of_most(RmspropOptions(), {of_rule<RmspropOptions>([](auto& o) { o.alpha = 0.5; }),
                             of_rule<RmspropOptions>([](auto& o) { o.eps = 0.5; }),
                             of_rule<RmspropOptions>([](auto& o) { o.momentum = 0.5; }),
                             of_rule<RmspropOptions>([](auto& o) { o.centered = true; })});
  of_most(OneBitAdamOptions(),
          of_adam(OneBitAdamOptions(), {of_rule<OneBitAdamOptions>([](auto& o) { o.freeze_step = 7; })}));
  of_most(OneBitLambOptions(),
          of_lamb(OneBitLambOptions(), {of_rule<OneBitLambOptions>([](auto& o) { o.freeze_step = 7; }),
                                        of_rule<OneBitLambOptions>([](auto& o) { o.coeff_beta = 0.5; }),
                                        of_rule<OneBitLambOptions>([](auto& o) { o.factor_max = 5; }),
                                        of_rule<OneBitLambOptions>([](auto& o) { o.factor_min = 0.1; }),
                                        of_rule<OneBitLambOptions>([](auto& o) { o.factor_threshold = 0.5; })}));
  of_most(ZeroOneAdamOptions(),
          of_adam(ZeroOneAdamOptions(), {of_rule<ZeroOneAdamOptions>([](auto& o) { o.var_freeze_step = 7; }),
                                         of_rule<ZeroOneAdamOptions>([](auto& o) { o.var_update_scaler = 7; }),
                                         of_rule<ZeroOneAdamOptions>([](auto& o) { o.local_step_scaler = 7; }),
                                         of_rule<ZeroOneAdamOptions>([](auto& o) { o.local_step_clipper = 7; })}));
}

TEST(ComparedOptionsTest, EveryFieldOfASchedule) {
  using Kind = optim::ScheduleOptions::Kind;
  using Schedule = optim::ScheduleOptions;
  const auto expect = [](Kind kind, const std::vector<std::function<void(Schedule&)>>& changes) {
    std::vector<Change> all = {
        [](EngineConfig& c) { c.schedule.kind = c.schedule.kind == Kind::one_cycle ? Kind::warmup : Kind::one_cycle; }};
    for (const auto& change : changes) {
      all.push_back([change](EngineConfig& c) { change(c.schedule); });
    }
    expect_compared(with_schedule(kind), all);
  };
  const auto steps = [](Schedule& s) { s.warmup_num_steps = 7; };
  const auto type = [](Schedule& s) { s.warmup_type = Schedule::Warmup::linear; };
  const auto least = [](Schedule& s) { s.warmup_min_lr = 0.5; };
  const auto most = [](Schedule& s) { s.warmup_max_lr = 0.5; };
  const auto total = [](Schedule& s) { s.total_num_steps = 7; };
  expect(Kind::constant, {});
  expect(Kind::warmup, {steps, type, least, most});
  expect(Kind::warmup_decay, {steps, type, least, most, total});
  expect(Kind::warmup_cosine, {steps, type, total, [](Schedule& s) { s.warmup_min_ratio = 0.5; },
                               [](Schedule& s) { s.cos_min_ratio = 0.5; }});
  expect(Kind::lr_range_test,
         {[](Schedule& s) { s.lr_range_test_min_lr = 0.5; }, [](Schedule& s) { s.lr_range_test_step_size = 7; },
          [](Schedule& s) { s.lr_range_test_step_rate = 0.5; }, [](Schedule& s) { s.lr_range_test_staircase = true; }});
  expect(Kind::one_cycle,
         {[](Schedule& s) { s.cycle_min_lr = 0.5; }, [](Schedule& s) { s.cycle_max_lr = 0.5; },
          [](Schedule& s) { s.decay_lr_rate = 0.5; }, [](Schedule& s) { s.cycle_first_step_size = 7; },
          [](Schedule& s) { s.cycle_second_step_size = 7; }, [](Schedule& s) { s.cycle_first_stair_count = 7; },
          [](Schedule& s) { s.cycle_second_stair_count = 7; }, [](Schedule& s) { s.decay_step_size = 7; },
          [](Schedule& s) { s.cycle_momentum = false; }, [](Schedule& s) { s.cycle_min_mom = 0.5; },
          [](Schedule& s) { s.cycle_max_mom = 0.5; }, [](Schedule& s) { s.decay_mom_rate = 0.5; }});
}

TEST(ComparedOptionsTest, EveryOtherField) {
  expect_compared(
      everything(),
      {
          [](EngineConfig& c) { c.gradient_clipping = 0.5; },
          [](EngineConfig& c) { c.step_in_backward = true; },
          [](EngineConfig& c) { c.pipeline.stages = 2; },
          [](EngineConfig& c) { c.dataloader_drop_last = true; },
          [](EngineConfig& c) { c.seed = 7; },
          [](EngineConfig& c) { c.data_parallel.op = parallel::DataParallelOptions::Op::sum; },
          [](EngineConfig& c) { c.data_parallel.algorithm = parallel::DataParallelOptions::Algorithm::ring; },
          [](EngineConfig& c) { c.data_parallel.bucket_bytes += 1; },
          [](EngineConfig& c) { c.data_parallel.first_bucket_bytes += 1; },
          [](EngineConfig& c) { c.data_parallel.prescale_gradients = true; },
          [](EngineConfig& c) { c.data_parallel.gradient_predivide_factor = 2; },
          [](EngineConfig& c) { c.data_parallel.broadcast_at_start = false; },
          [](EngineConfig& c) { c.data_parallel.broadcast_buffers = false; },
          [](EngineConfig& c) { c.data_parallel.sync_batch_norm = true; },
          [](EngineConfig& c) { c.averaging.every = 8; },
          [](EngineConfig& c) { c.averaging.outer = parallel::AveragingOptions::Outer::slowmo; },
          [](EngineConfig& c) { c.averaging.outer_lr = 0.5; },
          [](EngineConfig& c) { c.averaging.outer_momentum = 0.5; },
          [](EngineConfig& c) { c.averaging.states = parallel::AveragingOptions::States::reset; },
          [](EngineConfig& c) { c.averaging.start_step = 7; },
          [](EngineConfig& c) { c.averaging.elastic = true; },
          [](EngineConfig& c) { c.server.servers = 2; },
          [](EngineConfig& c) { c.server.mode = parallel::ServerOptions::Mode::async; },
          [](EngineConfig& c) { c.server.staleness = 2; },
          [](EngineConfig& c) { c.server.timeout_s = 2; },
          [](EngineConfig& c) { c.server.snapshot_every = 2; },
          [](EngineConfig& c) { c.server.sparse_rows = {"a"}; },
          [](EngineConfig& c) { c.compression.kind = compress::GradientCompressionOptions::Kind::sign; },
          [](EngineConfig& c) { c.compression.rank = 7; },
          [](EngineConfig& c) { c.compression.ratio = 0.5; },
          [](EngineConfig& c) { c.compression.start_step = 7; },
          [](EngineConfig& c) { c.zero.stage = 1; },
          [](EngineConfig& c) { c.zero.param_persistence_threshold = 7; },
          [](EngineConfig& c) { c.zero.model_persistence_threshold = 7; },
          [](EngineConfig& c) { c.zero.prefetch_elements = 7; },
          [](EngineConfig& c) { c.zero.max_live_elements = 7; },
          [](EngineConfig& c) { c.zero.shard_size = 7; },
          [](EngineConfig& c) { c.offload.optimizer.place = offload::Place::host; },
          [](EngineConfig& c) { c.offload.optimizer.nvme_path = "/a"; },
          [](EngineConfig& c) { c.offload.optimizer.buffer_count = 7; },
          [](EngineConfig& c) { c.offload.optimizer.pin_memory = false; },
          [](EngineConfig& c) { c.offload.optimizer.pipeline_read = true; },
          [](EngineConfig& c) { c.offload.optimizer.pipeline_write = true; },
          [](EngineConfig& c) { c.offload.optimizer.fast_init = true; },
          [](EngineConfig& c) { c.offload.optimizer.ratio = 0.5; },
          [](EngineConfig& c) { c.offload.optimizer.delayed_update = true; },
          [](EngineConfig& c) { c.offload.parameters.place = offload::Place::host; },
          [](EngineConfig& c) { c.offload.parameters.nvme_path = "/a"; },
          [](EngineConfig& c) { c.offload.parameters.buffer_count = 7; },
          [](EngineConfig& c) { c.offload.parameters.max_in_cpu = 7; },
          [](EngineConfig& c) { c.offload.parameters.pin_memory = false; },
          [](EngineConfig& c) { c.activations.policy = activations::Way::recompute, c.activations.automatic = false; },
          [](EngineConfig& c) { c.activations.choices = {activations::Way::recompute}; },
          [](EngineConfig& c) { c.activations.memory_budget = 7; },
          [](EngineConfig& c) { c.activations.layers = "a"; },
          [](EngineConfig& c) { c.activations.nvme_path = "/a"; },
          [](EngineConfig& c) { c.activations.inputs_to_host = true; },
          [](EngineConfig& c) { c.activations.shares_inputs = true; },
          [](EngineConfig& c) { c.activations.profile = true; },
          [](EngineConfig& c) { c.activations.least_bytes = 7; },
          [](EngineConfig& c) { c.precision.compute = precision::Type::bf16; },
          [](EngineConfig& c) { c.precision.compute = precision::Type::fp16; },
          [](EngineConfig& c) { c.precision.bf16_if_faster = true; },
          [](EngineConfig& c) { c.precision.cast_inputs = true; },
          [](EngineConfig& c) { c.precision.check_grad_overflow = false; },
          [](EngineConfig& c) { c.precision.autocast = true; },
          [](EngineConfig& c) { c.precision.autocast_type = precision::Type::fp16; },
          [](EngineConfig& c) { c.precision.communication = precision::Type::bf16; },
          [](EngineConfig& c) { c.precision.grad_accumulation = precision::Type::bf16; },
          [](EngineConfig& c) { c.precision.fp8.enabled = true; },
          [](EngineConfig& c) { c.precision.fp8.recipe = fp8::Recipe::rowwise; },
          [](EngineConfig& c) { c.precision.fp8.round_scales_to_power_of_2 = false; },
          [](EngineConfig& c) { c.precision.fp8.filter_fqns = {"a"}; },
          [](EngineConfig& c) { c.precision.loss_scale.loss_scale = 8; },
          [](EngineConfig& c) { c.precision.loss_scale.initial_scale_power = 8; },
          [](EngineConfig& c) { c.precision.loss_scale.loss_scale_window = 8; },
          [](EngineConfig& c) { c.precision.loss_scale.hysteresis = 8; },
          [](EngineConfig& c) { c.precision.loss_scale.consecutive_hysteresis = true; },
          [](EngineConfig& c) { c.precision.loss_scale.min_loss_scale = 8; },
          [](EngineConfig& c) { c.checkpoint.keep_last = 7; },
          [](EngineConfig& c) { c.checkpoint.verify_hashes = false; },
          [](EngineConfig& c) { c.checkpoint.tag_validation = checkpoint::TagValidation::fail; },
          [](EngineConfig& c) { c.tensor_parallel.size = 2; },
          [](EngineConfig& c) { c.tensor_parallel.rules[0].kind = tensor::SplitRule::Kind::row; },
          [](EngineConfig& c) { c.tensor_parallel.rules[0].pattern = "b"; },
          [](EngineConfig& c) { c.tensor_parallel.rules[0].grain = 2; },
          [](EngineConfig& c) { c.tensor_parallel.rules[0].blocks = 2; },
      });
}

TEST(ComparedOptionsTest, WhatEachRankMayHaveForItself) {
  EngineConfig config = everything();
  config.offload.optimizer.nvme_path = config.offload.parameters.nvme_path = config.activations.nvme_path = "/one";
  expect_compared(config,
                  {
                      [](EngineConfig& c) { c.optimizer = c.optimizer_or_adamw(); },
                      [](EngineConfig& c) {
                        c.batch = {.train = 4, .micro = 2, .accumulation = 2, .where = "here"};
                      }, // compared as they are resolved
                      [](EngineConfig& c) { c.offload.optimizer.nvme_path = "/a"; },
                      [](EngineConfig& c) { c.offload.parameters.nvme_path = "/a"; },
                      [](EngineConfig& c) { c.offload.aio.threads = 7; },
                      [](EngineConfig& c) { c.activations.nvme_path = "/a"; },
                      [](EngineConfig& c) { c.activations.ranks_on_host = 7; },
                      [](EngineConfig& c) { c.steps_per_print = 7; },
                      [](EngineConfig& c) { c.wall_clock_breakdown = true; },
                      [](EngineConfig& c) { c.memory_breakdown = true; },
                      [](EngineConfig& c) { c.dump_state = true; },
                      [](EngineConfig& c) { c.log_level = "debug"; },
                      [](EngineConfig& c) { c.csv_monitor.enabled = true; },
                      [](EngineConfig& c) { c.tensorboard.enabled = true; },
                      [](EngineConfig& c) { c.notes = {"a note"}; },
                      [](EngineConfig& c) { c.source = {{"a", 1}}; },
                  },
                  false);
}

} // namespace
} // namespace trireme::engine
