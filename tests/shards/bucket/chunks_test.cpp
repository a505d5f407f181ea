// Buckets that are cut into chunks of a store: where, and that nothing changes.
#include <trireme/base/error.h>
#include <trireme/shards/bucket/chunks.h>
#include <trireme/shards/bucket/flat_parameters.h>
#include <trireme/shards/bucket/shard_plan.h>
#include <trireme/shards/bucket/state_store.h>

#include <tests/support/chunked_store.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

namespace trireme::bucket {
namespace {

FlatLayout layout_of(const std::vector<int64_t>& numels, int64_t shards) {
  std::vector<TensorInfo> tensors;
  std::vector<int64_t> order;
  for (const int64_t numel : numels) {
    order.push_back(std::ssize(tensors));
    tensors.push_back({concat("p", numel), {numel}});
  }
  LayoutOptions options;
  options.shards = shards;
  return {std::move(tensors), std::move(order), options};
}

TEST(ChunksTest, CoverARangeAndHaveWholeBlocksOfTensors) {
  const FlatLayout layout = layout_of({100, 70'001, 3, 200'000, 16'384, 40'000}, 2);
  for (int64_t b = 0; b < std::ssize(layout.buckets()); ++b) {
    for (const int rank : {0, 1}) {
      const Range part = shard_of(layout.buckets()[b], rank, 2);
      for (const int64_t most : {kChunkAlignment, int64_t{50'000}, int64_t{1} << 30}) {
        const std::vector<Range> chunks = chunks_of(layout, b, part, most);
        ASSERT_FALSE(chunks.empty());
        EXPECT_EQ(chunks.front().begin, part.begin);
        EXPECT_EQ(chunks.back().end, part.end);
        for (size_t i = 0; i + 1 < chunks.size(); ++i) {
          EXPECT_EQ(chunks[i].end, chunks[i + 1].begin);
          EXPECT_GT(chunks[i].numel(), 0);
          EXPECT_LE(chunks[i].numel(), most);
          for (const TensorRange& piece : layout.pieces_in(b, part)) {
            const int64_t in_tensor = chunks[i].end - part.begin - piece.first;
            EXPECT_TRUE(in_tensor <= 0 || in_tensor >= piece.numel || in_tensor % kChunkAlignment == 0) << in_tensor;
          }
        }
        EXPECT_EQ(chunks.size() == 1, part.numel() <= most);
      }
    }
  }
}

TEST(ChunksTest, AnEmptyRangeIsOne) {
  const FlatLayout layout = layout_of({100}, 1);
  EXPECT_EQ(chunks_of(layout, 0, {50, 50}, kChunkAlignment).size(), 1U);
}

// Gradients that are added up in chunks are those in one piece of memory, wherever a range begins and ends.
TEST(ChunksTest, GradientsInChunksAreThoseInMemory) {
  const torch::NoGradGuard no_grad;
  const auto make = [](std::shared_ptr<StateStore> store) {
    NamedTensors parameters;
    for (const int64_t n : {70'000, 100, 40'000}) {
      parameters.emplace_back(concat("p", n), torch::zeros({n}).set_requires_grad(true));
    }
    return FlatParameters(
        std::move(parameters), LayoutOptions{},
        [](int64_t numel, at::ScalarType type) { return torch::empty({numel}, type); },
        FlatOptions{.shard_gradients = true, .gradient_store = std::move(store)});
  };
  const auto store = std::make_shared<test::ChunkedStore>();
  FlatParameters memory = make(nullptr);
  FlatParameters chunked = make(store);
  EXPECT_LT(store->most(), 40'000) << "elements of a part";
  for (int64_t pass = 0; pass < 3; ++pass) {
    for (int64_t b = 0; b < std::ssize(memory.layout().buckets()); ++b) {
      const at::Tensor gradient = torch::randn({memory.layout().buckets()[b].numel()});
      for (FlatParameters* flat : {&memory, &chunked}) {
        flat->bucket_grad(b).copy_(gradient);
        flat->accumulate(b);
      }
      const Bucket& whole = memory.layout().buckets()[b];
      for (const Range& range : {Range{whole.begin, whole.end}, Range{whole.begin + 5, whole.end - 7},
                                 Range{whole.begin + 3, whole.begin + 9}, Range{whole.begin, whole.begin}}) {
        EXPECT_TRUE(torch::equal(memory.owned_grad(b, range), chunked.owned_grad(b, range)));
      }
    }
  }
}

} // namespace
} // namespace trireme::bucket
