// Shards that say which tokens count: written, read as targets of -100, and counted for the weights of micro-batches.
#include <trireme/base/file.h>
#include <trireme/data/loader.h>
#include <trireme/data/mixture.h>
#include <trireme/data/target_counts.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/token_files/shard_index.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/data/tokenize/shard_writer.h>
#include <trireme/data/tokens.h>

#include "temporary_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <numeric>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kTokens = 203;

bool counts(int64_t token) {
  return token % 3 == 0 || token / 40 == 2;
}

class MaskedShardsTest : public TemporaryFolderTest {
 protected:
  // Token i is i. Shards from `masked_from` on have a mask, unless all of their tokens count.
  fs::path make_shards(const std::string& name, int64_t shard_tokens, int64_t masked_from = 0) const {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    ShardWriter writer({.folder = folder, .vocab_size = 300, .tokenizer_hash = 7, .shard_tokens = shard_tokens});
    for (int64_t begin = 0; begin < kTokens; begin += 29) {
      std::vector<int32_t> tokens(static_cast<size_t>(std::min<int64_t>(29, kTokens - begin)));
      std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(begin));
      std::vector<uint8_t> counted;
      for (const int32_t token : tokens) {
        counted.push_back(token < masked_from || counts(token) ? 1 : 0);
      }
      writer.append(tokens, begin + 29 <= masked_from ? std::span<const uint8_t>() : counted, true);
    }
    ShardIndex index;
    index.shards = writer.finish();
    index.vocab_size = 300;
    index.tokenizer_hash = 7;
    write_file_atomically(folder / kShardIndexName, index.to_text());
    return folder;
  }
  static std::vector<int64_t> all_of(const Dataset& dataset) {
    std::vector<int64_t> indices(static_cast<size_t>(dataset.size()));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }
};

TEST_F(MaskedShardsTest, TargetsThatDoNotCountAreIgnored) {
  for (const int64_t shard_tokens : {7, 64, 1000}) {
    const TokensDataset dataset({make_shards(concat("shards", shard_tokens), shard_tokens)}, 9, 300);
    ASSERT_TRUE(dataset.masks_targets());
    for (const Part part : {Part::all, Part::targets}) {
      const Batch batch = dataset.get_part(all_of(dataset), part);
      int64_t counted = 0;
      for (int64_t i = 0; i < batch.target().numel(); ++i) {
        const auto target = batch.target().reshape({-1})[i].item<int64_t>();
        ASSERT_EQ(target, counts(i + 1) ? i + 1 : kIgnoredTarget) << shard_tokens;
        counted += counts(i + 1);
      }
      EXPECT_EQ(dataset.counted_targets(all_of(dataset)), counted);
      const int64_t one = 3;
      const at::Tensor row = dataset.get({&one, 1}).target();
      EXPECT_EQ(dataset.counted_targets({&one, 1}), row.ne(kIgnoredTarget).sum().item<int64_t>());
    }
    EXPECT_EQ(dataset.get_part(all_of(dataset), Part::inputs).input().min().item<int64_t>(), 0) << "inputs have all";
  }
}

TEST_F(MaskedShardsTest, OnlyShardsThatNeedOneHaveAMask) {
  const fs::path folder = make_shards("shards", 100, 100);
  const auto files = open_token_files({folder}, 0);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(read_file(folder / "tokens-00000.bin")[8], 1) << "the version that earlier programs read";
  EXPECT_FALSE(files[0].counted_tokens);
  EXPECT_EQ(read_file(folder / "tokens-00001.bin")[8], 2);
  int64_t expected = 0;
  for (int64_t token = 100; token < 200; ++token) {
    expected += counts(token);
  }
  EXPECT_EQ(files[1].counted_tokens, expected);
  EXPECT_EQ(files[2].counted_tokens, 1) << "201 of 200 to 202";
  const TokensDataset dataset({folder}, 1);
  EXPECT_EQ(dataset.counted_targets(all_of(dataset)), 99 + expected + 1);
  EXPECT_FALSE(TokensDataset({folder / "tokens-00000.bin"}, 9).masks_targets());
}

TEST_F(MaskedShardsTest, DamageIsNamed) {
  const fs::path shard = make_shards("shards", 1000) / "tokens-00000.bin";
  const std::string whole = read_file(shard);
  const auto refused = [&](const std::string& content) {
    return input_error([&] { TokensDataset({write("changed.bin", content)}, 1); });
  };
  EXPECT_EQ(refused(whole), "");
  EXPECT_THAT(refused(whole.substr(0, whole.size() - 1)), HasSubstr("it is cut off"));
  EXPECT_THAT(refused(std::string(whole).replace(64, 1, "\x01")), HasSubstr("its header is damaged"));
  const auto flipped = write("flipped.bin", std::string(whole).replace(whole.size() - 1, 1, "\x55"));
  EXPECT_FALSE(has_right_checksum(FileMap(flipped).bytes(), open_token_files({flipped}, 0)[0].checksum));
}

// Documents begin at multiples of 29, samples at multiples of 9.
TEST_F(MaskedShardsTest, PackedSamplesTellTheirDocumentsApart) {
  const TokensDataset dataset({make_shards("shards", 50)}, 9, 300, 0, /*pack=*/true);
  const TokensDataset plain({folder_ / "shards"}, 9, 300);
  ASSERT_TRUE(dataset.masks_targets());
  const Batch batch = dataset.get(all_of(dataset));
  ASSERT_EQ(batch.inputs.size(), 2u);
  EXPECT_TRUE(batch.input().equal(plain.get(all_of(plain)).input()));
  const at::Tensor tokens = batch.input().flatten();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    const int64_t token = tokens[i].item<int64_t>();
    ASSERT_EQ(batch.inputs[1].flatten()[i].item<int64_t>(), std::min(token % 29, token % 9)) << "token " << token;
    const bool counted = counts(token + 1) && (token + 1) % 29 != 0;
    ASSERT_EQ(batch.target().flatten()[i].item<int64_t>(), counted ? token + 1 : kIgnoredTarget);
  }
  EXPECT_EQ(dataset.counted_targets(all_of(dataset)), batch.target().ne(kIgnoredTarget).sum().item<int64_t>());
  EXPECT_EQ(dataset.get_part(all_of(dataset), Part::inputs).inputs.size(), 2u);
  EXPECT_TRUE(dataset.get_part(all_of(dataset), Part::targets).target().equal(batch.target()));
  const fs::path raw = write_tokens("raw.bin", {1, 2, 3, 4});
  EXPECT_THAT(input_error([&] { TokensDataset({raw}, 1, 0, 0, /*pack=*/true); }),
              HasSubstr("raw.bin does not say where documents begin"));
}

// The weight is the share of the step's targets, times the number of its micro-batches: also where an epoch ends.
TEST_F(MaskedShardsTest, WeightsOfMicroBatchesAreTheirSharesOfTheStep) {
  const auto dataset = std::make_shared<TokensDataset>(std::vector{make_shards("shards", 50)}, 4);
  constexpr int64_t kPerStep = 3;
  for (const bool drop_last : {true, false}) {
    std::vector<RepeatingLoader> loaders;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const SamplerOptions order{.shuffle = true, .drop_last = drop_last, .seed = 5, .rank = rank, .replicas = 2};
      loaders.emplace_back(DataLoader(dataset, DistributedSampler(dataset->size(), order), 2, rank * 2));
      loaders.back().set_micro_batches_per_step(kPerStep);
    }
    for (int step = 0; step < 30; ++step) { // 12 or 13 micro-batches an epoch: most steps have samples of one
      std::vector<Batch> batches;
      int64_t all = 0;
      for (RepeatingLoader& loader : loaders) {
        for (int64_t i = 0; i < kPerStep; ++i) {
          batches.push_back(loader.next());
          all += batches.back().target().ne(kIgnoredTarget).sum().item<int64_t>();
        }
      }
      for (const Batch& batch : batches) {
        const auto counted = batch.target().ne(kIgnoredTarget).sum().item<double>();
        EXPECT_NEAR(batch.loss_weight, counted * 2 * kPerStep / static_cast<double>(all), 1e-12) << "step " << step;
      }
    }
  }
}

// Of a rank that steps by its own gradients: the share of its own targets.
TEST_F(MaskedShardsTest, WeightsMayBeSharesOfTheRanksOwnTargets) {
  const auto dataset = std::make_shared<TokensDataset>(std::vector{make_shards("shards", 50)}, 4);
  const SamplerOptions order{.shuffle = true, .seed = 5, .rank = 1, .replicas = 2};
  RepeatingLoader loader(DataLoader(dataset, DistributedSampler(dataset->size(), order), 2));
  loader.set_micro_batches_per_step(3);
  for (int step = 0; step < 30; ++step) {
    loader.weigh_by(step % 4 == 0 ? TargetsOf::all_ranks : TargetsOf::this_rank);
    double mean = 0;
    for (int64_t i = 0; i < 3; ++i) {
      mean += loader.next().loss_weight / 3;
    }
    if (step % 4 != 0) {
      EXPECT_NEAR(mean, 1, 1e-12) << "step " << step;
    }
  }
}

TEST_F(MaskedShardsTest, ABatchWithoutATargetGetsOneOfNoWeight) {
  Batch batch{{at::zeros({1, 3}, at::kLong)}, {at::full({1, 3}, kIgnoredTarget, at::kLong)}, 1};
  const at::Tensor before = batch.target();
  EXPECT_EQ(count_targets(batch), 0);
  EXPECT_EQ(batch.target()[0][0].item<int64_t>(), 0);
  EXPECT_EQ(before[0][0].item<int64_t>(), kIgnoredTarget) << "a dataset may keep it";
  EXPECT_EQ(count_targets(batch), 1);
}

TEST_F(MaskedShardsTest, AMixtureCountsTheTargetsOfItsSets) {
  const auto masked = std::make_shared<TokensDataset>(std::vector<fs::path>{make_shards("masked", 70)}, 10);
  const auto whole = std::make_shared<TokensDataset>(std::vector<fs::path>{make_shards("whole", 70, kTokens + 29)}, 10);
  ASSERT_TRUE(masked->masks_targets());
  ASSERT_FALSE(whole->masks_targets());
  const Mixture mixture({{masked, 2, "masked"}, {whole, 1, "whole"}}, {});
  const Concatenation both({masked, whole});
  std::vector<int64_t> indices(static_cast<size_t>(both.size()));
  std::iota(indices.begin(), indices.end(), 0);
  for (const Dataset* const dataset : {static_cast<const Dataset*>(&mixture), static_cast<const Dataset*>(&both)}) {
    EXPECT_TRUE(dataset->masks_targets());
    Batch batch = dataset->get(indices);
    const int64_t ignored = (batch.targets[0] == kIgnoredTarget).sum().item<int64_t>();
    EXPECT_GT(ignored, 0);
    EXPECT_EQ(dataset->counted_targets(indices), batch.targets[0].numel() - ignored);
  }
  EXPECT_FALSE(Concatenation({whole, whole}).masks_targets());
}

} // namespace
} // namespace trireme::data
