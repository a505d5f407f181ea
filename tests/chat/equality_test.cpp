// Trireme renders what transformers renders: templates with the constructs of published ones, small expressions and
// random ones, with messages, tools and documents. Templates that transformers refuses are refused.
#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <trireme/chat/chat_template.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>

namespace trireme::chat {
namespace {

using nlohmann::ordered_json;

// The number of code points before byte `at`.
size_t code_points(const std::string& text, size_t at) {
  return static_cast<size_t>(std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
  }));
}

RenderOptions options_of(const ordered_json& given, const ordered_json& variables) {
  RenderOptions options;
  options.variables = given.value("variables", variables);
  options.add_generation_prompt = given.value("add_generation_prompt", false);
  options.continue_final_message = given.value("continue_final_message", false);
  options.tools = given.value("tools", ordered_json());
  options.documents = given.value("documents", ordered_json());
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 15;
  now.tm_min = 4;
  now.tm_sec = 5;
  now.tm_wday = 5;
  now.tm_yday = 207;
  options.now = now;
  return options;
}

ordered_json ours(const ordered_json& given, const ordered_json& variables) {
  try {
    const auto parsed = ChatTemplate::parse(given["template"].get<std::string>(), "t");
    const bool is_expression = !given.contains("messages");
    const ordered_json messages =
        is_expression ? ordered_json::parse(R"([{"role": "user", "content": "hi"}])") : given["messages"];
    const Rendered rendered = parsed.render_with_spans(
        messages,
        options_of(given.value("options", ordered_json::object()), is_expression ? variables : ordered_json::object()));
    ordered_json spans = ordered_json::array();
    for (const auto& [begin, end] : rendered.generated) {
      spans.push_back({code_points(rendered.text, begin), code_points(rendered.text, end)});
    }
    return {{"text", rendered.text}, {"spans", spans}};
  } catch (const InputError& error) {
    return {{"error", error.what()}};
  }
}

TEST(ChatEqualityTest, TextsAndSpansAreThoseOfTransformers) {
  const ScratchFolder folder(make_scratch_folder("trireme_chat"));
  const std::string file = (folder.path / "cases.json").string();
  const auto [status, output] =
      test::run_command(concat('\'', test::python(), "' '", test::source_dir(), "/tests/chat/render_templates.py' '",
                               file, "' ", env::text("TRIREME_LONG_TESTS") ? 100'000 : 1'000));
  ASSERT_EQ(status, 0) << "PyPI transformers is needed (requirements-test.txt):\n" << output;
  const ordered_json all = ordered_json::parse(read_file(file));
  size_t texts = 0;
  size_t refused = 0;
  size_t left_out = 0; // of random expressions, what Trireme refuses by name
  for (const auto& given : all["cases"]) {
    const ordered_json found = ours(given, all["variables"]);
    const bool is_expression = !given.contains("messages");
    if (given.contains("error")) {
      ++refused;
      EXPECT_TRUE(is_expression || found.contains("error")) << given["name"] << '\n'
                                                            << given["error"] << "\nours: " << found.dump() << '\n'
                                                            << given["template"];
      continue;
    }
    const std::string error = found.value("error", "");
    if (is_expression && (error.find("upport") != std::string::npos || error.find("sliced") != std::string::npos)) {
      ++left_out;
      continue;
    }
    ++texts;
    const bool is_continued = given.contains("options") && given["options"].value("continue_final_message", false);
    const bool is_equal = found.value("text", "") == given["text"] && !found.contains("error") &&
                          (is_continued || found["spans"] == given["spans"]);
    EXPECT_TRUE(is_equal) << given["name"] << "\nours:   " << found.dump() << "\ntheirs: " << given["text"].dump()
                          << ' ' << given["spans"].dump();
  }
  EXPECT_GT(texts, 1500u);
  EXPECT_GT(refused, 300u);
  EXPECT_LT(left_out, texts / 20);
}

} // namespace
} // namespace trireme::chat
