// What of offload does not go together: one answer for ranks, estimate and plan.
#include <trireme/config/compatibility.h>
#include <trireme/config/engine_config.h>

#include <gmock/gmock.h>

namespace trireme::config {
namespace {

using offload::Options;
using offload::Place;
using testing::HasSubstr;

// What else of a run decides.
struct Others {
  int zero_stage = 0;
  std::string device = {};
  bool averages = false;
  bool steps_in_backward = false;
  bool lamb = false;
  bool has_servers = false;
};

// Of offload alone: what conflicts without it is not asked.
Conflict conflict(const Options& options, const Others& others) {
  EngineConfig engine;
  engine.zero.stage = others.zero_stage;
  engine.offload = options;
  engine.averaging.every = others.averages ? 2 : 0;
  engine.step_in_backward = others.steps_in_backward;
  engine.server.servers = others.has_servers ? 1 : 0;
  if (others.lamb) {
    engine.optimizer = optim::OptimizerOptions{.rule = optim::LambOptions{}};
  }
  Setting setting{.engine = engine};
  setting.device = others.device;
  const auto found = find_conflict(setting);
  const auto is_of_offload = [](const Feature& feature) {
    return feature.keys.find("offload") != std::string_view::npos;
  };
  return found && (is_of_offload(found->feature) || is_of_offload(found->with)) ? *found : Conflict();
}

Options placed(Place states, Place parameters = Place::device) {
  Options options;
  options.optimizer.place = states;
  options.parameters.place = parameters;
  return options;
}

TEST(OffloadConflictTest, NothingMovesNothingConflicts) {
  EXPECT_EQ(conflict({}, {.zero_stage = 0, .device = "cuda:0", .averages = true, .has_servers = true}).what, "");
}

TEST(OffloadConflictTest, OnTheCpuOnlyStagesAndServersMatter) {
  const Others cpu{.zero_stage = 3, .averages = true, .steps_in_backward = true, .lamb = true};
  for (const Place parameters : {Place::device, Place::host, Place::nvme}) {
    Options options = placed(Place::nvme, parameters);
    options.optimizer.ratio = 0.5;
    options.optimizer.delayed_update = true;
    EXPECT_EQ(conflict(options, cpu).what, "");
    EXPECT_EQ(conflict(options, {.zero_stage = 2}).what.empty(), parameters == Place::device);
    EXPECT_THAT(conflict(options, {.zero_stage = 3, .has_servers = true}).what, HasSubstr("parameter servers"));
  }
}

TEST(OffloadConflictTest, WhatLeavesADeviceHasItsRules) {
  const Others gpu{.zero_stage = 3, .device = "cuda:0"};
  const auto what = [](const Options& options, const Others& others) {
    const Conflict no = conflict(options, others);
    EXPECT_EQ(no.what.empty(), no.next.empty());
    return no.what;
  };
  EXPECT_EQ(what(placed(Place::host, Place::host), gpu), "");
  EXPECT_EQ(what(placed(Place::nvme, Place::host), gpu), "");
  EXPECT_EQ(what(placed(Place::nvme, Place::nvme), gpu), "");
  Others lamb = gpu;
  lamb.lamb = true;
  for (const Place parameters :
       {Place::device, Place::host, Place::nvme}) { // stepped where the states are, wherever that is
    EXPECT_EQ(what(placed(Place::device, parameters), gpu), "");
    EXPECT_EQ(what(placed(Place::device, parameters), lamb), "");
    Options part = placed(Place::host, parameters);
    part.optimizer.ratio = 0.5;
    EXPECT_EQ(what(part, gpu), "");
    EXPECT_THAT(what(part, lamb),
                HasSubstr("a ratio below 1 with LAMB: it needs the norms of whole parameters in one place"));
  }
  EXPECT_EQ(what(placed(Place::host), lamb), "");
  Others averaged = gpu;
  averaged.zero_stage = 0;
  averaged.averages = true;
  EXPECT_THAT(what(placed(Place::host), averaged), HasSubstr("offload_optimizer on cuda:0 with parameter_averaging"));
  Options delayed = placed(Place::host);
  delayed.optimizer.delayed_update = true;
  EXPECT_EQ(what(delayed, gpu), "");
  EXPECT_THAT(what(delayed, lamb), HasSubstr("delayed_update with LAMB"));
  Others at_once = gpu;
  at_once.steps_in_backward = true;
  EXPECT_THAT(what(delayed, at_once), HasSubstr("delayed_update with step_in_backward"));
  delayed.optimizer.ratio = 0.5;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with a ratio below 1"));
  delayed.optimizer.ratio = 1;
  delayed.parameters.place = Place::host;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with offload_param"));
  delayed = placed(Place::device, Place::host);
  delayed.optimizer.delayed_update = true;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with optimizer states on the GPU"));
  delayed.parameters.place = Place::device;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with optimizer states on the GPU"));
}

} // namespace
} // namespace trireme::config
