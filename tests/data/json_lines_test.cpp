// JSON lines of a run: the tokens, masks and errors of "trireme data tokenize", through the cache and without it.
#include <trireme/data/json_lines.h>

#include "temporary_folder.h"

#include <trireme/base/file.h>
#include <trireme/data/make_dataset.h>
#include <trireme/data/tokenize/tokenize.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <iterator>
#include <numeric>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

class JsonLinesTest : public TemporaryFolderTest {
 protected:
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += i % 3 == 0 ? concat(R"({"text": "rows and rows )", i, "\"}\n")
              : i % 3 == 1
                  ? concat(R"({"prompt": "how many? ", "response": ")", i, " of them\"}\n")
                  : concat(R"({"messages": [{"role": "user", "content": "who?"}, {"role": "assistant", "content": ")",
                           i, "\"}]}\n");
    }
    return text;
  }
  // Made from 30 lines to train on and 9 to evaluate, by a tokenizer without a template of its own.
  DataOptions options() const {
    return {.kind = DataOptions::Kind::json_lines,
            .train = {write("train.jsonl", lines(30))},
            .validation = {write("validation.jsonl", lines(9))},
            .sequence_length = 16,
            .tokenizer = "bytes",
            .chat_template = write("rows.jinja", kTemplate).string(),
            .chat_template_place = "run.json:7:5: data.chat_template"};
  }
  std::vector<fs::path> shards(const DataOptions& of) const {
    const fs::path out = folder_ / "shards";
    fs::remove_all(out);
    tokenize_files({.inputs = of.train,
                    .tokenizer = of.tokenizer,
                    .out = out,
                    .lines = {.loss_on = of.loss_on, .chat_template = of.chat_template}});
    return {out};
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const auto& item : fs::directory_iterator(folder_ / "cache")) {
      if (item.is_directory()) {
        found.push_back(item.path());
      }
    }
    return found;
  }
};

void expect_same(const Dataset& found, const Dataset& expected) {
  ASSERT_EQ(found.size(), expected.size());
  std::vector<int64_t> all(static_cast<size_t>(found.size()));
  std::iota(all.rbegin(), all.rend(), 0);
  const Batch here = found.get(all);
  const Batch there = expected.get(all);
  ASSERT_EQ(here.inputs.size(), there.inputs.size());
  for (size_t i = 0; i < here.inputs.size(); ++i) {
    EXPECT_TRUE(at::equal(here.inputs[i], there.inputs[i])) << i;
  }
  EXPECT_TRUE(at::equal(here.target(), there.target()));
  EXPECT_EQ(found.masks_targets(), expected.masks_targets());
  if (found.masks_targets()) {
    EXPECT_EQ(found.counted_targets(all), expected.counted_targets(all));
    EXPECT_EQ(found.counted_targets(all), here.target().ne(kIgnoredTarget).sum().item<int64_t>());
  }
}

TEST_F(JsonLinesTest, TokensAndMasksAreThoseOfShards) {
  for (const LossOn loss_on : {LossOn::response, LossOn::all}) {
    for (const bool pack : {false, true}) {
      DataOptions wanted = options();
      wanted.loss_on = loss_on;
      wanted.pack = pack;
      const TokensDataset expected(shards(wanted), 16, 256, 0, pack);
      EXPECT_EQ(expected.masks_targets(), pack || loss_on == LossOn::response);
      const Datasets alone = make_datasets(wanted); // without a cache
      expect_same(*alone.train, expected);
      prepare_tokens(wanted, folder_ / "cache");
      const Datasets cached = make_datasets(wanted, {}, folder_ / "cache");
      expect_same(*cached.train, expected);
      expect_same(*cached.validation, *alone.validation);
      EXPECT_THAT(cached.train->describe(), AllOf(HasSubstr("JSON lines: "), HasSubstr("train.jsonl")));
    }
  }
  EXPECT_EQ(entries().size(), 2u) << "one for each loss_on: whether documents are packed does not change tokens";
}

TEST_F(JsonLinesTest, AnotherFileOrTemplateMakesThemAgain) {
  const DataOptions wanted = options();
  const auto prepared = [&] {
    prepare_tokens(wanted, folder_ / "cache");
    return entries();
  };
  const auto first = prepared();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(prepared(), first);
  const auto before = make_datasets(wanted, {}, folder_ / "cache");
  write("rows.jinja", concat("<s>", kTemplate));
  EXPECT_NE(prepared(), first);
  expect_same(*make_datasets(wanted, {}, folder_ / "cache").train, *make_datasets(wanted).train);
  write("train.jsonl", lines(31));
  prepared();
  EXPECT_GT(make_datasets(wanted, {}, folder_ / "cache").train->size(), before.train->size());
}

TEST_F(JsonLinesTest, ATemplateByItsNameIsOfTheTokenizersFolder) {
  std::string vocab;
  for (char letter = ' '; letter < 127; ++letter) {
    vocab += concat(vocab.empty() ? "" : ", ", '"', letter == '"' || letter == '\\' ? "\\" : "", letter,
                    "\": ", letter - ' ');
  }
  fs::create_directories(folder_ / "model/additional_chat_templates");
  write("model/tokenizer.json", concat(R"({"model": {"type": "BPE", "vocab": {)", vocab, R"(}, "merges": []}})"));
  write("model/additional_chat_templates/short.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  DataOptions named = options();
  named.train = {write("chat.jsonl", R"({"messages": [{"role": "assistant", "content": "rows"}]})")};
  named.validation.clear();
  named.tokenizer = (folder_ / "model").string();
  named.chat_template = "short";
  named.sequence_length = 3;
  named.loss_on = LossOn::all;
  const std::vector<int64_t> first = {0};
  EXPECT_EQ(make_datasets(named).train->get(first).input()[0][0].item<int64_t>(), 'r' - ' ');
  named.chat_template = "long";
  EXPECT_THAT(
      input_error([&] { prepare_tokens(named, folder_ / "cache"); }),
      AllOf(HasSubstr("run.json:7:5: data.chat_template: there is no chat template \"long\": none of that name"),
            HasSubstr((folder_ / "model").string())));
  named.chat_template = "long.jinja";
  EXPECT_THAT(input_error([&] { prepare_tokens(named, folder_ / "cache"); }),
              HasSubstr("\"long.jinja\": no such file"));
}

TEST_F(JsonLinesTest, BadLinesAndTemplatesAreNamed) {
  const auto refused = [&](const DataOptions& wrong) {
    const std::string said = input_error([&] { prepare_tokens(wrong, folder_ / "cache"); });
    EXPECT_EQ(input_error([&] { make_datasets(wrong); }), said);
    return said;
  };
  DataOptions wrong = options();
  wrong.train = {write("train.jsonl", concat(lines(4), R"({"texts": "a"})"))};
  EXPECT_THAT(refused(wrong), HasSubstr("train.jsonl:5: the key \"text\" is missing"));
  wrong = options();
  wrong.chat_template = write("raises.jinja", "{{ raise_exception('no users') }}").string();
  EXPECT_THAT(refused(wrong), AllOf(HasSubstr("train.jsonl:3: "), HasSubstr("raises.jinja"), HasSubstr("no users")));
  wrong.chat_template.clear();
  EXPECT_THAT(refused(wrong), HasSubstr("train.jsonl:3: the tokenizer bytes has no chat template"));
  wrong.chat_template = "named";
  EXPECT_THAT(refused(wrong), HasSubstr("run.json:7:5: data.chat_template: there is no chat template \"named\""));
  wrong = options();
  wrong.sequence_length = 10'000;
  prepare_tokens(wrong, folder_ / "cache");
  EXPECT_THAT(input_error([&] { make_datasets(wrong, {}, folder_ / "cache"); }),
              AllOf(HasSubstr("train.jsonl has "), HasSubstr("needs 10000 + 1")));
}

// A misnamed role: nothing that the model says counts, and a loss over nothing is 0.
TEST_F(JsonLinesTest, DataOfWhichNothingCountsIsRefused) {
  DataOptions wrong = options();
  std::string bots;
  for (int i = 0; i < 30; ++i) {
    bots += R"({"messages": [{"role": "user", "content": "who?"}, {"role": "bot", "content": "a row"}]})"
            "\n";
  }
  wrong.train = {write("bots.jsonl", bots)};
  const auto refused = [](const DataOptions& of) { return input_error([&] { make_datasets(of); }); };
  EXPECT_THAT(refused(wrong), AllOf(HasSubstr("no token of "), HasSubstr("bots.jsonl counts in the loss"),
                                    HasSubstr("look at the roles"), HasSubstr("data.loss_on \"all\"")));
  DataOptions mixture{.kind = DataOptions::Kind::mixture, .sequence_length = 16, .tokenizer = "bytes"};
  DataOptions set = wrong;
  set.tokenizer.clear();
  mixture.sets = {{std::make_shared<DataOptions>(set), 1, "a"}};
  EXPECT_THAT(refused(mixture), HasSubstr("bots.jsonl counts in the loss"));
  DataOptions tokens{.kind = DataOptions::Kind::tokens, .train = shards(wrong), .sequence_length = 16};
  EXPECT_THAT(refused(tokens), AllOf(HasSubstr("shards counts in the loss"), HasSubstr("--loss-on all")));
  std::swap(tokens.train, tokens.validation);
  tokens.train = {write("enough.txt", std::string(200, 'a'))};
  tokens.token_bytes = 2;
  EXPECT_THAT(refused(tokens), HasSubstr("shards counts in the loss")) << "a validation loss of nothing";
  std::swap(tokens.train, tokens.validation);
  tokens.validation.clear();
  tokens.token_bytes = 0;
  tokens.mask_fraction = 0.15; // has targets of its own
  tokens.vocab_size = 257;
  tokens.mask_token = 256;
  EXPECT_EQ(refused(tokens), "");
  wrong.loss_on = LossOn::all;
  EXPECT_EQ(refused(wrong), "");
}

TEST_F(JsonLinesTest, AMixtureTakesThemBesideTextAndTokens) {
  DataOptions set = options();
  set.tokenizer.clear();
  DataOptions mixture{.kind = DataOptions::Kind::mixture, .sequence_length = 16, .tokenizer = "bytes"};
  mixture.sets = {{std::make_shared<DataOptions>(set), 1, "a"},
                  {std::make_shared<DataOptions>(
                       DataOptions{.kind = DataOptions::Kind::text, .train = {write("a.txt", std::string(200, 'a'))}}),
                   1, "b"}};
  prepare_tokens(mixture, folder_ / "cache");
  EXPECT_EQ(entries().size(), 2u);
  const Datasets sets = make_datasets(mixture, {}, folder_ / "cache");
  EXPECT_TRUE(sets.mixture->masks_targets());
  expect_same(*sets.validation, *make_datasets(options()).validation);
  EXPECT_FALSE(sets.bytes_per_token);
}

} // namespace
} // namespace trireme::data
