// The simulated step against numbers worked out by hand and against the pipelines' formulas.
#include "multiplying.h"

#include <trireme/plan/predict.h>
#include <trireme/plan/search.h>

#include <gmock/gmock.h>

namespace trireme::plan {
namespace {

using pipeline::ScheduleKind;
using testing::HasSubstr;

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

// partition_activations: the inputs of positions, blocks, norm and head, 4096 bytes each, are gathered once more in
// each of 8 backwards; the embedding's are tokens.
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
  EXPECT_NEAR(
      predict(multiplying(4), shared, layout).step_seconds - predict(multiplying(4), job(4, 1), layout).step_seconds,
      6 * 2048 / 1e6, 1e-9);
}

TEST(PredictTest, AnAllReduceWithoutOverlapIsAdded) {
  const Prediction p = predict(multiplying(2, 0), job(), {.data = 2});
  const double compute = 4 * 3 * (4 * kBlock + kHead) / 1e9;
  EXPECT_NEAR(p.pipeline_seconds, compute, 1e-12);
  // Parameters of four blocks (12 H^2 + 13 H), embeddings and the last norm; with the gaps of the flat buffer a little
  // more.
  const double parameters = 4 * (12 * 64 * 64 + 13 * 64) + (100 + 16 + 2) * 64;
  EXPECT_NEAR(p.reduce_seconds, 2 * 4 * parameters / 2 / 1e6, 0.01 * p.reduce_seconds);
  ASSERT_EQ(p.traffic.size(), 1u);
  EXPECT_EQ(p.traffic[0].axis, "data");
  EXPECT_EQ(p.traffic[0].link, "inside_host");
  EXPECT_NEAR(static_cast<double>(p.traffic[0].bytes), 4 * parameters, 0.01 * 4 * parameters);
}

TEST(PredictTest, OverlapHidesAllButTheLastBucket) {
  Job small = job();
  small.base.data_parallel.bucket_bytes = 100'000;
  small.base.data_parallel.first_bucket_bytes = 100'000;
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
  EXPECT_NEAR(p.pipeline_seconds, 8 * b + a, 1e-9)
      << "the first forward and the last backward of stage 0 are before and after";
  EXPECT_NEAR(p.bubble, 1 - 8 * (a + b) / (2 * (8 * b + a)), 1e-9);
}

TEST(PredictTest, TheBubbleIsTheTimelines) {
  for (const auto& [kind, chunks] :
       {std::pair(ScheduleKind::one_f_one_b, 1), {ScheduleKind::interleaved, 2}, {ScheduleKind::zero_bubble, 1}}) {
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
  // Two all-reduces forward and two backward of every block, one of the embedding and one of the head; two numbers of
  // every token are gathered for the loss.
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
  EXPECT_NEAR(predict(cluster, job(), {.micro_batch = 1}).pipeline_seconds - one, (8 + 7 * 12) * parameters / 1e6,
              1e-6);
}

TEST(PredictTest, MoreOfAnythingIsNeverSlower) {
  const Layout layout{.pipe = 2, .data = 2, .context = 1, .tensor = 2, .zero_stage = 1};
  Cluster cluster = multiplying(8);
  cluster.memory_bandwidth = cluster.pass_bandwidth = 1e8;
  Job buckets = job();
  buckets.base.data_parallel.bucket_bytes = buckets.base.data_parallel.first_bucket_bytes = 50'000;
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

// activation_checkpointing: recomputed as an interval recomputes, or moved beside computation over the link or the
// disk.
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
  EXPECT_NEAR(with(activations::Way::host), 2 * moved, 1e-6 * moved)
      << "all that is left of a step is the way out and back";
  cluster.host.link_bandwidth = 1e12;
  cluster.disk = {.bytes = int64_t{1} << 40, .read_bandwidth = 2e5, .write_bandwidth = 1e5};
  EXPECT_NEAR(with(activations::Way::nvme), 1.5 * moved, 1e-6 * moved);
}

// Activations on the host of a card take nothing but what moves of its memory, and need room on the host, which is
// shown.
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
  EXPECT_THAT(predict(cluster, moved, {}).refused, testing::HasSubstr("of the memory of a host, which has"))
      << "libtorch has no room beside";
  cluster.host.memory_bytes = 0;
  EXPECT_THAT(predict(cluster, moved, {}).refused,
              testing::HasSubstr("of the memory of a host, which the cluster does not describe"));
  cluster.on_host = true;
  EXPECT_EQ(predict(cluster, moved, {}).refused, "") << "where they are anyway";
  moved.base.activations = {.policy = activations::Way::nvme, .nvme_path = "/n"};
  EXPECT_THAT(predict(cluster, moved, {}).refused,
              testing::HasSubstr("of the disk of a host, which the cluster does not describe"));
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
  EXPECT_NEAR(tensor - sums({.tensor = 2}).second, collectives / 2, 0.02 * collectives)
      << "but the two numbers a token of the loss, which are gathered";
}

TEST(PredictTest, RefusalsAreOneSentence) {
  const auto why = [](const Job& j, const Layout& layout) {
    return predict(multiplying(layout.ranks()), j, layout).refused;
  };
  EXPECT_EQ(why(job(), {.tensor = 3}), "heads 4 cannot be divided by tensor 3");
  EXPECT_EQ(why(job(), {.data = 3}), "batch 8 cannot be divided by data 3");
  EXPECT_EQ(why(job(), {.data = 2, .micro_batch = 3}), "batch of a replica 4 cannot be divided by micro-batch 3");
  EXPECT_EQ(why(job(), {.pipe = 9}), "pipe 9 is more than the 8 layers");
  EXPECT_EQ(why(job(), {.context = 3}), "sequence 16 cannot be divided into 6 pieces, two for each of context 3");
  Job exchanging = job();
  exchanging.context_kind = context::Kind::ulysses;
  EXPECT_EQ(why(exchanging, {.context = 8}), "heads of a tensor rank 4 cannot be divided by context 8");
  Job few = job();
  few.model.vocab_size = 3;
  EXPECT_EQ(why(few, {.tensor = 4}), "vocabulary 3 is smaller than tensor 4");
  Job odd = job();
  odd.model.vocab_size = 101;
  EXPECT_EQ(why(odd, {.tensor = 2}), "") << "an uneven vocabulary is fine";
  EXPECT_EQ(predict(multiplying(4), job(), {.data = 2}).refused, "the axes have 2 ranks, the cluster 4");
  EXPECT_EQ(why(job(4, 4'000'000), {.pipe = 2}),
            "4000000 micro-batches on 2 parts of the model are more than 1000000 forwards in a step");
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

} // namespace
} // namespace trireme::plan
