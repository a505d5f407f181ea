// What does not go together: one answer for ranks, estimate and plan.
#include <trireme/offload/conflict.h>

#include <gmock/gmock.h>

namespace trireme::offload {
namespace {

using testing::HasSubstr;

Options placed(Place states, Place parameters = Place::device) {
  Options options;
  options.optimizer.place = states;
  options.parameters.place = parameters;
  return options;
}

TEST(OffloadConflictTest, NothingMovesNothingConflicts) {
  EXPECT_EQ(
      conflict({},
               {.zero_stage = 0, .device = "cuda:0", .exchanges_values = "parameter_averaging", .has_servers = true})
          .what,
      "");
}

TEST(OffloadConflictTest, OnTheCpuOnlyStagesAndServersMatter) {
  const Setting cpu{
      .zero_stage = 3, .exchanges_values = "parameter_averaging", .steps_in_backward = true, .needs_norms = "LAMB"};
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
  const Setting gpu{.zero_stage = 3, .device = "cuda:0"};
  const auto what = [](const Options& options, const Setting& setting) {
    const Conflict no = conflict(options, setting);
    EXPECT_EQ(no.what.empty(), no.next.empty());
    return no.what;
  };
  EXPECT_EQ(what(placed(Place::host, Place::host), gpu), "");
  EXPECT_EQ(what(placed(Place::nvme, Place::host), gpu), "");
  EXPECT_EQ(what(placed(Place::nvme, Place::nvme), gpu), "");
  Setting lamb = gpu;
  lamb.needs_norms = "LAMB";
  for (const Place parameters :
       {Place::device, Place::host, Place::nvme}) { // stepped where the states are, wherever that is
    EXPECT_EQ(what(placed(Place::device, parameters), gpu), "");
    EXPECT_EQ(what(placed(Place::device, parameters), lamb), "");
    Options part = placed(Place::host, parameters);
    part.optimizer.ratio = 0.5;
    EXPECT_EQ(what(part, gpu), "");
    EXPECT_THAT(what(part, lamb), HasSubstr("LAMB, which needs the norms of whole parameters in one place"));
  }
  EXPECT_EQ(what(placed(Place::host), lamb), "");
  Setting averaged = gpu;
  averaged.exchanges_values = "parameter_averaging";
  EXPECT_THAT(what(placed(Place::host), averaged), HasSubstr("offload_optimizer on cuda:0 with parameter_averaging"));
  Options delayed = placed(Place::host);
  delayed.optimizer.delayed_update = true;
  EXPECT_EQ(what(delayed, gpu), "");
  EXPECT_THAT(what(delayed, lamb), HasSubstr("LAMB with a delayed update"));
  Setting at_once = gpu;
  at_once.steps_in_backward = true;
  EXPECT_THAT(what(delayed, at_once), HasSubstr("delayed_update with step_in_backward"));
  delayed.optimizer.ratio = 0.5;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with a ratio below 1"));
  delayed.optimizer.ratio = 1;
  delayed.parameters.place = Place::host;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with offload_param"));
  delayed = placed(Place::device, Place::host);
  delayed.optimizer.delayed_update = true;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with optimizer states on the device"));
  delayed.parameters.place = Place::device;
  EXPECT_THAT(what(delayed, gpu), HasSubstr("delayed_update with optimizer states on the device"));
}

} // namespace
} // namespace trireme::offload
