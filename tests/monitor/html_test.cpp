#include <trireme/monitor/html.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trireme::monitor {
namespace {

TEST(EscapeHtmlTest, LeavesNoWayOutOfTextOrAttribute) {
  EXPECT_EQ(escape_html("</script><img src=x onerror='alert(\"1\")'>&amp;"),
            "&lt;/script&gt;&lt;img src=x onerror=&#39;alert(&quot;1&quot;)&#39;&gt;&amp;amp;");
}

TEST(CleanUtf8Test, KeepsWhatIsWellFormed) {
  const std::string text = "a\n\tb \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x8C\x8A";
  EXPECT_EQ(clean_utf8(text), text);
}

TEST(CleanUtf8Test, ReplacesWhatIsNot) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(clean_utf8("a\xFF"
                       "b"),
            "a" + mark + "b");
  EXPECT_EQ(clean_utf8("\xC3"), mark); // cut off
  EXPECT_EQ(clean_utf8("\xE2\x82"
                       "x"),
            mark + mark + "x");                                         // cut off inside
  EXPECT_EQ(clean_utf8("\xC0\xAF"), mark + mark);                       // overlong "/"
  EXPECT_EQ(clean_utf8("\xE0\x80\xAF"), mark + mark + mark);            // overlong
  EXPECT_EQ(clean_utf8("\xED\xA0\x80"), mark + mark + mark);            // surrogate
  EXPECT_EQ(clean_utf8("\xF4\x90\x80\x80"), mark + mark + mark + mark); // past U+10FFFF
  EXPECT_EQ(clean_utf8(std::string("\0\x1B[2J", 5)), mark + mark + "[2J");
}

TEST(JsonAsHtmlTest, EscapesKeysAndValues) {
  nlohmann::ordered_json value;
  value["<k>"] = "a\"</pre>\n\xFF";
  value["betas"] = {0.9, 0.95};
  value["none"] = nullptr;
  value["empty"] = nlohmann::ordered_json::object();
  value["list"] = nlohmann::ordered_json::array({nlohmann::ordered_json{{"a", true}}});
  EXPECT_EQ(
      json_as_html(value),
      "{\n"
      "  <span class=\"k\">&quot;&lt;k&gt;&quot;</span>: "
      "<span class=\"s\">&quot;a\\&quot;&lt;/pre&gt;\\n\xEF\xBF\xBD&quot;</span>,\n"
      "  <span class=\"k\">&quot;betas&quot;</span>: [<span class=\"n\">0.9</span>, <span class=\"n\">0.95</span>],\n"
      "  <span class=\"k\">&quot;none&quot;</span>: <span class=\"w\">null</span>,\n"
      "  <span class=\"k\">&quot;empty&quot;</span>: {},\n"
      "  <span class=\"k\">&quot;list&quot;</span>: [\n"
      "    {\n"
      "      <span class=\"k\">&quot;a&quot;</span>: <span class=\"w\">true</span>\n"
      "    }\n"
      "  ]\n"
      "}");
}

} // namespace
} // namespace trireme::monitor
