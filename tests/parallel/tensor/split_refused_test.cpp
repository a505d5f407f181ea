#include <tests/parallel/tensor/ordinary_models.h>
#include <tests/support/run_ranks.h>

#include <trireme/base/error.h>
#include <trireme/parallel/tensor/split.h>

#include <gmock/gmock.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/utils.h>

// What would be silently wrong on the part of one rank is refused by name.
namespace trireme::tensor {
namespace {

using Kind = SplitRule::Kind;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<SplitRule> kPlainMlpRules = {{Kind::column, "fc1"}, {Kind::row, "fc2"}};

void on_two_ranks(const std::function<void(const comm::Group&)>& body) {
  on_ranks(2, [&](comm::World& world) { body(world.group()); });
}

auto refuses(const char* a, const char* b = "") {
  return ThrowsMessage<InputError>(AllOf(HasSubstr(a), HasSubstr(b)));
}

TEST(SplitModel, RefusesOperatorsThatNeedTheWholeByName) {
  on_two_ranks([](const comm::Group& ranks) {
    test::Mlp mlp(8, 12);
    const SplitModel split = SplitModel::split(*mlp, kPlainMlpRules, ranks);
    const at::Tensor& w = mlp->fc1->weight; // [6, 8] of [12, 8]
    const at::Tensor x = at::ones({3, 8});
    const at::Tensor whole_mask = at::ones({12, 8});
    const std::vector<std::pair<const char*, std::function<void()>>> cases = {
        {"aten::sum", [&] { w.sum(); }},
        {"aten::sum", [&] { w.pow(2).sum(); }},
        {"aten::norm", [&] { w.norm(); }},
        {"aten::norm", [&] { w.detach().norm(); }},
        {"aten::norm", [&] { w.data().norm(); }},
        {"aten::norm", [&] { w.clone().view({-1}).norm(); }},
        {"aten::max", [&] { w.t().max(); }},
        {"aten::mean", [&] { w.to(at::kDouble).mean(); }},
        {"aten::matmul", [&] { at::ones({3, 6}).matmul(w); }},
        {"aten::matmul", [&] { w.matmul(at::ones({8, 2})); }},
        {"aten::mm", [&] { at::mm(w, x.t()); }},
        {"aten::matmul", [&] { x.matmul(w.narrow(0, 0, 2).t()); }},
        {"aten::addmm with beta or alpha", [&] { at::addmm(at::ones({6}), x, w.t(), 1, 2); }},
        {"aten::bmm", [&] { at::bmm(x.unsqueeze(0), w.t().unsqueeze(0)); }},
        {"aten::einsum", [&] { at::einsum("bi,oi->bo", {x, w}); }},
        {"aten::sum", [&] { (x.unsqueeze(1) * w).sum(-1); }},
        {"aten::bilinear", [&] { at::bilinear(x, x, at::ones({2, 8, 8}), mlp->fc1->bias.narrow(0, 0, 2)); }},
        {"aten::index_select", [&] { w.index_select(0, at::zeros({1}, at::kLong)); }},
        {"aten::index", [&] { w.index({at::zeros({1}, at::kLong)}); }},
        {"aten::cat", [&] { torch::nn::utils::parameters_to_vector(mlp->parameters()); }},
        {"aten::embedding_bag", [&] { at::embedding_bag(w, at::zeros({2}, at::kLong), at::zeros({1}, at::kLong)); }},
        {"aten::conv1d", [&] { at::conv1d(at::ones({1, 8, 4}), w.unsqueeze(-1)); }},
        {"aten::embedding_renorm_",
         [&] {
           at::NoGradGuard no_grad;
           at::Tensor copy = w.detach();
           at::embedding_renorm_(copy, at::zeros({1}, at::kLong), 1, 2);
         }},
        {"aten::embedding", [&] { at::embedding(mlp->fc2->weight, at::zeros({1}, at::kLong)); }},
        {"aten::embedding with padding_idx", [&] { at::embedding(w, at::zeros({1}, at::kLong), 1); }},
        {"aten::copy_", [&] { at::zeros({6, 8}).copy_(w); }}, // in a forward pass it would be lost sight of
        {"aten::sum", [&] { mlp->fc1->bias.sum(); }},
        {"aten::add", [&] { w + w.t().t().reshape({6, 8}).add(1).t().reshape({6, 8}); }},
    };
    for (const auto& [name, use] : cases) {
      EXPECT_THAT(use, refuses(name)) << name;
    }
    EXPECT_THAT([&] { w.sum(); }, refuses("fc1.weight, split over 2 ranks (column)", "a rule of kind skip"));
    EXPECT_THAT([&] { x.matmul(mlp->fc2->weight.t()); },
                refuses("fc2.weight, split over 2 ranks (row), takes 6 of 12 features", "split by columns"));
    EXPECT_THAT([&] { at::linear(at::ones({3, 4}), w); }, refuses("takes all 8 features"));
    EXPECT_THAT([&] { at::linear(x, w, at::ones({12})); },
                refuses("the bias that is added with fc1.weight", "is not split like it"));
  });
}

TEST(SplitModel, LetsElementsAlone) {
  on_two_ranks([](const comm::Group& ranks) {
    test::Mlp mlp(8, 12);
    const SplitModel split = SplitModel::split(*mlp, kPlainMlpRules, ranks);
    const torch::NoGradGuard no_grad;
    const at::Tensor& w = mlp->fc1->weight;
    torch::nn::init::normal_(w);
    torch::nn::init::zeros_(w);
    w.fill_(2).add_(1).lerp_(at::zeros({6, 8}), 0.5).clamp_(0, 9).copy_(w.mul(2)).addcdiv_(w, w);
    EXPECT_TRUE(at::equal(w, at::full({6, 8}, 4.0)));
    EXPECT_EQ(at::zeros_like(w).sum().item<double>(), 0);
    EXPECT_EQ(concat(w.narrow(0, 0, 1).narrow(1, 0, 2)), concat(at::full({1, 2}, 4.0))); // printing
    EXPECT_EQ(w.data_ptr<float>()[47], 4.0F);
  });
}

TEST(SplitModel, RefusesIdsThatNoRankHas) {
  on_two_ranks([](const comm::Group& ranks) {
    test::TiedModel model(11, 8, 4, 1);
    const SplitModel split = SplitModel::split(*model, {{Kind::vocabulary, "wte"}}, ranks);
    EXPECT_NO_THROW(model->forward(at::full({1, 2}, 10, at::kLong)));
    EXPECT_THROW(model->forward(at::full({1, 2}, 11, at::kLong)), std::exception);
    EXPECT_THROW(model->forward(at::full({1, 2}, -1, at::kLong)), std::exception);
  });
}

struct WithConvolution : torch::nn::Module {
  WithConvolution() {
    register_module("convolution", torch::nn::Conv1d(4, 4, 3));
    register_module("attention", torch::nn::MultiheadAttention(8, 2));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    register_module("bounded", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).max_norm(1)));
    register_module("one", torch::nn::Linear(4, 1));
    register_module("fc", torch::nn::Linear(4, 4));
    const auto shared = std::make_shared<torch::nn::EmbeddingImpl>(10, 4);
    register_module("wte", shared);
    register_module("head", torch::nn::Embedding(torch::nn::Embedding::from_pretrained(shared->weight)));
  }
};

TEST(SplitModel, RefusesParametersAndRulesThatDoNotFit) {
  on_two_ranks([](const comm::Group& ranks) {
    const auto split = [&](const std::vector<SplitRule>& rules) {
      WithConvolution model;
      SplitModel::split(model, rules, ranks);
    };
    EXPECT_THAT([&] { split({{Kind::row, "convolution"}}); },
                refuses("convolution.weight [4, 4, 3]", "two dimensions"));
    EXPECT_THAT([&] { split({{Kind::column, "norm"}}); }, refuses("norm.weight", "two dimensions"));
    EXPECT_THAT([&] { split({{Kind::column, "attention"}}); },
                refuses("attention.in_proj_weight", "nn::MultiheadAttention"));
    EXPECT_THAT([&] { split({{Kind::vocabulary, "bounded"}}); }, refuses("bounded.weight", "max_norm"));
    EXPECT_THAT([&] { split({{Kind::row, "wte"}}); }, refuses("wte.weight", "split by vocabulary"));
    EXPECT_THAT([&] { split({{Kind::column_gathered, "one"}}); }, refuses("one.weight", "fewer parts"));
    EXPECT_THAT([&] { split({{Kind::column, "fc"}}); }, refuses("none by rows"));
    EXPECT_THAT([&] { split({{Kind::column_gathered, "fd"}}); },
                refuses("no parameter of the model matches the pattern \"fd\"", "\"fc\""));
    EXPECT_THAT([&] { split({{Kind::column_gathered, "f"}, {Kind::row, "fc"}}); },
                refuses("the pattern \"fc\" has no effect"));
    EXPECT_NO_THROW(split({{Kind::column_gathered, "fc"}}));
    // Of one tensor that has two names.
    EXPECT_THAT([&] { split({{Kind::vocabulary, "wte"}, {Kind::column, "head"}, {Kind::row, "fc"}}); },
                refuses("the same tensor (tied)", "gather_output"));
    EXPECT_NO_THROW(split({{Kind::vocabulary, "wte"}, {Kind::column_gathered, "head"}}));
  });
}

TEST(SplitModel, RefusesModelsAndRulesThatDifferBetweenRanks) {
  on_two_ranks([](const comm::Group& ranks) {
    test::Mlp mlp(8, 12);
    const std::vector<SplitRule> other = {{Kind::column, "fc1"}, {Kind::row, ranks.rank() == 0 ? "fc2" : "fc2$"}};
    EXPECT_THAT([&] { SplitModel::split(*mlp, other, ranks); }, refuses("have models with different names"));
    test::Mlp wide(8, 12 + ranks.rank());
    EXPECT_THAT([&] { SplitModel::split(*wide, kPlainMlpRules, ranks); }, refuses("have models with different names"));
  });
}

TEST(SplitModel, RefusesAModelThatABackwardPassHasMet) {
  on_two_ranks([](const comm::Group& ranks) {
    test::Mlp mlp(8, 12);
    mlp->forward(at::ones({2, 8})).sum().backward();
    EXPECT_THAT([&] { SplitModel::split(*mlp, kPlainMlpRules, ranks); }, refuses("fc1.weight", "it already has hooks"));
  });
}

// A scale of each head belongs to no layer that is split, but sees the features of one rank alone.
struct ScaledMlp : torch::nn::Module {
  ScaledMlp() : mlp(8, 12) {
    register_module("mlp", mlp);
    scale = register_parameter("scale", at::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) { return mlp->fc2->forward(at::gelu(mlp->fc1->forward(x)) * scale); }
  test::Mlp mlp;
  at::Tensor scale;
};

TEST(SplitModel, FindsWholeParametersThatActOnSplitFeatures) {
  on_two_ranks([](const comm::Group& ranks) {
    at::manual_seed(1);
    ScaledMlp model;
    const SplitModel split = SplitModel::split(model, {{Kind::column, "mlp.fc1"}, {Kind::row, "mlp.fc2"}}, ranks);
    model.forward(at::randn({4, 8})).pow(2).sum().backward();
    EXPECT_THAT([&] { split.check_gradients(); }, refuses("the gradients of scale, which is not split, differ"));
  });
}

TEST(SplitModel, OfOneRankChangesNothing) {
  test::Mlp mlp(8, 12);
  const SplitModel split = SplitModel::split(*mlp, kPlainMlpRules, comm::Group());
  EXPECT_EQ(mlp->fc1->weight.sizes(), (at::IntArrayRef{12, 8}));
  EXPECT_NO_THROW(mlp->fc1->weight.sum());
  split.check_gradients();
}

TEST(SplitModel, DescribesWhatItDid) {
  on_two_ranks([](const comm::Group& ranks) {
    test::Mlp mlp(8, 12);
    const SplitModel split = SplitModel::split(*mlp, kPlainMlpRules, ranks);
    EXPECT_THAT(split.describe(), HasSubstr("fc1.weight  column            [12, 8] -> [6, 8]\n"));
    EXPECT_THAT(split.describe(), HasSubstr("fc1.bias    column            [12] -> [6]\n"));
    EXPECT_THAT(split.describe(), HasSubstr("fc2.weight  row               [8, 12] -> [8, 6]\n"));
    EXPECT_THAT(split.describe(), testing::Not(HasSubstr("fc2.bias")));
  });
}

} // namespace
} // namespace trireme::tensor
