#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt2_weights.h>
#include <trireme/models/gpt_values.h>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;

GptOptions small_gpt(bool tied = true) {
  GptOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 4;
  options.sequence_length = 12;
  options.vocab_size = 50;
  options.tie_embeddings = tied;
  return options;
}

class Gpt2FilesTest : public testing::TestWithParam<bool> {
 protected:
  Gpt2FilesTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_gpt2_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~Gpt2FilesTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// The reference forward pass is Python's; see reference_gpt2.py.
TEST_P(Gpt2FilesTest, LogitsEqualPytorchsOnTheSameWeights) {
  const std::string command =
      concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/models/reference_gpt2.py\" ",
             folder_.string(), ' ', GetParam() ? 1 : 0);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  Gpt model(small_gpt(GetParam()));
  load_gpt2(model, folder_ / "model.safetensors");
  model->eval();
  const auto expected = checkpoint::Safetensors::open(folder_ / "expected.safetensors");
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(expected.tensor("tokens"));
  EXPECT_LT((logits - expected.tensor("logits")).abs().max().item<double>(), 2e-5);
  // And out again: the same file content.
  save_gpt2(model, folder_ / "copy.safetensors");
  const auto original = checkpoint::Safetensors::open(folder_ / "model.safetensors");
  const auto copy = checkpoint::Safetensors::open(folder_ / "copy.safetensors");
  ASSERT_EQ(copy.tensors().size(), original.tensors().size());
  for (const auto& info : original.tensors()) {
    EXPECT_TRUE(copy.tensor(info.name).equal(original.tensor(info.name))) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Tied, Gpt2FilesTest, testing::Bool());

TEST_P(Gpt2FilesTest, AWrongShapeIsNamed) {
  Gpt model(small_gpt(GetParam()));
  save_gpt2(model, folder_ / "model.safetensors");
  GptOptions other = small_gpt(GetParam());
  other.vocab_size = 51;
  Gpt wide(other);
  try {
    load_gpt2(wide, folder_);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("transformer.wte.weight"),
                                             testing::HasSubstr("[50, 16]"), testing::HasSubstr("[51, 16]")));
  }
  other = small_gpt(GetParam());
  other.layers = 1;
  Gpt shallow(other);
  EXPECT_THROW(load_gpt2(shallow, folder_), InputError) << "tensors without a place";
  other.layers = 3;
  Gpt deep(other);
  EXPECT_THROW(load_gpt2(deep, folder_), InputError) << "missing tensors";
}

class TiedHeadTest : public Gpt2FilesTest {
 protected:
  // The weights of an untied model, with this head; without a prefix as the base model's files.
  fs::path with_head(const at::Tensor& head, bool prefix = true) const {
    Gpt model(small_gpt(true));
    save_gpt2(model, folder_ / "tied.safetensors");
    const auto tied = checkpoint::Safetensors::open(folder_ / "tied.safetensors");
    std::vector<checkpoint::NamedTensor> tensors{{"lm_head.weight", head}};
    for (const auto& info : tied.tensors()) {
      tensors.push_back(
          {prefix ? info.name : info.name.substr(std::string("transformer.").size()), tied.tensor(info.name)});
    }
    checkpoint::write_safetensors(folder_ / "model.safetensors", tensors);
    return folder_ / "model.safetensors";
  }
  static at::Tensor embedding() { return Gpt(small_gpt(true))->transformer->embedding->wte->weight.detach().clone(); }
  static std::string complaint(const std::function<void()>& f) {
    try {
      f();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

INSTANTIATE_TEST_SUITE_P(Prefix, TiedHeadTest, testing::Bool());

// A head of the file's own has nowhere to go in a model that has one weight for both.
TEST_P(TiedHeadTest, OneThatDiffersIsRefused) {
  const std::string name = GetParam() ? "transformer.wte.weight" : "wte.weight";
  at::Tensor last = embedding();
  last[49][15] += 1;
  for (const at::Tensor& head : {last, at::zeros({50, 16}), at::zeros({51, 16}), embedding().to(at::kBFloat16)}) {
    GptOptions from = small_gpt();
    from.init_from = with_head(head, GetParam());
    Gpt model(small_gpt());
    const at::Tensor before = model->transformer->ln_f->weight.detach().clone().fill_(7);
    torch::NoGradGuard no_grad;
    model->transformer->ln_f->weight.fill_(7);
    for (const std::string& said :
         {complaint([&] { load_gpt2(model, from.init_from); }), complaint([&] { Gpt started(from); })}) {
      EXPECT_THAT(said, testing::AllOf(testing::HasSubstr("\"lm_head.weight\" differs from \"" + name + '"'),
                                       testing::HasSubstr("model.safetensors"),
                                       testing::HasSubstr("Set model.tie_embeddings to false")));
    }
    EXPECT_TRUE(model->transformer->ln_f->weight.equal(before)) << "nothing is loaded of what is refused";
  }
}

TEST_P(TiedHeadTest, OneThatIsTheEmbeddingIsTaken) {
  for (const at::Tensor& head : {embedding(), embedding().to(at::kDouble)}) {
    GptOptions from = small_gpt();
    from.init_from = with_head(head, GetParam());
    EXPECT_EQ(complaint([&] { Gpt started(from); }), "");
    Gpt model(small_gpt());
    load_gpt2(model, from.init_from);
    EXPECT_TRUE(model->transformer->embedding->wte->weight.equal(embedding()));
  }
}

// As the sentence says.
TEST_P(TiedHeadTest, AnUntiedModelTakesBoth) {
  GptOptions from = small_gpt(false);
  const at::Tensor head = at::randn({50, 16});
  from.init_from = with_head(head, GetParam());
  Gpt model(from);
  EXPECT_TRUE(model->lm_head->weight.equal(head));
  EXPECT_TRUE(model->transformer->embedding->wte->weight.equal(embedding()));
  from.init_from = folder_ / "tied.safetensors";
  EXPECT_THAT(complaint([&] { Gpt started(from); }),
              testing::AllOf(testing::HasSubstr("no tensor \"lm_head.weight\""),
                             testing::HasSubstr("model.tie_embeddings to true")));
}

TEST(GptTest, TheSeedAloneDecidesTheWeights) {
  torch::manual_seed(1);
  Gpt a(small_gpt());
  torch::manual_seed(2);
  torch::randn({7});
  Gpt b(small_gpt());
  GptOptions other = small_gpt();
  other.seed = 99;
  Gpt c(other);
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(item.value().equal(b->named_parameters()[item.key()])) << item.key();
  }
  EXPECT_FALSE(a->transformer->embedding->wte->weight.equal(c->transformer->embedding->wte->weight));
}

TEST(GptTest, NamesAreHuggingFaces) {
  Gpt model(small_gpt(false));
  const auto parameters = model->named_parameters();
  EXPECT_TRUE(parameters.contains("transformer.h.1.attn.c_attn.weight"));
  EXPECT_TRUE(parameters.contains("transformer.h.0.mlp.c_proj.bias"));
  EXPECT_TRUE(parameters.contains("transformer.ln_f.bias"));
  EXPECT_TRUE(parameters.contains("lm_head.weight"));
  EXPECT_EQ(parameters.size(), 2u + 2 * 12 + 2 + 1);
  for (const bool tied : {false, true}) {
    std::set<std::string> names;
    for (const auto& item : Gpt(small_gpt(tied))->named_parameters()) {
      names.insert(item.key());
    }
    EXPECT_EQ(parameter_names(layer_shapes(small_gpt(tied))), names);
  }
}

TEST(GptTest, PartsHaveTheSizesOfTheModule) {
  for (const bool tied : {true, false}) {
    const auto parameters = Gpt(small_gpt(tied))->named_parameters();
    for (const LayerShape& part : layer_shapes(small_gpt(tied))) {
      for (const auto& [name, sizes, split] : part.parameters) {
        EXPECT_EQ(parameters[concat(part.name, '.', name)].sizes().vec(), sizes) << part.name << ' ' << name;
      }
    }
  }
}

TEST(GptTest, LaterTokensDoNotChangeEarlierLogits) {
  const torch::NoGradGuard no_grad;
  Gpt model(small_gpt());
  model->eval();
  at::Tensor tokens = torch::arange(12).view({1, 12});
  const at::Tensor before = model->forward(tokens);
  tokens[0][9] = 3;
  const at::Tensor after = model->forward(tokens);
  EXPECT_TRUE(before.slice(1, 0, 9).allclose(after.slice(1, 0, 9), 1e-6, 1e-6));
  EXPECT_FALSE(before.slice(1, 9).allclose(after.slice(1, 9), 1e-3, 1e-3));
}

TEST(GptTest, DropoutActsInTrainingOnly) {
  GptOptions options = small_gpt();
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor tokens = torch::arange(12).view({1, 12});
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(tokens).equal(model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(model->forward(tokens).equal(model->forward(tokens)));
}

// A bias in fp32 that is added to a product in bf16 would make the widest tensors of a block fp32.
TEST(GptTest, WithoutFusedPassesAutocastKeepsTheMlpInBf16) {
  ::setenv("TRIREME_SIMD", "scalar", 1); // as on a GPU; before anybody asks for kernels
  GptMlp mlp(GptOptions{.hidden = 8, .heads = 2}, ModelRanks());
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_EQ(mlp->activate(torch::randn({1, 4, 8})).scalar_type(), at::kBFloat16);
}

TEST(GptTest, RefusesImpossibleShapes) {
  GptOptions options = small_gpt();
  options.heads = 3;
  EXPECT_THROW(Gpt{options}, InputError);
  Gpt model(small_gpt());
  EXPECT_THROW(model->forward(torch::zeros({1, 13}, torch::kInt64)), InputError);
}

} // namespace
} // namespace trireme::models
