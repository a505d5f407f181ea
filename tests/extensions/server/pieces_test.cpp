#include <trireme/base/error.h>
#include <trireme/extensions/server/pieces.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::parallel::server {
namespace {

using testing::HasSubstr;

std::vector<ParameterInfo> parameters() {
  return {{.name = "embedding", .shape = {1000, 16}},
          {.name = "weight", .shape = {48, 16}},
          {.name = "bias", .shape = {48}},
          {.name = "scale", .shape = {}},
          {.name = "low", .shape = {30, 7, 3}, .type = "bfloat16"},
          {.name = "empty", .shape = {0, 5}}};
}

TEST(PiecesTest, TheSharesAreAllRowsOnceAndEqualUpToARow) {
  const std::vector<ParameterInfo> all = parameters();
  int64_t bytes = 0;
  int64_t longest = 0;
  for (const ParameterInfo& parameter : all) {
    bytes += parameter.bytes();
    longest = std::max(longest, parameter.row_numel() * parameter.element_bytes());
  }
  for (int servers = 1; servers <= 7; ++servers) {
    const std::vector<Share> shares = share_out(all, servers);
    ASSERT_EQ(std::ssize(shares), servers);
    std::vector<int64_t> next(all.size(), 0); // rows are given out in order
    for (const Share& share : shares) {
      int64_t own = 0;
      int64_t end = 0;
      for (const RowRange& piece : share.pieces) {
        const ParameterInfo& parameter = all[piece.parameter];
        EXPECT_EQ(piece.begin, next[piece.parameter]) << parameter.name << " of " << servers;
        EXPECT_EQ(piece.offset % 64, 0);
        EXPECT_GE(piece.offset, end) << "pieces overlap in a body";
        const int64_t length = (piece.end - piece.begin) * parameter.row_numel() * parameter.element_bytes();
        next[piece.parameter] = piece.end;
        own += length;
        end = piece.offset + length;
      }
      EXPECT_LE(end, share.bytes);
      EXPECT_NEAR(own, bytes / servers, longest) << servers << " servers";
    }
    for (size_t p = 0; p < all.size(); ++p) {
      EXPECT_EQ(next[p], all[p].rows()) << all[p].name << " of " << servers;
    }
  }
}

// Pieces of several types and none at all: each has its place in an array, as fp32.
TEST(PiecesTest, ArraysHaveRoomForEveryPiece) {
  const std::vector<ParameterInfo> all = {{.name = "low", .shape = {1000}, .type = "bfloat16"},
                                          {.name = "full", .shape = {10}},
                                          {.name = "also", .shape = {7, 3}, .type = "float16"}};
  for (int servers = 1; servers <= 4; ++servers) {
    for (const Share& share : share_out(all, servers)) {
      const ArrayLayout layout = array_layout(all, share);
      int64_t end = 0;
      for (size_t i = 0; i < share.pieces.size(); ++i) {
        EXPECT_GE(layout.offsets[i], end);
        end = layout.offsets[i] +
              (share.pieces[i].end - share.pieces[i].begin) * all[share.pieces[i].parameter].row_numel() * 4;
      }
      EXPECT_GE(layout.bytes, end);
    }
  }
  const std::vector<Share> few = share_out({{.name = "w", .shape = {1, 100}}}, 3);
  EXPECT_EQ(std::count_if(few.begin(), few.end(), [](const Share& share) { return share.pieces.empty(); }), 2);
}

// LAMB's: all of a parameter is on one server, the nearest to the equal share.
TEST(PiecesTest, WholeParametersAreNotCut) {
  std::vector<ParameterInfo> all = parameters();
  int64_t bytes = 0;
  int64_t largest = 0;
  for (ParameterInfo& parameter : all) {
    parameter.whole = true;
    bytes += parameter.bytes();
    largest = std::max(largest, parameter.bytes());
  }
  for (int servers = 1; servers <= 4; ++servers) {
    std::vector<int> owners(all.size(), 0);
    for (const Share& share : share_out(all, servers)) {
      int64_t own = 0;
      for (const RowRange& piece : share.pieces) {
        EXPECT_EQ(piece.end - piece.begin, all[piece.parameter].rows()) << all[piece.parameter].name;
        ++owners[piece.parameter];
        own += all[piece.parameter].bytes();
      }
      EXPECT_NEAR(own, bytes / servers, largest);
    }
    for (size_t p = 0; p < all.size(); ++p) {
      EXPECT_EQ(owners[p], all[p].rows() > 0 ? 1 : 0) << all[p].name << " of " << servers;
    }
  }
}

// What workers send of an embedding: 8 bytes and the values for each row, either part at a multiple of 64.
TEST(PiecesTest, ABodyOfRowsHasTheOtherPiecesFirst) {
  const std::vector<ParameterInfo> all = {{.name = "embedding", .shape = {1000, 12}, .sparse = true},
                                          {.name = "weight", .shape = {48, 16}},
                                          {.name = "low", .shape = {30, 7}, .type = "bfloat16", .sparse = true}};
  const Share share = share_out(all, 1).front();
  EXPECT_EQ(share.dense_bytes, 48 * 16 * 4);
  ASSERT_EQ(share.pieces.size(), 3u);
  EXPECT_EQ(share.pieces[1].offset, 0);
  EXPECT_EQ(share.pieces[0].offset, share.dense_bytes);
  EXPECT_EQ(share.pieces[2].offset, share.dense_bytes + 1000 * 12 * 4);
  const RowLayout some = row_layout(all, share, {9, 1});
  ASSERT_EQ(some.blocks.size(), 2u);
  EXPECT_EQ(some.blocks[0].numbers, share.dense_bytes);
  EXPECT_EQ(some.blocks[0].values, share.dense_bytes + 128);
  EXPECT_EQ(some.blocks[1].piece, 2u);
  EXPECT_EQ(some.blocks[1].numbers, share.dense_bytes + 128 + 448); // 9 * 12 * 4 = 432
  EXPECT_EQ(some.bytes, share.dense_bytes + 128 + 448 + 64 + 64);
  EXPECT_EQ(row_layout(all, share, {0, 0}).bytes, share.dense_bytes);
  EXPECT_EQ(all_rows(all, share), (std::vector<int64_t>{1000, 30}));
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{}, {1}, {1, 1, 1}, {1001, 0}, {-1, 0}}) {
    EXPECT_THROW(row_layout(all, share, wrong), InputError) << wrong.size();
  }
  for (int servers = 2; servers <= 5; ++servers) { // pieces of the embedding are sparse on each
    for (const Share& part : share_out(all, servers)) {
      int64_t dense = 0;
      for (const RowRange& piece : part.pieces) {
        dense += all[piece.parameter].sparse ? 0 : (piece.end - piece.begin) * 16 * 4;
        EXPECT_EQ(piece.offset >= part.dense_bytes, all[piece.parameter].sparse);
      }
      EXPECT_EQ(part.dense_bytes, dense);
    }
  }
}

TEST(PiecesTest, ADescriptionIsReadAsItWasWritten) {
  std::vector<ParameterInfo> all = parameters();
  all[0].sparse = true;
  all[1].whole = true;
  all[1].weight_decay = 0.25;
  all[2].lr_factor = 2;
  EXPECT_EQ(read_parameters(describe(all)), all);
}

TEST(PiecesTest, WhatIsNoDescriptionIsRefused) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      read_parameters(nlohmann::json::parse(text));
    } catch (const InputError& error) {
      return error.what();
    }
    return "read";
  };
  EXPECT_THAT(error_of("[]"), HasSubstr("the list is empty"));
  EXPECT_THAT(error_of(R"([{"name": "w"}])"), HasSubstr("shape"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [-1]}])"), HasSubstr("a dimension of -1"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [4611686018427387904, 4]}])"), HasSubstr("a dimension of"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [4], "dtype": "int64"}])"), HasSubstr("not float32"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [4], "sparse": true}])"),
              HasSubstr("is sparse but has 1 dimensions, expected >= 2"));
  EXPECT_THAT(error_of("5"), HasSubstr("is invalid"));
}

} // namespace
} // namespace trireme::parallel::server
