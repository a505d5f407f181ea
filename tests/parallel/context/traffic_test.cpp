#include "whole.h"

#include <trireme/parallel/context/closed_forms.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>

namespace trireme::context {
namespace {

class ContextTrafficTest : public testing::TestWithParam<const char*> {};

TEST_P(ContextTrafficTest, BytesEqualTheFormulas) {
  for (const int ranks : {2, 3, 4}) {
    test::on_ranks(
        ranks,
        [&](comm::World& world) {
          at::set_num_threads(1);
          for (const Kind kind : {Kind::ring, Kind::ulysses}) {
            for (const auto& [causal, padding] : {std::pair(true, false), std::pair(false, true)}) {
              for (const int64_t kv_heads : {12, 6, 2, 1}) {
                for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
                  const Case c{.kind = kind, .causal = causal, .kv_heads = kv_heads, .padding = padding, .type = type};
                  const Inputs in = make_inputs(c, ranks);
                  const at::Tensor q = part(in.q, world.group(), kind, true), k = part(in.k, world.group(), kind, true),
                                   v = part(in.v, world.group(), kind, true);
                  const AttentionShape shape{.batch = c.batch,
                                             .heads = c.heads,
                                             .kv_heads = kv_heads,
                                             .tokens = q.size(2),
                                             .head_size = c.head_size,
                                             .element_bytes = static_cast<int64_t>(q.element_size()),
                                             .key_padding = padding};
                  const int64_t start = world.group().bytes_sent();
                  const at::Tensor out =
                      attention(q, k, v, world.group(), {.kind = kind, .causal = causal},
                                padding ? part(in.padding, world.group(), kind, false) : at::Tensor());
                  const int64_t middle = world.group().bytes_sent();
                  out.sum().backward();
                  EXPECT_EQ(middle - start, forward_bytes(kind, ranks, shape)) << c.text();
                  EXPECT_EQ(world.group().bytes_sent() - middle, backward_bytes(kind, ranks, shape)) << c.text();
                }
              }
            }
          }
        },
        {.backend = GetParam()});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ContextTrafficTest, testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

// Numbers worked out by hand, so that a formula that is wrong like the code does not pass.
TEST(ContextClosedFormsTest, ByHand) {
  const AttentionShape shape{.batch = 2, .heads = 8, .kv_heads = 2, .tokens = 100, .head_size = 16, .element_bytes = 2};
  // K and V of a rank: 2 x 2 x 2 heads x 100 x 16 x 2 bytes = 25,600.
  EXPECT_EQ(forward_bytes(Kind::ring, 4, shape), 3 * 25'600);
  EXPECT_EQ(backward_bytes(Kind::ring, 4, shape), 3 * (25'600 + 51'200)) << "gradients are fp32";
  // A head of a rank is 6,400 bytes; 8 of q, 4 each of k and v (repeated to one a rank), 8 of the result; three
  // quarters leave.
  EXPECT_EQ(exchanged_kv_heads(8, 2, 4), 4);
  EXPECT_EQ(forward_bytes(Kind::ulysses, 4, shape), 24 * 6'400 * 3 / 4);
  EXPECT_EQ(backward_bytes(Kind::ulysses, 4, shape), 24 * 6'400 * 3 / 4);
  EXPECT_EQ(exchanged_kv_heads(12, 2, 3), 12);
  EXPECT_EQ(exchanged_kv_heads(12, 6, 3), 6);
  EXPECT_EQ(forward_bytes(Kind::ring, 1, shape), 0);
  EXPECT_EQ(backward_bytes(Kind::ulysses, 1, shape), 0);
}

} // namespace
} // namespace trireme::context
