// The programs of docs/generation.md and docs/chat_templates.md compile.
#include <tests/support/page_code.h>
#include <trireme/base/error.h>
#include <trireme/chat/chat_template.h>
#include <trireme/generate/load.h>
#include <trireme/generate/sample.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iostream>

namespace {

void generate_text() {
  auto trained = trireme::generate::load("data/smollm2");
  trireme::generate::SampleOptions options;
  options.tokens = 40;
  options.choice.top_p = 0.9;
  options.end_tokens = trained.end_tokens;
  auto ids = trained.tokenizer->encode("It is a truth", /*add_special_tokens=*/true);
  auto added = trireme::generate::continue_prompts(trained.model, {ids}, options);
  std::cout << trained.tokenizer->decode(added[0]);
}

std::vector<int32_t> render_chat(const std::shared_ptr<const trireme::tokenizer::Tokenizer>& tokenizer) {
  auto chat_template = trireme::chat::read_chat_template("data/smollm2"); // none: the folder has no template
  nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "What is a trireme?"}}};
  trireme::chat::RenderOptions options;
  options.add_generation_prompt = true;
  if (!chat_template) {
    return {};
  }
  std::string text = chat_template->render(messages, options);
  auto ids = tokenizer->encode(text, /*add_special_tokens=*/false); // the text has them
  return ids;
}

TEST(PageCodeTest, TheProgramsOfThePagesCompile) {
  constexpr const char* kHere = "tests/generate/page_code_test.cpp";
  EXPECT_GE(trireme::test::code_lines_of("docs/generation.md", {kHere}), 8);
  EXPECT_GE(trireme::test::code_lines_of("docs/chat_templates.md", {kHere}), 6);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(testing::TempDir());
  EXPECT_THROW(generate_text(), trireme::Error) << "there is no such folder here";
  EXPECT_TRUE(render_chat(trireme::tokenizer::make_tokenizer("bytes")).empty());
  std::filesystem::current_path(before);
}

} // namespace
