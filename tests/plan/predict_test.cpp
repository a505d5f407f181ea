// The simulated step against numbers worked out by hand and against the pipelines' formulas.
#include "clusters.h"

#include <trireme/base/error.h>
#include <trireme/estimate/traffic.h>
#include <trireme/plan/predict.h>
#include <trireme/plan/programs.h>
#include <trireme/plan/search.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::plan {
namespace {

using pipeline::ScheduleKind;
using testing::HasSubstr;

// Ranks that only multiply matrices, at 1e9 operations a second; links of 1e6 bytes a second.
Cluster multiplying(int64_t ranks, double overlap = 1) {
  Cluster out = multiplying_host(ranks, 1e9, {1e6});
  out.overlap = overlap;
  return out;
}

Job job(int64_t layers = 4, int64_t batch = 8) {
  Job out = gpt_job(layers, 64, 4, 16, 100, batch);
  out.base.clips = false;
  return out;
}

constexpr double kBlock = 2 * 16 * 12 * 64 * 64; // operations of a block's products for a sample, forward
constexpr double kHead = 2 * 16 * 64 * 100;

TEST(PredictTest, OneRankMultiplies) {
  const Prediction p = predict(multiplying(1), job(), {});
  EXPECT_EQ(p.refused, "");
  EXPECT_NEAR(p.step_seconds, 8 * 3 * (4 * kBlock + kHead) / 1e9, 1e-12);
  EXPECT_EQ(p.bubble, 0);
  EXPECT_TRUE(p.traffic.empty());
}

TEST(PredictTest, RecomputationIsAnotherForward) {
  Layout layout;
  layout.recompute = 1;
  EXPECT_NEAR(predict(multiplying(1), job(), layout).step_seconds, 8 * 4 * (4 * kBlock + kHead) / 1e9, 1e-12);
}

// partition_activations: the inputs of positions, blocks, norm and head, 4096 bytes each, are gathered once more in each of 8 backwards; the embedding's are tokens.
TEST(PredictTest, SharesOfInputsAreGatheredInBackward) {
  for (const bool sequence_parallel : {false, true}) {
    const Layout layout{.tensor = 2, .recompute = 1, .sequence_parallel = sequence_parallel};
    Job shared = job();
    shared.base.activations.shares_inputs = true;
    const Prediction before = predict(multiplying(2), job(), layout);
    const Prediction after = predict(multiplying(2), shared, layout);
    EXPECT_NEAR(after.step_seconds - before.step_seconds, sequence_parallel ? 0 : 8 * 7 * 2048 / 1e6, 1e-9);
    EXPECT_EQ(after.memory_bytes < before.memory_bytes, !sequence_parallel);
    shared.base.activations.least_bytes = 4097;
    EXPECT_EQ(predict(multiplying(2), shared, layout).step_seconds, before.step_seconds) << "too small to be shared";
  }
}

// What another stage has sent is whole on every rank.
TEST(PredictTest, StagesGatherWhatTheyHaveNotReceived) {
  const Layout layout{.pipe = 2, .tensor = 2, .recompute = 1};
  Job shared = job(4, 1);
  shared.base.activations.shares_inputs = true;
  EXPECT_NEAR(predict(multiplying(4), shared, layout).step_seconds - predict(multiplying(4), job(4, 1), layout).step_seconds, 6 * 2048 / 1e6, 1e-9);
}

TEST(PredictTest, AnAllReduceWithoutOverlapIsAdded) {
  const Prediction p = predict(multiplying(2, 0), job(), {.data = 2});
  const double compute = 4 * 3 * (4 * kBlock + kHead) / 1e9;
  EXPECT_NEAR(p.pipeline_seconds, compute, 1e-12);
  // Parameters of four blocks (12 H^2 + 13 H), embeddings and the last norm; with the gaps of the flat buffer a little more.
  const double parameters = 4 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64;
  EXPECT_NEAR(p.reduce_seconds, 2 * 4 * parameters / 2 / 1e6, 0.01 * p.reduce_seconds);
  ASSERT_EQ(p.traffic.size(), 1u);
  EXPECT_EQ(p.traffic[0].axis, "data");
  EXPECT_EQ(p.traffic[0].link, "inside_host");
  EXPECT_NEAR(static_cast<double>(p.traffic[0].bytes), 4 * parameters, 0.01 * 4 * parameters);
}

TEST(PredictTest, OverlapHidesAllButTheLastBucket) {
  Job small = job();
  small.base.bucket_bytes = 100'000;
  small.base.first_bucket_bytes = 100'000;
  Cluster fast = multiplying(2);
  fast.levels[0].bandwidth = 1e9; // all gradients travel in a part of a backward
  const double hidden = predict(fast, small, {.data = 2}).reduce_seconds;
  fast.overlap = 0;
  const double open = predict(fast, small, {.data = 2}).reduce_seconds;
  EXPECT_GT(hidden, 0);
  EXPECT_LT(hidden, 0.3 * open);
}

// Four blocks on two stages; the embeddings' stage has no products beside its blocks', the last one has the head too.
TEST(PredictTest, TwoStagesWaitForEachOther) {
  Cluster cluster = multiplying(2);
  cluster.levels[0].bandwidth = kInfinite;
  const Prediction p = predict(cluster, job(4, 8), {.pipe = 2});
  const double a = 3 * 2 * kBlock / 1e9;
  const double b = a + 3 * kHead / 1e9;
  EXPECT_NEAR(p.pipeline_seconds, 8 * b + a, 1e-9) << "the first forward and the last backward of stage 0 are before and after";
  EXPECT_NEAR(p.bubble, 1 - 8 * (a + b) / (2 * (8 * b + a)), 1e-9);
}

TEST(PredictTest, TheBubbleIsTheTimelines) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::one_f_one_b, 1), {ScheduleKind::interleaved, 2}, {ScheduleKind::zero_bubble, 1}}) {
    Cluster cluster = multiplying(4);
    cluster.levels[0].bandwidth = kInfinite;
    Job even = job(2 * 4 * 32, 16); // so many blocks that embeddings and head hardly count
    const Layout layout{.pipe = 4, .schedule = kind, .chunks = chunks};
    const double papers = kind == ScheduleKind::zero_bubble ? 3.0 / (3 * 16 + 3) : 3.0 / (chunks * 16 + 3);
    EXPECT_NEAR(predict(cluster, even, layout).bubble, papers, 0.02) << pipeline::schedule_name(kind);
  }
}

TEST(PredictTest, MessagesBetweenStagesTakeTime) {
  Cluster cluster = multiplying(2);
  const Prediction slow = predict(cluster, job(4, 1), {.pipe = 2});
  cluster.levels[0].bandwidth = kInfinite;
  const Prediction fast = predict(cluster, job(4, 1), {.pipe = 2});
  EXPECT_NEAR(slow.pipeline_seconds - fast.pipeline_seconds, 2 * (64 + 4 * 16 * 64) / 1e6, 1e-9) << "one each way";
}

TEST(PredictTest, TheTensorAxisDividesProductsAndAddsSums) {
  Cluster cluster = multiplying(2);
  cluster.levels[0].bandwidth = kInfinite;
  const double compute = predict(cluster, job(), {.tensor = 2}).step_seconds;
  EXPECT_NEAR(compute, 8 * 3 * (4 * kBlock + kHead) / 2 / 1e9, 1e-9);
  cluster.levels[0].bandwidth = 1e6;
  cluster.overlap = 0;
  // Two all-reduces forward and two backward of every block, one of the embedding and one of the head; two numbers of every token are gathered for the loss.
  const double stream = 4.0 * 16 * 64;
  const double pass = stream / 2 / 1e6;
  const double loss = 2 * 8 * 16.0 / 2 / 1e6;
  EXPECT_NEAR(predict(cluster, job(), {.tensor = 2}).step_seconds - compute, 8 * ((4 * 8 + 4) * pass + loss), 1e-9);
}

TEST(PredictTest, RingsHideBehindAttention) {
  Cluster cluster = multiplying(2);
  const double open = predict(cluster, job(), {.context = 2}).pipeline_seconds;
  cluster.attention.points = {{1, 1e3}}; // attention takes seconds
  const double slow_attention = predict(cluster, job(), {.context = 2}).pipeline_seconds;
  cluster.levels[0].bandwidth = kInfinite;
  EXPECT_DOUBLE_EQ(predict(cluster, job(), {.context = 2}).pipeline_seconds, slow_attention);
  cluster.attention.points = {{1, kInfinite}};
  EXPECT_LT(predict(cluster, job(), {.context = 2}).pipeline_seconds, 0.9 * open);
}

TEST(PredictTest, RanksThatShareCoresTakeTurns) {
  Cluster cluster = multiplying(4, 0);
  cluster.levels[0].bandwidth = kInfinite;
  const double alone = predict(cluster, job(), {.data = 4}).pipeline_seconds;
  cluster.processors = 2;
  EXPECT_NEAR(predict(cluster, job(), {.data = 4}).pipeline_seconds, 2 * alone, 1e-9);
}

TEST(PredictTest, TheOptimizerIsAPassOverWhatARankOwns) {
  Cluster cluster = multiplying(4);
  cluster.memory_bandwidth = 1e6;
  cluster.levels[0].bandwidth = kInfinite;
  const double parameters = 4 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64;
  const double whole = predict(cluster, job(), {.data = 4}).optimizer_seconds;
  EXPECT_NEAR(whole, 28 * parameters / 1e6, 0.01 * whole);
  EXPECT_NEAR(predict(cluster, job(), {.data = 4, .zero_stage = 1}).optimizer_seconds, whole / 4, 0.01 * whole);
}

// Each micro-batch writes all gradients, however few samples it has: a copy moves 8 bytes of each, an addition 12.
TEST(PredictTest, GradientsAreAddedUpInEveryMicroBatch) {
  Cluster cluster = multiplying(1);
  const double parameters = 4 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64 + 100 * 64; // the shared weight gets two
  const double one = predict(cluster, job(), {.micro_batch = 8}).pipeline_seconds;
  cluster.memory_bandwidth = 1e6;
  EXPECT_NEAR(predict(cluster, job(), {.micro_batch = 8}).pipeline_seconds - one, 8 * parameters / 1e6, 1e-6);
  EXPECT_NEAR(predict(cluster, job(), {.micro_batch = 1}).pipeline_seconds - one, (8 + 7 * 12) * parameters / 1e6, 1e-6);
}

TEST(PredictTest, MoreOfAnythingIsNeverSlower) {
  const Layout layout{.pipe = 2, .data = 2, .context = 1, .tensor = 2, .zero_stage = 1};
  Cluster cluster = multiplying(8);
  cluster.memory_bandwidth = cluster.pass_bandwidth = 1e8;
  Job buckets = job();
  buckets.base.bucket_bytes = buckets.base.first_bucket_bytes = 50'000;
  const double before = predict(cluster, buckets, layout).step_seconds;
  const auto faster = [&](const auto& change) {
    Cluster changed = cluster;
    change(changed);
    return predict(changed, buckets, layout).step_seconds;
  };
  EXPECT_LT(faster([](Cluster& c) { c.products.points[0].flops *= 2; }), before);
  EXPECT_LT(faster([](Cluster& c) { c.levels[0].bandwidth *= 2; }), before);
  EXPECT_LT(faster([](Cluster& c) { c.memory_bandwidth *= 2; }), before);
  EXPECT_LT(faster([](Cluster& c) { c.pass_bandwidth *= 2; }), before);
  EXPECT_GT(faster([](Cluster& c) { c.levels[0].latency = 1e-3; }), before);
  EXPECT_GT(faster([](Cluster& c) { c.layer_seconds = 1e-3; }), before);
  EXPECT_LT(faster([](Cluster& c) { c.all_reduce_gathers = 1; }), before);
  EXPECT_GT(faster([](Cluster& c) { c.overlap = 0; }), before);
}

// activation_checkpointing: recomputed as an interval recomputes, or moved beside computation over the link or the disk.
TEST(PredictTest, WaysOfActivations) {
  Cluster cluster = multiplying(1);
  const auto with = [&](activations::Way way) {
    Job of = job();
    of.base.activations.policy = way;
    return predict(cluster, of, {}).step_seconds;
  };
  cluster.host.memory_bytes = int64_t{1} << 40;
  const double keep = with(activations::Way::keep);
  EXPECT_NEAR(keep, predict(cluster, job(), {}).step_seconds, 1e-12);
  EXPECT_NEAR(with(activations::Way::recompute) - keep, 8 * 4 * kBlock / 1e9, 1e-9) << "blocks, not the head";
  const double compute = 8 * (4 * kBlock + kHead) / 1e9;
  cluster.host.link_bandwidth = 1e12;
  EXPECT_NEAR(with(activations::Way::host), keep, 1e-9) << "behind computation";
  cluster.host.link_bandwidth = 1e5;
  const double moved = 8 * 4 * static_cast<double>(model_of(job(), {}, 1).layers.at(2).kept) / 1e5;
  ASSERT_GT(moved, 2 * compute);
  EXPECT_NEAR(with(activations::Way::host), 2 * moved, 1e-6 * moved) << "all that is left of a step is the way out and back";
  cluster.host.link_bandwidth = 1e12;
  cluster.disk = {.bytes = int64_t{1} << 40, .read_bandwidth = 2e5, .write_bandwidth = 1e5};
  EXPECT_NEAR(with(activations::Way::nvme), 1.5 * moved, 1e-6 * moved);
}

// Activations on the host of a card take nothing but what moves of its memory, and need room on the host, which is shown.
TEST(PredictTest, ActivationsOnTheHostNeedItsMemory) {
  Cluster cluster = multiplying(1);
  cluster.host = {int64_t{1} << 40, 0, 1e12, 1e12};
  Job moved = job();
  moved.base.activations.policy = activations::Way::host;
  const Prediction keep = predict(cluster, job(), {});
  const Prediction host = predict(cluster, moved, {});
  const int64_t blocks = 4 * model_of(job(), {}, 1).layers.at(2).kept;
  EXPECT_LE(host.memory_bytes, keep.memory_bytes - blocks + blocks / 2);
  ASSERT_EQ(host.on_host.size(), 1u);
  EXPECT_EQ(host.on_host.front().bytes, blocks);
  ASSERT_EQ(host.moved.size(), 2u);
  EXPECT_EQ(host.moved[0].bytes, 8 * blocks);
  EXPECT_TRUE(keep.moved.empty());
  cluster.host.memory_bytes = blocks;
  EXPECT_THAT(predict(cluster, moved, {}).refused, testing::HasSubstr("of the memory of a host, which has")) << "libtorch has no room beside";
  cluster.host.memory_bytes = 0;
  EXPECT_THAT(predict(cluster, moved, {}).refused, testing::HasSubstr("nothing is said of the memory of a host"));
  cluster.on_host = true;
  EXPECT_EQ(predict(cluster, moved, {}).refused, "") << "where they are anyway";
  moved.base.activations = {.policy = activations::Way::nvme, .nvme_path = "/n"};
  EXPECT_THAT(predict(cluster, moved, {}).refused, testing::HasSubstr("nothing is said of the disk of a host"));
}

// Where ranks share memory an all-reduce may take as long as an all-gather.
TEST(PredictTest, AllReducesInGathers) {
  Cluster cluster = multiplying(2, 0);
  const auto sums = [&](const Layout& layout) {
    const Prediction p = predict(cluster, job(), layout);
    return std::pair(p.reduce_seconds, p.pipeline_seconds);
  };
  const auto [data, nothing] = sums({.data = 2});
  const auto [shards, as_much] = sums({.data = 2, .zero_stage = 1});
  const auto [little, tensor] = sums({.tensor = 2});
  cluster.all_reduce_gathers = 1;
  EXPECT_NEAR(sums({.data = 2}).first, data / 2, 1e-6 * data);
  EXPECT_NEAR(sums({.data = 2, .zero_stage = 1}).first, shards, 1e-3 * shards) << "a reduce-scatter is a gather";
  const double collectives = tensor - 8 * 3 * (4 * kBlock + kHead) / 2 / 1e9;
  EXPECT_NEAR(tensor - sums({.tensor = 2}).second, collectives / 2, 0.02 * collectives) << "but the two numbers a token of the loss, which are gathered";
}

TEST(PredictTest, ZeroThreeGathersForEveryPass) {
  Job one = job();
  one.base.param_persistence_threshold = 0;
  const Cluster cluster = multiplying(2, 0);
  const double second = predict(cluster, one, {.data = 2, .zero_stage = 2, .micro_batch = 4}).step_seconds;
  const double third = predict(cluster, one, {.data = 2, .zero_stage = 3, .micro_batch = 4}).step_seconds;
  // Instead of one gather of the parameters at the end one for forward and nearly one for backward.
  const double gather = 4 * (4.0 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64) / 2 / 1e6;
  EXPECT_GT(third - second, 0.5 * gather);
  EXPECT_LT(third - second, 1.05 * gather);
}

int64_t along_data(const estimate::Run& run) {
  int64_t most = 0;
  for (const estimate::StageTraffic& stage : estimate::traffic_of(run)) {
    int64_t sum = 0;
    for (const estimate::Item& item : stage.items) {
      sum += item.axis == "data" ? item.bytes : 0;
    }
    most = std::max(most, sum);
  }
  return most;
}

// The bytes and the memory of a plan are those of the schedule's whole program.
TEST(PredictTest, ZeroThreeGathersForAllChunks) {
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::interleaved, 2), {ScheduleKind::interleaved, 4}, {ScheduleKind::one_f_one_b, 1}, {ScheduleKind::zero_bubble, 1}}) {
    for (const int64_t pipe : {2, 3}) {
      for (const int64_t micro_batches : {2, 9, 20, 33}) {
        Job one = job(12, 2 * micro_batches);
        one.base.param_persistence_threshold = 0;
        const Layout layout{.pipe = pipe, .data = 2, .zero_stage = 3, .schedule = kind, .chunks = chunks};
        Shared shared(one);
        estimate::Run run = run_of(one, layout, shared);
        run.programs.assign(1, estimate::Run::Programs{micro_batches, {}});
        for (const pipeline::Program& program : pipeline::make_programs(kind, shape_of(one, layout))) {
          run.programs.front().stages.push_back(phases_of(program));
        }
        const Prediction planned = predict(multiplying(2 * pipe), one, layout);
        const std::string which = concat(pipeline::schedule_name(kind), ' ', chunks, " on ", pipe, " x ", micro_batches);
        const auto data = std::find_if(planned.traffic.begin(), planned.traffic.end(), [](const AxisBytes& axis) { return axis.axis == "data"; });
        ASSERT_NE(data, planned.traffic.end());
        EXPECT_EQ(data->bytes, along_data(run)) << which;
        int64_t most = 0;
        for (const estimate::StageMemory& memory : estimate::memory_of(run)) {
          most = std::max(most, memory.peak_on_device());
        }
        EXPECT_EQ(planned.memory_bytes, most) << which;
        if (chunks > 1) {
          run.programs.clear();
          EXPECT_GT(data->bytes, along_data(run)) << which << ": the first chunk alone";
        }
      }
    }
  }
}

// Phases say a program again, with few words.
TEST(PredictTest, PhasesAreTheProgram) {
  for (const auto& [kind, chunks] :
       {std::pair(ScheduleKind::interleaved, 3), {ScheduleKind::naive, 2}, {ScheduleKind::gpipe, 2}, {ScheduleKind::one_f_one_b, 1}, {ScheduleKind::zero_bubble, 1}}) {
    for (const pipeline::Program& program : pipeline::make_programs(kind, {4, 64, chunks})) {
      std::vector<std::pair<pipeline::Op, int64_t>> expected;
      for (const pipeline::Instruction& instruction : program) {
        if (instruction.op >= pipeline::Op::forward && instruction.op <= pipeline::Op::backward_weight) {
          expected.emplace_back(instruction.op, instruction.chunk);
        }
      }
      std::vector<std::pair<pipeline::Op, int64_t>> said;
      const std::vector<estimate::Run::Phase> phases = phases_of(program);
      for (const estimate::Run::Phase& phase : phases) {
        for (int64_t i = 0; i < phase.repeats; ++i) {
          for (const auto& [computed, chunk] : phase.computations) {
            said.emplace_back(static_cast<pipeline::Op>(static_cast<int>(pipeline::Op::forward) + static_cast<int>(computed)), chunk);
          }
        }
      }
      EXPECT_EQ(said, expected) << pipeline::schedule_name(kind);
      EXPECT_LT(phases.size(), expected.size() / 3) << pipeline::schedule_name(kind);
    }
  }
}

TEST(PredictTest, ZeroThreeInAPipelineGathersWhatIsNotKept) {
  Job one = job();
  one.base.param_persistence_threshold = 0;
  const Cluster cluster = multiplying(4, 0);
  const double second = predict(cluster, one, {.pipe = 2, .data = 2, .zero_stage = 2, .micro_batch = 1}).step_seconds;
  const double third = predict(cluster, one, {.pipe = 2, .data = 2, .zero_stage = 3, .micro_batch = 1}).step_seconds;
  EXPECT_GT(third, 1.05 * second);
}

TEST(PredictTest, RefusalsAreOneSentence) {
  const auto why = [](const Job& j, const Layout& layout) { return predict(multiplying(layout.ranks()), j, layout).refused; };
  EXPECT_EQ(why(job(), {.tensor = 3}), "heads 4 cannot be divided by tensor 3");
  EXPECT_EQ(why(job(), {.data = 3}), "batch 8 cannot be divided by data 3");
  EXPECT_EQ(why(job(), {.data = 2, .micro_batch = 3}), "batch of a replica 4 cannot be divided by micro-batch 3");
  EXPECT_EQ(why(job(), {.pipe = 9}), "pipe 9 is more than the 8 layers");
  EXPECT_EQ(why(job(), {.context = 3}), "sequence 16 cannot be divided into 6 pieces, two for each of context 3");
  Job exchanging = job();
  exchanging.context_kind = context::Kind::ulysses;
  EXPECT_EQ(why(exchanging, {.context = 8}), "heads of a tensor rank 4 cannot be divided by context 8");
  Job few = job();
  few.gpt.vocab_size = 3;
  EXPECT_EQ(why(few, {.tensor = 4}), "vocabulary 3 has no token for each of tensor 4");
  Job odd = job();
  odd.gpt.vocab_size = 101;
  EXPECT_EQ(why(odd, {.tensor = 2}), "") << "an uneven vocabulary is fine";
  EXPECT_EQ(predict(multiplying(4), job(), {.data = 2}).refused, "the axes have 2 ranks, the cluster 4");
  EXPECT_EQ(why(job(4, 4'000'000), {.pipe = 2}), "4000000 micro-batches on 2 parts of the model are more than 1000000 forwards in a step");
  EXPECT_EQ(search(multiplying(1), job(4, 1'000'018), {.best = 1}).best.front().layout.micro_batch, 2) << "few enough";
}

TEST(PredictTest, MemoryIsRefusedByHowMuch) {
  Cluster cluster = multiplying(2);
  const Prediction fits = predict(cluster, job(), {.data = 2});
  cluster.memory_bytes = fits.memory_bytes;
  EXPECT_EQ(predict(cluster, job(), {.data = 2}).refused, "");
  cluster.memory_bytes = fits.memory_bytes - 1000;
  const Prediction refused = predict(cluster, job(), {.data = 2});
  EXPECT_THAT(refused.refused, HasSubstr("1.00 kB too much, most for"));
  EXPECT_EQ(refused.memory_bytes, fits.memory_bytes);
  EXPECT_EQ(refused.step_seconds, 0);
}

// With sequence parallelism the weights' half of a backward gathers inputs again, two a block; not on the first stage, nor where layers are recomputed.
TEST(PredictTest, WeightsThatComeLaterGatherInputsAgain) {
  const Job what = job(4, 8);
  const auto work = [&](ScheduleKind kind, bool sequence_parallel, int64_t recompute) { // of both stages
    const Layout layout{.pipe = 2, .tensor = 2, .schedule = kind, .recompute = recompute, .sequence_parallel = sequence_parallel};
    const Prediction p = predict(multiplying(4, 0), what, layout);
    return 2 * p.pipeline_seconds * (1 - p.bubble);
  };
  const auto more = [&](bool sequence_parallel, int64_t recompute) {
    return work(ScheduleKind::zero_bubble, sequence_parallel, recompute) - work(ScheduleKind::one_f_one_b, sequence_parallel, recompute);
  };
  Shared shared(what);
  const auto blocks = static_cast<double>(6 - shared.bounds({.pipe = 2, .tensor = 2})[1]); // of the last stage
  const double pass = 4.0 * 16 * 64 / 2 / 1e6;
  EXPECT_NEAR(more(true, 0), 8 * blocks * 2 * pass, 1e-9);
  EXPECT_NEAR(more(false, 0), 0, 1e-9);
  EXPECT_NEAR(more(true, 1), 0, 1e-9);
}

// Where layers are recomputed nothing is left for later, so zero-bubble waits as 1f1b does.
TEST(PredictTest, RecomputedLayersHaveNoWeightsForLater) {
  Cluster cluster = multiplying(4);
  cluster.levels[0].bandwidth = kInfinite;
  const Job even = job(2 * 4 * 32, 16);
  const auto bubble = [&](ScheduleKind kind, int64_t recompute) { return predict(cluster, even, {.pipe = 4, .schedule = kind, .recompute = recompute}).bubble; };
  EXPECT_LT(bubble(ScheduleKind::zero_bubble, 0), 0.6 * bubble(ScheduleKind::one_f_one_b, 0));
  EXPECT_GT(bubble(ScheduleKind::zero_bubble, 1), 0.8 * bubble(ScheduleKind::one_f_one_b, 1));
}

// Whatever a micro-batch takes before and after its backward_input, no moment needs more than the one that counts.
TEST(PredictTest, TheMomentOfAZeroBubblePipelineThatNeedsMost) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, p, 2 * p + 1, 8 * p}) {
      for (const pipeline::Program& program : pipeline::make_programs(ScheduleKind::zero_bubble, {p, m, 1})) {
        const estimate::Run::Waiting said = waiting_of(program);
        for (const int64_t put_off : {0, 1, 3, 10, 1000}) { // bytes, beside 10 that a micro-batch keeps
          int64_t forwards = 0, inputs = 0, weights = 0, most = 0;
          for (const pipeline::Instruction& instruction : program) {
            forwards += instruction.op == pipeline::Op::forward ? 1 : 0;
            inputs += instruction.op == pipeline::Op::backward_input ? 1 : 0;
            weights += instruction.op == pipeline::Op::backward_weight ? 1 : 0;
            most = std::max(most, 10 * (forwards - weights) + put_off * (inputs - weights));
          }
          EXPECT_EQ(10 * said.in_flight + put_off * said.put_off, most) << p << " stages, " << m << " micro-batches, " << put_off;
        }
      }
    }
  }
}

// The last stage has few forwards ahead of backwards, but keeps as many gradients as the first one keeps activations.
TEST(PredictTest, WeightsThatComeLaterKeepGradients) {
  const Job what = job(8, 16);
  const auto activations = [&](ScheduleKind kind) {
    const Layout layout{.pipe = 4, .schedule = kind};
    Shared shared(what);
    std::vector<int64_t> bytes;
    for (const estimate::StageMemory& stage : estimate::memory_of(run_of(what, layout, shared))) {
      bytes.push_back(stage.item(estimate::Category::activations).bytes);
    }
    return bytes;
  };
  const std::vector<int64_t> all = activations(ScheduleKind::zero_bubble);
  const std::vector<int64_t> alone = activations(ScheduleKind::one_f_one_b);
  EXPECT_EQ(all[0], alone[0]) << "the first stage splits nothing";
  const estimate::Model model = model_of(what, {.pipe = 4});
  Shared shared(what);
  const std::vector<int64_t>& bounds = shared.bounds({.pipe = 4});
  for (const int64_t stage : {1, 2, 3}) {
    int64_t kept = stage == 3 ? model.loss_kept : 0;
    int64_t put_off = 0;
    for (int64_t i = bounds[stage]; i < bounds[stage + 1]; ++i) {
      kept += model.layers[i].kept;
      put_off += model.layers[i].put_off;
    }
    EXPECT_EQ(all[stage] - alone[stage], stage * kept + (stage + 1) * put_off) << "4 micro-batches instead of " << 4 - stage << ", and gradients of " << stage + 1;
  }
}

// In flight for few micro-batches is what it is for many.
TEST(PredictTest, FewMicroBatchesTellWhatManyKeep) {
  const Job any = job(64, 1);
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::one_f_one_b, 1), {ScheduleKind::interleaved, 2}, {ScheduleKind::interleaved, 4}, {ScheduleKind::zero_bubble, 1}, {ScheduleKind::naive, 1}}) {
    for (const int p : {2, 3, 4, 8}) {
      for (const int m : {4 * p + 1, 5 * p, 8 * p, 11 * p + 1}) {
        Shared shared(any);
        const pipeline::ScheduleShape shape{p, m, chunks};
        std::vector<std::vector<int64_t>> all;
        for (const pipeline::Program& program : pipeline::make_programs(kind, shape)) {
          all.push_back(pipeline::most_in_flight(program, chunks));
        }
        if (kind == ScheduleKind::zero_bubble) {
          std::vector<estimate::Run::Waiting> moments;
          for (const pipeline::Program& program : pipeline::make_programs(kind, shape)) {
            moments.push_back(waiting_of(program));
          }
          EXPECT_EQ(shared.waiting(shape), moments) << p << ' ' << m;
        }
        EXPECT_EQ(shared.in_flight(kind, shape), all) << pipeline::schedule_name(kind) << ' ' << p << ' ' << m << ' ' << chunks;
      }
    }
  }
}

} // namespace
} // namespace trireme::plan
