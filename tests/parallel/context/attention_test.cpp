#include "whole.h"

#include <trireme/memory/recompute/recompute.h>

#include <tests/comm/staged_checks.h>
#include <tests/support/run_ranks.h>

#include <ATen/Context.h>
#include <torch/autograd.h>

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

namespace trireme::context {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
}

/// Every form: both kinds, causal, all tokens, key padding, grouped queries, three types. 12 heads divide among 2, 3
/// and 4 ranks.
std::vector<Case> all_cases(std::vector<at::ScalarType> types) {
  std::vector<Case> cases;
  for (const Kind kind : {Kind::ring, Kind::ulysses}) {
    for (const auto& [causal, padding] : {std::pair(true, false), std::pair(false, false), std::pair(false, true)}) {
      for (const int64_t kv_heads : {12, 4, 2, 1}) {
        for (const at::ScalarType type : types) {
          cases.push_back({.kind = kind, .causal = causal, .kv_heads = kv_heads, .padding = padding, .type = type});
        }
      }
    }
  }
  cases.push_back({.batch = 1, .heads = 12, .kv_heads = 12, .chunk = 1, .head_size = 3}); // a token a chunk
  cases.push_back({.batch = 1, .heads = 12, .kv_heads = 6, .chunk = 70, .head_size = 20, .type = at::kDouble});
  return cases;
}

struct Where {
  const char* backend;
  int ranks;
};
class ContextAttentionTest : public testing::TestWithParam<Where> {};

TEST_P(ContextAttentionTest, EqualsAttentionOverTheWhole) {
  const auto errors = test::run_ranks(GetParam().ranks,
                                      [](comm::World& world) {
                                        at::set_num_threads(1);
                                        for (const Case& c : all_cases({at::kFloat, at::kDouble, at::kBFloat16})) {
                                          expect_the_whole(world.group(), c, tolerance_of(c.type));
                                        }
                                      },
                                      {.backend = GetParam().backend});
  EXPECT_THAT(errors, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, ContextAttentionTest,
                         testing::Values(Where{"shm", 2}, Where{"shm", 3}, Where{"shm", 4}, Where{"gloo", 2},
                                         Where{"gloo", 3}, Where{"gloo", 4}),
                         [](const auto& info) { return concat(info.param.backend, info.param.ranks); });

TEST(ContextFormsTest, MatrixProductsInPlaceOfFlashKernels) {
  test::on_ranks(3, [](comm::World& world) {
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
    for (const Case& c : all_cases({at::kFloat, at::kDouble, at::kBFloat16})) {
      expect_the_whole(world.group(), c, tolerance_of(c.type));
    }
  });
}

TEST(ContextFormsTest, AGroupOfOneComputesAlone) {
  const comm::Group alone;
  for (const Case& c : all_cases({at::kFloat, at::kDouble})) {
    expect_the_whole(alone, c, tolerance_of(c.type));
  }
  EXPECT_EQ(alone.bytes_sent(), 0);
}

TEST(ContextFormsTest, StridesAndOddBatches) {
  test::on_ranks(2, [](comm::World& world) {
    at::set_num_threads(1);
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      const Case c{
          .kind = kind, .batch = 5, .heads = 4, .kv_heads = 4, .chunk = 3, .head_size = 6, .type = at::kDouble};
      const Inputs in = make_inputs(c, 2);
      const Results wanted = whole_attention(in, true);
      // As one projection gives them: [B, t, 3 A D].
      const auto rows = [&](const at::Tensor& x) {
        return part(x, world.group(), kind, false).transpose(1, 2).flatten(2);
      };
      const at::Tensor qkv = at::cat({rows(in.q), rows(in.k), rows(in.v)}, 2).requires_grad_();
      std::vector<at::Tensor> parts;
      for (const at::Tensor& x : qkv.split(24, 2)) {
        parts.push_back(x.unflatten(2, {4, 6}).transpose(1, 2));
      }
      const at::Tensor out = attention(parts[0], parts[1], parts[2], world.group(), {.kind = kind});
      EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
      // A gradient whose last dim is not contiguous.
      const at::Tensor dout = part(in.dout, world.group(), kind, false);
      out.backward(dout.transpose(2, 3).contiguous().transpose(2, 3));
      expect_near(out.detach(), wanted.out, world.group(), c, 1e-12, "the result");
      const auto grads = qkv.grad().split(24, 2);
      const at::Tensor* whole[] = {&wanted.dq, &wanted.dk, &wanted.dv};
      for (size_t i = 0; i < 3; ++i) {
        expect_near(grads[i].unflatten(2, {4, 6}).transpose(1, 2), *whole[i], world.group(), c, 1e-12, "a gradient");
      }
    }
    EXPECT_EQ(
        attention(at::empty({0, 4, 6, 8}), at::empty({0, 4, 6, 8}), at::empty({0, 4, 6, 8}), world.group(), {}).size(0),
        0);
  });
}

std::vector<Case> windows() {
  std::vector<Case> cases;
  for (const int64_t window : {1, 7, 19, 20, 100}) {
    for (const int64_t kv_heads : {4, 2, 1}) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
        cases.push_back({.kind = Kind::ulysses, .heads = 4, .kv_heads = kv_heads, .type = type, .window = window});
      }
    }
  }
  return cases;
}

TEST(ContextFormsTest, Windows) {
  for (const Case& c : windows()) {
    expect_the_whole(comm::Group(), c, tolerance_of(c.type));
  }
  test::on_ranks(2, [](comm::World& world) {
    at::set_num_threads(1);
    for (const Case& c : windows()) {
      expect_the_whole(world.group(), c, tolerance_of(c.type));
    }
    Case ring{.heads = 4, .kv_heads = 2, .window = 20};
    expect_the_whole(world.group(), ring, 1e-5); // as long as the sequence: no window
    ring.window = 19;
    EXPECT_THAT([&] { expect_the_whole(world.group(), ring, 1e-5); },
                testing::ThrowsMessage<InputError>(HasSubstr("ring attention over 2 ranks has no window")));
  });
}

/// Calls of different shapes in a row, all forwards before all backwards, while each rank is late at other places.
void many_calls(const comm::Group& ranks) {
  at::set_num_threads(1);
  std::vector<Case> cases;
  for (const int64_t chunk : {1, 40, 3, 17, 200}) {
    for (const bool causal : {true, false}) {
      cases.push_back({.causal = causal,
                       .batch = 1 + chunk % 3,
                       .heads = 4,
                       .kv_heads = 2,
                       .chunk = chunk,
                       .head_size = 16,
                       .padding = !causal && chunk > 3});
    }
  }
  const auto late = [&](size_t place) {
    if (static_cast<int>(place * 7 % 5) == ranks.rank()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  };
  std::vector<Results> wanted, found;
  std::vector<at::Tensor> outs;
  at::Tensor loss = at::zeros({});
  std::vector<std::array<at::Tensor, 3>> leaves;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const Inputs in = make_inputs(c, ranks.size(), static_cast<int64_t>(i));
    wanted.push_back(whole_attention(in, c.causal));
    leaves.push_back(
        {part(in.q, ranks, c.kind, true), part(in.k, ranks, c.kind, true), part(in.v, ranks, c.kind, true)});
    late(i);
    const at::Tensor padding = c.padding ? part(in.padding, ranks, c.kind, false) : at::Tensor();
    outs.push_back(attention(leaves.back()[0], leaves.back()[1], leaves.back()[2], ranks,
                             {.kind = c.kind, .causal = c.causal}, padding));
    const at::Tensor dout = part(in.dout, ranks, c.kind, false);
    loss = loss + (outs.back() * dout).sum();
  }
  late(3);
  loss.backward();
  for (size_t i = 0; i < cases.size(); ++i) {
    expect_near(outs[i].detach(), wanted[i].out, ranks, cases[i], 1e-5, "the result");
    expect_near(leaves[i][0].grad(), wanted[i].dq, ranks, cases[i], 1e-5, "dq");
    expect_near(leaves[i][1].grad(), wanted[i].dk, ranks, cases[i], 1e-5, "dk");
    expect_near(leaves[i][2].grad(), wanted[i].dv, ranks, cases[i], 1e-5, "dv");
  }
}

class ContextOrderTest : public testing::TestWithParam<Where> {};

TEST_P(ContextOrderTest, ManyCallsOfRanksThatComeLate) {
  const Where& where = GetParam();
  const std::string backend = where.backend;
  const auto errors =
      backend == "staged"
          ? comm::run_staged(where.ranks, "shm", at::kCPU, [](comm::StagedRank& peer) { many_calls(peer.group()); })
          : test::run_ranks(where.ranks, [](comm::World& world) { many_calls(world.group()); }, {.backend = backend});
  EXPECT_THAT(errors, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, ContextOrderTest,
                         testing::Values(Where{"shm", 2}, Where{"shm", 3}, Where{"shm", 4}, Where{"shm", 5},
                                         Where{"gloo", 2}, Where{"gloo", 3}, Where{"gloo", 4}, Where{"gloo", 5},
                                         Where{"staged", 2}, Where{"staged", 3}, Where{"staged", 4},
                                         Where{"staged", 5}),
                         [](const auto& info) { return concat(info.param.backend, info.param.ranks); });

TEST(ContextAutogradTest, RecomputationKeepsTheBits) {
  test::on_ranks(2, [](comm::World& world) {
    at::set_num_threads(1);
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      for (const double dropout : {0.0, 0.3}) {
        const Inputs in = make_inputs({.heads = 4, .kv_heads = 4}, 2);
        const auto run = [&](bool again) {
          torch::manual_seed(world.rank());
          const at::Tensor q = part(in.q, world.group(), kind, true), k = part(in.k, world.group(), kind, true),
                           v = part(in.v, world.group(), kind, true);
          const auto f = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
            return attention(a, b, c, world.group(), {.kind = kind, .dropout = dropout});
          };
          const at::Tensor out = again ? recompute::call(f, q, k, v) : f(q, k, v);
          out.backward(part(in.dout, world.group(), kind, false));
          return std::vector<at::Tensor>{out, q.grad(), k.grad(), v.grad()};
        };
        const auto once = run(false), twice = run(true);
        for (size_t i = 0; i < once.size(); ++i) {
          EXPECT_TRUE(once[i].equal(twice[i])) << i << ", dropout " << dropout;
        }
      }
    }
  });
}

TEST(ContextAutogradTest, SecondDerivativesAreRefused) {
  test::on_ranks(2, [](comm::World& world) {
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      const at::Tensor x = at::ones({1, 2, 4, 4}).requires_grad_();
      const at::Tensor out = attention(x, x, x, world.group(), {.kind = kind});
      try {
        torch::autograd::grad({out.sum()}, {x}, {}, true, /*create_graph=*/true);
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("has no double backward"));
      }
    }
  });
}

// The same seed drops the same weights in each call: then the slope along a direction is the gradient's.
TEST(ContextDropoutTest, GradientsAreThoseOfTheFunctionWithTheseWeightsDropped) {
  test::on_ranks(2, [](comm::World& world) {
    at::set_num_threads(1);
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      for (const bool causal : {true, false}) {
        const Inputs in = make_inputs({.heads = 4, .kv_heads = 2, .type = at::kDouble}, 2);
        const Inputs direction = make_inputs({.heads = 4, .kv_heads = 2, .type = at::kDouble}, 2, 9);
        const at::Tensor dout = part(in.dout, world.group(), kind, false);
        const auto loss = [&](double step, std::vector<at::Tensor>* leaves) {
          std::vector<at::Tensor> x = {part(in.q + step * direction.q, world.group(), kind, true),
                                       part(in.k + step * direction.k, world.group(), kind, true),
                                       part(in.v + step * direction.v, world.group(), kind, true)};
          torch::manual_seed(77 + world.rank());
          const at::Tensor sum =
              (attention(x[0], x[1], x[2], world.group(), {.kind = kind, .causal = causal, .dropout = 0.4}) * dout)
                  .sum();
          if (leaves != nullptr) {
            sum.backward();
            *leaves = x;
          }
          return sum.detach();
        };
        std::vector<at::Tensor> x;
        loss(0, &x);
        at::Tensor slope = (x[0].grad() * part(direction.q, world.group(), kind, false)).sum() +
                           (x[1].grad() * part(direction.k, world.group(), kind, false)).sum() +
                           (x[2].grad() * part(direction.v, world.group(), kind, false)).sum();
        at::Tensor measured = (loss(1e-5, nullptr) - loss(-1e-5, nullptr)) / 2e-5;
        world.group().all_reduce(slope).wait();
        world.group().all_reduce(measured).wait();
        EXPECT_NEAR(slope.item<double>(), measured.item<double>(),
                    1e-6 * std::max(1.0, std::abs(slope.item<double>())));
      }
    }
  });
}

TEST(ContextDropoutTest, DropsThatShareOfTheWeights) {
  test::on_ranks(2, [](comm::World& world) {
    at::set_num_threads(1);
    for (const Kind kind : {Kind::ring, Kind::ulysses}) {
      torch::manual_seed(world.rank());
      // Equal weights, and values that say which key they are from: each weight is 0 or 1 /
      // (1 - 0.25) of what it was.
      const at::Tensor zeros = at::zeros({2, 4, 32, 64});
      const at::Tensor v = part(at::eye(64).expand({2, 4, 64, 64}), world.group(), kind, false);
      const at::Tensor out =
          attention(zeros, zeros, v, world.group(), {.kind = kind, .causal = false, .dropout = 0.25}) * 64;
      EXPECT_NEAR((out == 0).to(at::kDouble).mean().item<double>(), 0.25, 0.02);
      EXPECT_TRUE(((out == 0) | ((out - 4.0 / 3).abs() < 1e-5)).all().item<bool>());
      EXPECT_FALSE(out[0][0].equal(out[0][1])) << "heads drop others";
    }
  });
}

TEST(ContextErrorTest, SayWhatMustHold) {
  const auto refused = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  test::on_ranks(3, [&](comm::World& world) {
    const at::Tensor x = at::ones({1, 4, 4, 8});
    const auto with = [&](const at::Tensor& q, const at::Tensor& k, AttentionOptions options = {},
                          const at::Tensor& padding = {}) {
      return refused([&] { attention(q, k, k, world.group(), options, padding); });
    };
    EXPECT_THAT(with(x, x, {.kind = Kind::ulysses}), HasSubstr("Ulysses cannot split 4 heads equally among 3 ranks"));
    EXPECT_THAT(with(x, x.narrow(1, 0, 3)), HasSubstr("3 heads of keys and values do not divide 4 heads of queries"));
    EXPECT_THAT(with(x, x.narrow(2, 0, 2)), HasSubstr("q must be [B, A, t, D]"));
    EXPECT_THAT(with(x[0], x), HasSubstr("q must be [B, A, t, D]"));
    EXPECT_THAT(with(x, x.to(at::kDouble)), HasSubstr("one floating type, got Float, Double"));
    EXPECT_THAT(with(x.to(at::kLong), x.to(at::kLong)), HasSubstr("one floating type"));
    EXPECT_THAT(with(x.narrow(2, 0, 3), x.narrow(2, 0, 3)), HasSubstr("each of 3 ranks has 3 tokens"));
    EXPECT_THAT(with(x, x, {.dropout = 1.5}), HasSubstr("1.5 is not a probability"));
    const at::Tensor padding = at::ones({1, 4}, at::kBool);
    EXPECT_THAT(with(x, x, {}, padding), HasSubstr("causal attention does not take key_padding"));
    EXPECT_THAT(with(x, x, {.causal = false}, padding.to(at::kFloat)),
                HasSubstr("key_padding must be bool [1, 4], got Float [1, 4]"));
    EXPECT_THAT(with(x, x, {.causal = false}, padding.narrow(1, 0, 3)), HasSubstr("key_padding must be bool [1, 4]"));
  });
}

} // namespace
} // namespace trireme::context
