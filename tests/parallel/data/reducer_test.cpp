#include "toy.h"

#include <trireme/base/error.h>
#include <trireme/parallel/data/reducer.h>
#include <trireme/parallel/data/replicas.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::parallel {
namespace {

using test::run_ranks;
using testing::IsEmpty;

std::vector<bucket::FlatParameters*> pointers(const FlatBuffers& buffers) {
  std::vector<bucket::FlatParameters*> out;
  for (const auto& buffer : buffers) {
    out.push_back(buffer.get());
  }
  return out;
}

class ReducerTest : public testing::TestWithParam<int> {};

// The same local gradients, summed bucket by bucket without any hook, give the same bits.
TEST_P(ReducerTest, SumsAreBitEqualToPlainAllReduces) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          const comm::Group& group = world.group();
                          Toy model(1);
                          Toy twin(1);
                          const auto flat = flatten(trainable_parameters(*model), group, small_buckets());
                          Reducer reducer(pointers(flat), group, small_buckets());
                          for (int step = 0; step < 4; ++step) {
                            const at::Tensor x = toy_batch(step * 10 + world.rank(), 5);
                            flat[0]->clear_grads();
                            model->loss(x).backward();
                            reducer.finish();
                            twin->zero_grad();
                            twin->loss(x).backward();
                            // Lay the twin's gradients out in the same way and reduce them plainly.
                            const auto& layout = flat[0]->layout();
                            at::Tensor plain = torch::zeros({layout.numel()});
                            const auto twins = trainable_parameters(*twin);
                            for (int64_t i = 0; i < flat[0]->count(); ++i) {
                              const auto& slot = layout.slot_of(i);
                              if (twins[i].second.grad().defined()) {
                                plain.slice(0, slot.begin, slot.end).copy_(twins[i].second.grad().flatten());
                              }
                            }
                            ASSERT_GT(layout.buckets().size(), 3u);
                            for (size_t b = 0; b < layout.buckets().size(); ++b) {
                              // Bucket 0 carries the riders; ring order depends on the length, so give it the same.
                              const auto& bucket = layout.buckets()[b];
                              const int64_t riders = b == 0 ? bucket::FlatParameters::kRiders : 0;
                              at::Tensor part = torch::cat({torch::zeros({riders}), plain.slice(0, bucket.begin, bucket.end)});
                              if (step > 0) { // in step 0 the order was learned after the reduction
                                group.all_reduce(part).wait();
                                EXPECT_TRUE(part.slice(0, riders).equal(flat[0]->flat_grad().slice(0, bucket.begin, bucket.end))) << "bucket " << b;
                              }
                            }
                          }
                        }),
              IsEmpty());
}

TEST_P(ReducerTest, EveryRankLearnsRankZerosReadyOrder) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          Toy model(1);
                          const auto flat = flatten(trainable_parameters(*model), world.group(), small_buckets());
                          Reducer reducer(pointers(flat), world.group(), small_buckets());
                          EXPECT_EQ(reducer.order_is_learned(), world.size() == 1);
                          model->loss(toy_batch(0, 4)).backward();
                          reducer.finish();
                          EXPECT_TRUE(reducer.order_is_learned());
                          if (world.size() > 1) { // gradients arrive from last to first; the layer nobody uses comes at the end
                            std::vector<std::string> names;
                            for (const int64_t i : flat[0]->layout().order()) {
                              names.push_back(flat[0]->name(i));
                            }
                            EXPECT_EQ(names.front().substr(0, 5), "last.");
                            EXPECT_EQ(names.back().substr(0, 6), "never.");
                          }
                        }),
              IsEmpty());
}

TEST_P(ReducerTest, PreAndPostScalingGiveTheMean) {
  EXPECT_THAT(run_ranks(GetParam(),
                        [](comm::World& world) {
                          for (int kind = 0; kind < 3; ++kind) {
                            DataParallelOptions options = small_buckets();
                            options.prescale_gradients = kind == 1;
                            options.gradient_predivide_factor = kind == 2 ? 2.0 : 1.0;
                            Toy model(1);
                            const auto flat = flatten(trainable_parameters(*model), world.group(), options);
                            Reducer reducer(pointers(flat), world.group(), options);
                            model->loss(toy_batch(3, 4)).backward(); // the same on every rank: the mean is the local gradient
                            const at::Tensor local = [&] {
                              Toy twin(1);
                              twin->loss(toy_batch(3, 4)).backward();
                              return twin->first->weight.grad().clone();
                            }();
                            reducer.finish();
                            const double scale = world.size() == 1 ? 1 : reducer.post_scale();
                            EXPECT_TRUE(torch::allclose(model->first->weight.grad() * scale, local, 1e-6, 1e-9)) << "kind " << kind;
                          }
                        }),
              IsEmpty());
}

TEST(ReducerErrorTest, SparseGradientsAreRefusedByName) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 3).sparse(true));
  const comm::Group alone;
  const auto flat = flatten(trainable_parameters(*embedding), alone, {});
  Reducer reducer(pointers(flat), alone, {});
  try {
    embedding->forward(torch::tensor({1, 2})).sum().backward();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("parameter weight has a sparse gradient"));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerTest, testing::Values(1, 2, 3, 4));

} // namespace
} // namespace trireme::parallel
