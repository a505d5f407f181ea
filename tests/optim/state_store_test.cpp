// Masters and optimizer states that are not in memory between steps: the same bits, and one bucket at a time.
#include "flat_rank.h"

#include <tests/support/chunked_store.h>
#include <tests/support/file_store.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::optim {
namespace {

namespace fs = std::filesystem;

TEST(StateStoreTest, StatesInFilesTrainAsThoseInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_states_", ::getpid());
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        const OptimizerOptions options = options_of(rule, state_type);
        Rank memory(options, 0, 1, type);
        Rank files(options, 0, 1, type, std::make_unique<test::FileStore>(folder));
        EXPECT_EQ(files.optimizer().bytes(), memory.optimizer().bytes());
        memory.run(1, 3);
        files.run(1, 3);
        files.load_states(files.states()); // what a checkpoint does
        memory.run(4, 5);
        files.run(4, 5);
        expect_same_values(files, memory, name(state_type));
      }
    }
  }
}

const std::vector<int64_t> kSizes = {40'000, 1, 100, 70'003, 20'000};

// A store may give a bucket in chunks: the bits are those of whole buckets, LAMB's norms and blocks of 8 bits included.
TEST(StateStoreTest, StatesInChunksTrainAsWholeOnes) {
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        for (const int size : {1, 2}) {
          if (is_lamb(rule) && size > 1) {
            continue; // its norms need another rank
          }
          const OptimizerOptions options = options_of(rule, state_type);
          auto owned = std::make_unique<test::ChunkedStore>();
          const test::ChunkedStore& store = *owned;
          Rank memory(options, size - 1, size, type, nullptr, kSizes);
          Rank chunks(options, size - 1, size, type, std::move(owned), kSizes);
          EXPECT_EQ(store.most(), bucket::kChunkAlignment) << "elements of a part";
          EXPECT_EQ(chunks.optimizer().bytes(), memory.optimizer().bytes());
          memory.run(1, 2);
          chunks.run(1, 2);
          chunks.load_states(chunks.states()); // what a checkpoint does
          memory.run(3, 3);
          chunks.run(3, 3);
          expect_same_values(chunks, memory, name(state_type));
        }
      }
    }
  }
}

// Who has a say in a step (SteppedValues) gets the values of a bucket in one piece, and what it writes is kept.
TEST(StateStoreTest, ValuesOfChunksAreThoseOfTheirBucket) {
  using Access = bucket::SteppedValues::Access;
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::int8}) {
      const OptimizerOptions options = options_of(AdamOptions{}, state_type);
      Rank memory(options, 0, 1, type, nullptr, kSizes);
      Rank chunks(options, 0, 1, type, std::make_unique<test::ChunkedStore>(), kSizes);
      for (Rank* rank : {&memory, &chunks}) {
        rank->run(1, 2);
        for (int64_t b = 0; b < std::ssize(rank->flat().layout().buckets()); ++b) {
          rank->optimizer().with_values(0, b, Access::write_all, [](const bucket::SteppedValues::Values& values) {
            at::Tensor(values.parameters).mul_(0.5);
            for (const at::Tensor& state : values.states) {
              at::Tensor(state).mul_(0.75);
            }
          });
        }
        rank->run(3, 3);
      }
      EXPECT_TRUE(torch::equal(chunks.flat().flat_data(), memory.flat().flat_data()));
      for (int64_t b = 0; b < std::ssize(memory.flat().layout().buckets()); ++b) {
        std::vector<at::Tensor> expected;
        memory.optimizer().with_values(0, b, Access::read_all, [&](const bucket::SteppedValues::Values& values) {
          expected = values.states;
          expected.push_back(values.parameters);
        });
        chunks.optimizer().with_values(0, b, Access::read_all, [&](const bucket::SteppedValues::Values& values) {
          ASSERT_EQ(values.states.size() + 1, expected.size());
          for (size_t i = 0; i < values.states.size(); ++i) {
            EXPECT_TRUE(torch::equal(values.states[i], expected[i]));
          }
          EXPECT_TRUE(torch::equal(values.parameters, expected.back()));
        });
      }
    }
  }
}

// The norm of gradients adds block by block, also where a block lies in two chunks.
TEST(StateStoreTest, NormsOfGradientsInChunksAreThoseInMemory) {
  const torch::NoGradGuard no_grad;
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    const auto norm_of = [&](const std::shared_ptr<bucket::StateStore>& store) {
      torch::manual_seed(3);
      bucket::NamedTensors parameters;
      for (const int64_t n : kSizes) {
        parameters.emplace_back(concat("p", n), torch::randn({n}, type).set_requires_grad(true));
      }
      bucket::FlatParameters flat(parameters, {}, allocate,
                                  {.shard_gradients = true,
                                   .placement_of =
                                       [](const std::string& name, const at::Tensor&) {
                                         bucket::Placement placement;
                                         placement.counts_in_norm = name != "p100";
                                         return placement;
                                       },
                                   .gradient_store = store});
      FlatOptimizer optimizer(
          {&flat}, [](const bucket::TensorInfo&) { return ParameterOptions{}; }, options_of(AdamOptions{}));
      for (int64_t b = 0; b < std::ssize(flat.layout().buckets()); ++b) {
        at::Tensor gradient = flat.bucket_grad(b);
        gradient.copy_(torch::randn({gradient.numel()}));
        flat.accumulate(b);
      }
      return optimizer.squared_grad_norm().item<double>();
    };
    EXPECT_EQ(norm_of(std::make_shared<test::ChunkedStore>()), norm_of(nullptr));
  }
}

// What a checkpoint is told of the states without reading them.
TEST(StateStoreTest, PiecesAreWhatIsVisitedAndExtentsAreWhereItLies) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_pieces_", ::getpid());
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      Rank rank(options_of(AdamOptions{}, state_type), 1, 2, type, std::make_unique<test::FileStore>(folder));
      const bool has_master = type != torch::kFloat32;
      const auto buckets = rank.optimizer().state_buckets();
      ASSERT_GT(buckets.size(), 1U);
      EXPECT_EQ(rank.optimizer().state_extent(buckets[0].buffer, buckets[0].bucket, 0).has_value(),
                !has_master && state_type != StateType::int8)
          << "masters may be behind the parameters before the first step";
      for (const int64_t steps : {0, 2}) {
        for (int64_t step = 1; step <= steps; ++step) {
          rank.begin(step);
          rank.step_all();
        }
        size_t next_bucket = 0;
        size_t next_piece = 0;
        const auto check = [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin,
                               const at::Tensor& values) {
          const auto& piece = buckets.at(next_bucket).pieces.at(next_piece);
          EXPECT_EQ(piece.state, state);
          EXPECT_EQ(piece.tensor->name, tensor.name);
          EXPECT_EQ(piece.begin, begin);
          EXPECT_EQ(piece.numel, values.numel());
          EXPECT_EQ(piece.type, values.scalar_type());
          if (++next_piece == buckets[next_bucket].pieces.size()) {
            next_piece = 0;
            ++next_bucket;
          }
        };
        rank.optimizer().for_each_state(check, false);
        EXPECT_EQ(next_bucket, buckets.size());
      }
      for (const auto& bucket : buckets) {
        std::vector<std::string> lent;
        rank.optimizer().visit_states(
            bucket.buffer, bucket.bucket,
            [&](size_t, const at::Tensor& values) {
              lent.emplace_back(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
            },
            false);
        ASSERT_EQ(lent.size(), bucket.pieces.size());
        for (size_t i = 0; i < lent.size(); ++i) {
          const auto extent = rank.optimizer().state_extent(bucket.buffer, bucket.bucket, i);
          EXPECT_EQ(extent.has_value(), bucket.pieces[i].state == kMasterState || state_type != StateType::int8);
          if (extent) {
            EXPECT_EQ(
                read_file(extent->file).substr(static_cast<size_t>(extent->offset), static_cast<size_t>(extent->bytes)),
                lent[i])
                << bucket.pieces[i].state;
          }
        }
      }
    }
  }
}

// Plain SGD has nothing to keep.
TEST(StateStoreTest, NothingIsAskedOfAStoreThatKeepsNothing) {
  OptimizerOptions options = options_of(SgdOptions{});
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_nothing_", ::getpid());
  Rank rank(options, 0, 1, torch::kFloat32, std::make_unique<test::FileStore>(folder));
  rank.run(1, 2);
  EXPECT_EQ(rank.optimizer().bytes(), 0);
  EXPECT_TRUE(rank.states().empty());
}

TEST(StateStoreTest, AVisitThatOnlyReadsWritesNothingAndOneThatThrowsGivesTheBucketBack) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_visits_", ::getpid());
  for (const StateType state_type : {StateType::fp32, StateType::int8}) {
    auto owned = std::make_unique<test::FileStore>(folder);
    test::FileStore& store = *owned;
    Rank rank(options_of(AdamOptions{}, state_type), 0, 1, torch::kBFloat16, std::move(owned));
    rank.run(1, 2);
    const int writes = store.writes();
    int visits = 0;
    const auto visit = [&](const std::string&, const bucket::TensorInfo&, int64_t, const at::Tensor&) { ++visits; };
    rank.optimizer().for_each_state(visit, false);
    EXPECT_GT(visits, 0);
    EXPECT_EQ(store.writes(), writes);
    const auto fail = [](const std::string&, const bucket::TensorInfo&, int64_t, const at::Tensor&) {
      throw Error("test", "no");
    };
    EXPECT_THROW(rank.optimizer().for_each_state(fail), Error);
    store.expect_nothing();
    rank.run(3, 3);
    EXPECT_GT(store.writes(), writes);
  }
}

} // namespace
} // namespace trireme::optim
