// Places as a dimension of the plan: memory, room on hosts and disks, the time of moves, and the search against looking
// at all.
#include "all_layouts.h"
#include "clusters.h"

#include <trireme/plan/estimate/layouts.h>
#include <trireme/plan/move_time.h>
#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::plan {
namespace {

using offload::Place;
using testing::HasSubstr;

// Cards that only multiply matrices; a host and a disk with these bandwidths.
Cluster offload_cards(int64_t ranks = 1) {
  Cluster out = multiplying_host(ranks, 1e12, {});
  out.host = {int64_t{1} << 50, 0, 2e9, 1e9};
  out.disk = {int64_t{1} << 50, 5e8, 2.5e8};
  return out;
}

Job offload_job(int64_t batch = 4) {
  Job out = gpt_job(8, 256, 4, 16, 100, batch);
  out.base.clips = false;
  out.base.precision.compute = estimate::Type::bf16;
  out.base.data_parallel.bucket_bytes = out.base.data_parallel.first_bucket_bytes = 1 << 20;
  out.base.zero.param_persistence_threshold = 0;
  out.base.offload.parameters.max_in_cpu = 0;
  return out;
}

double flat(const Job& what, const Layout& layout) {
  Shared shared(what);
  return static_cast<double>(estimate::layout_of(run_of(what, layout, shared), 0).numel());
}

// Those of a pipeline too, which leave once.
TEST(PlanOffloadTest, NoStepIsShorterThanTheDisksTime) {
  for (const bool on_host : {false, true}) {
    for (const int64_t pipe : {1, 2}) {
      Cluster cluster = offload_cards(2);
      cluster.on_host = on_host;
      cluster.disk = {int64_t{1} << 50, 1e7, 1e7};
      Job what = offload_job();
      what.base.clips = true;
      const Prediction p = predict(cluster, what,
                                   {.pipe = pipe,
                                    .data = 2 / pipe,
                                    .zero_stage = 3,
                                    .micro_batch = 1,
                                    .states = Place::nvme,
                                    .parameters = Place::nvme});
      ASSERT_EQ(p.refused, "");
      double bytes = 0; // of the stage with most, over the share of a rank
      for (const MovedBytes& moved : p.moved) {
        bytes += moved.way == estimate::Way::from_files || moved.way == estimate::Way::to_files
                     ? static_cast<double>(moved.bytes)
                     : 0;
      }
      EXPECT_GE(p.step_seconds, bytes / (1e7 / 2)) << pipe << (on_host ? ", on the host" : "");
    }
  }
}

TEST(PlanOffloadTest, TheHostStepsAndTheLinkReturns) {
  const Job what = offload_job(1);
  const Layout layout{.zero_stage = 2, .micro_batch = 1, .states = Place::host};
  const Prediction p = predict(offload_cards(), what, layout);
  ASSERT_EQ(p.refused, "");
  const double F = flat(what, layout);
  // Gradient 2, two moments read and written 16, master 8, parameter 2: 28 bytes at 2e9 a second; 2 bytes back at 1e9,
  // of which one bucket does not hide.
  const double pass = 28 * F / 2e9;
  EXPECT_GT(p.optimizer_seconds, pass);
  EXPECT_LT(p.optimizer_seconds, pass + 2 * F / 1e9 / 4);
  ASSERT_EQ(p.moved.size(), 2u);
  EXPECT_EQ(p.moved[0].way, estimate::Way::to_host);
  EXPECT_EQ(static_cast<double>(p.moved[0].bytes), 2 * F);
  EXPECT_GE(static_cast<double>(p.host_bytes), 14 * F);
  EXPECT_EQ(p.disk_bytes, 0);
}

// Asked for by name too, not only in a search.
TEST(PlanOffloadTest, WhatRanksRefuseIsRefused) {
  Job what = offload_job(1);
  const Layout states{.zero_stage = 2, .micro_batch = 1, .states = Place::host};
  EXPECT_EQ(predict(offload_cards(), what, states).refused, "");
  what.base.averaging.every = 4;
  EXPECT_THAT(predict(offload_cards(), what, states).refused, HasSubstr("parameter_averaging with ZeRO stage"));
  EXPECT_THAT(predict(offload_cards(), what, {.micro_batch = 1, .states = Place::host}).refused,
              HasSubstr("with parameter_averaging"));
  EXPECT_TRUE(search(offload_cards(), what).best.empty() ||
              search(offload_cards(), what).best.front().layout.moves_nothing());
}

// Shards come to the card that has their states, and go back over the other direction of the link.
TEST(PlanOffloadTest, TheCardStepsWhatComesAndGoes) {
  const Job what = offload_job(1);
  const Layout layout{.zero_stage = 3, .micro_batch = 1, .parameters = Place::host};
  const Prediction p = predict(offload_cards(), what, layout);
  ASSERT_EQ(p.refused, "");
  Shared shared(what);
  const double units =
      static_cast<double>(estimate::unit_elements(estimate::layout_of(run_of(what, layout, shared), 0)));
  EXPECT_NEAR(p.optimizer_seconds, 2 * units / 1e9, 1e-3 * p.optimizer_seconds);
  ASSERT_EQ(p.moved.size(), 2u);
  EXPECT_EQ(p.moved[0].way, estimate::Way::to_host);
  EXPECT_EQ(static_cast<double>(p.moved[0].bytes), 2 * units);
  EXPECT_GT(static_cast<double>(p.memory_bytes), 12 * units) << "masters and states";
  EXPECT_LT(p.memory_bytes, predict(offload_cards(), what, {.zero_stage = 2, .micro_batch = 1}).memory_bytes);
}

// On a slow link gradients are what a backward waits for; on a fast one they hide.
TEST(PlanOffloadTest, GradientsLeaveBesideBackward) {
  Cluster where = offload_cards();
  where.host.link_bandwidth = kInfinite;
  where.host.memory_bandwidth = kInfinite;
  const Job what = offload_job(4);
  const Layout layout{.zero_stage = 2, .micro_batch = 1, .states = Place::host};
  const double free = predict(where, what, layout).pipeline_seconds;
  where.host.link_bandwidth = 1e6;
  const double slow = predict(where, what, layout).pipeline_seconds;
  const double F = flat(what, layout);
  EXPECT_GT(slow, 4 * 4 * F / 1e6) << "in fp32, in every one of four micro-batches";
  EXPECT_LT(slow, 4 * 4 * F / 1e6 + free);
}

TEST(PlanOffloadTest, FilesTakeTheLongerOfDiskAndPassAndABucketOfTheOther) {
  const Job what = offload_job(1);
  const Layout layout{.zero_stage = 2, .micro_batch = 1, .states = Place::nvme};
  Shared shared(what);
  const estimate::Run run = run_of(what, layout, shared);
  EXPECT_TRUE(run.offload.optimizer.pipeline_read && run.offload.optimizer.pipeline_write);
  const MoveTimes times =
      move_times(offload_cards(), run, estimate::layout_of(run, 0), estimate::moves_of(run).front());
  const double F = flat(what, layout);
  EXPECT_NEAR(times.reads, 12 * F / 5e8, 0.02 * times.reads);
  EXPECT_NEAR(times.writes, 12 * F / 2.5e8, 0.02 * times.writes);
  EXPECT_NEAR(times.pass, 28 * F / 2e9, 1e-9);
  EXPECT_GT(times.buckets, 4);
  const double buckets = static_cast<double>(times.buckets);
  EXPECT_DOUBLE_EQ(times.optimizer(), times.reads + times.writes + (times.pass + times.returns) / buckets);
  EXPECT_NEAR(predict(offload_cards(), what, layout).optimizer_seconds, times.optimizer(), 1e-12);
}

// Ranks read them ahead and write them behind, wherever the states are.
TEST(PlanOffloadTest, ParametersInFilesAreReadBesideThePass) {
  Cluster where = offload_cards();
  where.host.memory_bandwidth = 1e8;
  const Job what = offload_job(1);
  const Layout layout{.zero_stage = 3, .micro_batch = 1, .states = Place::host, .parameters = Place::nvme};
  Shared shared(what);
  const estimate::Run run = run_of(what, layout, shared);
  const MoveTimes times = move_times(where, run, estimate::layout_of(run, 0), estimate::moves_of(run).front());
  const double disk = times.reads + times.writes;
  ASSERT_GT(disk, 0);
  ASSERT_GT(times.pass, disk);
  EXPECT_LT(predict(where, what, layout).optimizer_seconds, times.pass + disk / 2);
}

TEST(PlanOffloadTest, RanksOfAHostShareItsCoresAndItsDisk) {
  for (const Place states : {Place::host, Place::nvme}) { // the cores are slowest, the disk is
    const Layout one{.zero_stage = 1, .micro_batch = 1, .states = states};
    const Layout two{.data = 2, .zero_stage = 1, .micro_batch = 1, .states = states};
    const double alone = predict(offload_cards(1), offload_job(2), one).optimizer_seconds;
    const double shared = predict(offload_cards(2), offload_job(2), two).optimizer_seconds;
    EXPECT_NEAR(shared, alone, 0.1 * alone) << "each has half, at half the speed; the last bucket is smaller";
  }
}

TEST(PlanOffloadTest, ADelayedUpdateHidesBehindTheStep) {
  Job what = offload_job(4);
  const Layout layout{.zero_stage = 2, .micro_batch = 1, .states = Place::host};
  const Prediction plain = predict(offload_cards(), what, layout);
  what.base.offload.optimizer.delayed_update = true;
  const Prediction delayed = predict(offload_cards(), what, layout);
  EXPECT_NEAR(delayed.step_seconds, std::max(plain.pipeline_seconds, plain.optimizer_seconds) + plain.reduce_seconds,
              1e-9);
  EXPECT_LT(delayed.step_seconds, plain.step_seconds);
}

TEST(PlanOffloadTest, UnitsComeBesideTheComputation) {
  Cluster where = offload_cards(2);
  where.on_host = true;
  const Job what = offload_job(2);
  const Layout layout{.data = 2, .zero_stage = 3, .micro_batch = 1, .parameters = Place::nvme};
  where.host.link_bandwidth = where.host.memory_bandwidth = kInfinite;
  where.disk.read_bandwidth = where.disk.write_bandwidth = kInfinite;
  const double free = predict(where, what, layout).pipeline_seconds;
  where.disk.read_bandwidth = 1e6;
  Shared shared(what);
  const estimate::Run run = run_of(what, layout, shared, false);
  const double from_files =
      move_times(where, run, estimate::layout_of(run, 0), estimate::moves_of(run).front()).units_from_files;
  const double slow = predict(where, what, layout).pipeline_seconds;
  EXPECT_GE(slow, from_files);
  EXPECT_LE(slow, from_files + free);
}

// Units and gradients to be added to come down the same link; what goes up has the other direction.
TEST(PlanOffloadTest, WhatSharesALinkAddsUp) {
  const MoveTimes times{.gradients_up = 8,
                        .gradients_down = 6,
                        .gradients_in_files = 0,
                        .in_every_micro_batch = true,
                        .units_over_link = 8,
                        .units_from_files = 4};
  EXPECT_DOUBLE_EQ(times.forward(2), 2);
  EXPECT_DOUBLE_EQ(times.backward(2), 2 + 3);
  MoveTimes files{.gradients_up = 0,
                  .gradients_down = 0,
                  .gradients_in_files = 10,
                  .in_every_micro_batch = true,
                  .units_over_link = 0,
                  .units_from_files = 4};
  EXPECT_DOUBLE_EQ(files.backward(2), 1 + 5) << "one disk";
  files.in_every_micro_batch = false;
  EXPECT_DOUBLE_EQ(files.backward(2), 1) << "behind the last backward";
  const ActivationTimes activations{
      .leave_over_link = 3, .leave_to_files = 5, .back_over_link = 1, .back_from_files = 2};
  EXPECT_DOUBLE_EQ(times.forward(2, activations), 1 + 5) << "units are read while activations are written";
  EXPECT_DOUBLE_EQ(times.backward(2, activations), 2 + 3 + 1);
  EXPECT_DOUBLE_EQ(files.backward(2, activations), 1 + 2);
}

TEST(PlanOffloadTest, WhatHasNoRoomIsRefused) {
  const Job what = offload_job();
  const Layout on_host{.zero_stage = 2, .micro_batch = 1, .states = Place::host};
  const Layout in_files{.zero_stage = 2, .micro_batch = 1, .states = Place::nvme};
  Cluster where = offload_cards();
  where.host.memory_bytes = 230'000'000;
  EXPECT_THAT(predict(where, what, on_host).refused,
              testing::AllOf(HasSubstr("offload needs "), HasSubstr("of the memory of a host, which has 230 MB")));
  EXPECT_EQ(predict(where, what, in_files).refused, "");
  where.disk.bytes = 1000;
  EXPECT_THAT(predict(where, what, in_files).refused, HasSubstr("of the disk of a host, which has 1.00 kB"));
  where.host.memory_bytes = 0;
  EXPECT_THAT(predict(where, what, on_host).refused,
              HasSubstr("of the memory of a host, which the cluster does not describe"));
}

// A layout with everything that may be moved. A rank alone has ZeRO's stages for this.
std::vector<Layout> with_moves(const Layout& layout, bool on_host) {
  const std::vector<Place> places =
      on_host ? std::vector{Place::device, Place::nvme} : std::vector{Place::device, Place::host, Place::nvme};
  const bool alone = layout.gradient_ranks() == 1;
  std::vector<Layout> out;
  for (const int zero_stage : alone ? std::vector{2, 3} : std::vector{layout.zero_stage}) {
    for (const Place states : places) {
      for (const Place parameters : places) {
        const bool nothing = states == Place::device && (parameters == Place::device || !on_host);
        const bool twice = alone && zero_stage == 3 && parameters == Place::device; // stage 2 again
        if (nothing || twice || (zero_stage < 3 && parameters != Place::device)) {
          continue;
        }
        out.push_back(layout);
        out.back().zero_stage = zero_stage;
        out.back().states = states;
        out.back().parameters = parameters;
      }
    }
  }
  return out;
}

// Of every layout, without any pruning; with moves those that do not fit without.
std::vector<double> all_times(const Cluster& where, const Job& what, int64_t most_micro_batch) {
  std::vector<double> out;
  Shared shared(what);
  const auto fits = [&](const Layout& layout) {
    const Prediction p = predict(where, what, layout, shared);
    if (p.refused.empty()) {
      out.push_back(p.step_seconds);
    }
    return p.refused.empty();
  };
  for (const Layout& layout : all_layouts(where.ranks(), what, most_micro_batch)) {
    if (!fits(layout)) {
      for (const Layout& moved : with_moves(layout, where.on_host)) {
        fits(moved);
      }
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(PlanOffloadTest, SearchFindsWhatLookingAtAllFinds) {
  Job what = offload_job(8);
  what.model.vocab_size = 1000;
  for (const bool on_host : {false, true}) {
    for (const int64_t ranks : {1, 2}) {
      for (const int64_t memory : {int64_t{400'000'000}, int64_t{45'000'000}, int64_t{20'000'000}}) {
        Cluster where = offload_cards(ranks);
        where.on_host = on_host;
        where.memory_bytes = memory + (on_host ? estimate::baseline_bytes() : 0);
        where.host = on_host ? HostMemory() : HostMemory{2'000'000'000, 0, 2e9, 1e9};
        where.memory_bandwidth = where.pass_bandwidth = 1e11;
        SearchOptions options;
        options.most_micro_batch = 2;
        const Plan found = search(where, what, options);
        const std::vector<double> times = all_times(where, what, 2);
        ASSERT_EQ(found.best.size(), std::min<size_t>(10, times.size())) << on_host << ' ' << ranks << ' ' << memory;
        for (size_t i = 0; i < found.best.size(); ++i) {
          EXPECT_DOUBLE_EQ(found.best[i].step_seconds, times[i]) << i << " of " << memory << " bytes";
        }
      }
    }
  }
}

TEST(PlanOffloadTest, BoundsAreBounds) {
  const Job what = offload_job(8);
  const Cluster where = offload_cards(2);
  const int64_t parameters = estimate::transformer(what.model, {}).parameters();
  for (const int stage : {1, 2, 3}) {
    for (const Place states : {Place::device, Place::host, Place::nvme}) {
      for (const Place place : {Place::device, Place::host}) {
        const Layout layout{.data = 2,
                            .zero_stage = stage,
                            .micro_batch = 1,
                            .recompute = 1,
                            .states = states,
                            .parameters = stage == 3 ? place : Place::device};
        EXPECT_LE(least_memory(what, layout, parameters, least_of_a_block(what, layout)),
                  predict(where, what, layout).memory_bytes)
            << describe(layout, what);
      }
    }
  }
}

TEST(PlanOffloadTest, ALayoutSaysWhereThingsAre) {
  EXPECT_THAT(describe({.zero_stage = 3, .states = Place::host, .parameters = Place::nvme}, offload_job()),
              HasSubstr(", states on the host, parameters in files"));
  EXPECT_THAT(describe({}, offload_job()), testing::Not(HasSubstr("states")));
}

} // namespace
} // namespace trireme::plan
