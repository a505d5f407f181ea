// "training.freeze": how it is read, and which names its expressions match.
#include <trireme/base/error.h>
#include <trireme/config/freeze.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kParameters = {"transformer.wte.weight", "transformer.wpe.weight",
                                              "transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.bias",
                                              "lm_head.weight"};

std::string run_that_freezes(const std::string& freeze, const std::string& sync = "all_reduce") {
  return concat(R"({
  "model": {"type": "gpt"},
  "data": {"type": "text", "train": "train.txt"},
  "parallel": {"sync": {"kind": ")",
                sync, R"("}},
  "training": {"steps": 10, "freeze": )",
                freeze, R"(},
  "engine": {"train_batch_size": 8, "optimizer": {"type": "AdamW"}}
})");
}

RunConfig read_whole(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return read_run(JsonNode::parse(text, "run.json"), "/", overrides);
}

std::vector<std::string> texts_of(const RunConfig& run) {
  std::vector<std::string> texts;
  for (const Expression& expression : run.training.freeze.expressions) {
    texts.push_back(expression.text);
  }
  return texts;
}

FreezeOptions freezing(const std::string& json) {
  return read_whole(run_that_freezes(json)).training.freeze;
}

template <typename Action>
std::string refusal_of(const Action& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FreezeTest, ATextIsAListOfOne) {
  const RunConfig one = read_whole(run_that_freezes(R"("wte")"));
  EXPECT_THAT(texts_of(one), ElementsAre("wte"));
  EXPECT_EQ(one.training.freeze.expressions[0].place, "run.json:5:39: training.freeze");
  const RunConfig two = read_whole(run_that_freezes(R"(["wte", "h\\.0\\."])"));
  EXPECT_THAT(texts_of(two), ElementsAre("wte", "h\\.0\\."));
  EXPECT_EQ(two.training.freeze.expressions[1].place, "run.json:5:47: training.freeze[1]");
  EXPECT_EQ(two.resolved["training"]["freeze"], (nlohmann::json{"wte", "h\\.0\\."}));
  EXPECT_THAT(texts_of(read_whole(two.resolved.dump())), ElementsAre("wte", "h\\.0\\."));
  EXPECT_THAT(texts_of(read_whole(run_that_freezes("[]"), {"training.freeze=wpe"})), ElementsAre("wpe"));
  EXPECT_FALSE(freezing("[]").on());
  EXPECT_FALSE(freezing("null").on());
}

TEST(FreezeTest, ExpressionsAreSearchedForInNames) {
  EXPECT_THAT(frozen_of_all(freezing(R"("wte")"), kParameters), ElementsAre(true, false, false, false, false));
  EXPECT_THAT(frozen_of_all(freezing(R"("^transformer\\.")"), kParameters), ElementsAre(true, true, true, true, false));
  EXPECT_THAT(frozen_of_all(freezing(R"(["wte", "bias$"])"), kParameters),
              ElementsAre(true, false, false, true, false));
  EXPECT_THAT(frozen_of_all(freezing(R"j("^(?!lm_head)")j"), kParameters), ElementsAre(true, true, true, true, false))
      << "all but one";
  EXPECT_THAT(frozen_of_all({}, kParameters), ElementsAre(false, false, false, false, false));
  EXPECT_THAT(frozen_among(freezing(R"("nothing")"), kParameters), ElementsAre(false, false, false, false, false));
}

TEST(FreezeTest, RefusesWhatCannotBeMeant) {
  const auto refused = [](const std::string& json) {
    return refusal_of([&] { frozen_of_all(freezing(json), kParameters); });
  };
  EXPECT_THAT(refused(R"(["wte", "(wpe"])"),
              AllOf(HasSubstr("run.json:5:39: training.freeze: \"(wpe\" is not a regular expression")));
  EXPECT_THAT(refused(R"(["wte", "transformer.wtf"])"),
              AllOf(HasSubstr("run.json:5:47: training.freeze[1]: \"transformer.wtf\" matches no parameter"),
                    HasSubstr("The nearest names are: transformer.wte.weight, transformer.wpe.weight, ")));
  EXPECT_THAT(refused(R"("WTE")"), HasSubstr("matches no parameter")) << "upper and lower case differ";
  EXPECT_THAT(refused(R"(["transformer", "lm_head"])"),
              HasSubstr("run.json:5:40: training.freeze[0]: the expressions match all 5 parameters"));
  EXPECT_THAT(refused(R"("")"), HasSubstr("nothing is left to train"));
  EXPECT_THAT(refused("7"), HasSubstr("run.json:5:39: training.freeze"));
  EXPECT_THAT(refused(R"(["wte", 7])"), HasSubstr("training.freeze[1]"));
  EXPECT_THAT(refused('"' + std::string(2000, '(') + '"'), HasSubstr("more than 1000 characters"));
}

// Matching takes no exponential time.
TEST(FreezeTest, BadExpressionsEnd) {
  EXPECT_THAT(refusal_of([] { frozen_of_all(freezing(R"("(.*)*(.*)*q")"), kParameters); }), HasSubstr("matches no"));
  EXPECT_THAT(refusal_of([] { frozen_of_all(freezing(R"("(a|b|ab)*c")"), {std::string(1000, 'a')}); }),
              HasSubstr("matches no"));
  for (const char* const json :
       {R"("(.)\\1")", R"("((.?){100}){100}q")", R"("(a?){1,99999999999}")", R"("a\\44444444444444444444")"}) {
    EXPECT_THAT(refusal_of([&] { frozen_of_all(freezing(json), kParameters); }), HasSubstr("regular expression"))
        << json;
  }
  EXPECT_THAT(refusal_of([] { frozen_of_all(freezing(R"("x")"), {}); }), HasSubstr("matches no"));
}

TEST(FreezeTest, ServersHaveNoFrozenParameters) {
  EXPECT_THAT(refusal_of([] { read_whole(run_that_freezes(R"("wte")", "server")); }),
              AllOf(HasSubstr("frozen parameters"), HasSubstr("parallel.sync.kind")));
}

} // namespace
} // namespace trireme::config
