// What a template from elsewhere cannot do, what its errors say, and what the options do.
#include <trireme/base/error.h>
#include <trireme/chat/chat_template.h>

#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace trireme::chat {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

const ordered_json kMessages = ordered_json::parse(R"([{"role": "user", "content": "hi"}])");

std::string render(const std::string& text, const RenderOptions& options = {}) {
  return ChatTemplate::parse(text, "t.jinja").render(kMessages, options);
}

std::string error_of(const std::string& text, const RenderOptions& options = {}) {
  try {
    return "no error: " + render(text, options);
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

TEST(ChatTemplateTest, ErrorsNameTheLineAndWhatIsSupported) {
  EXPECT_THAT(error_of("a\n{% if x %}\n{{ 1 + }}{% endif %}"), HasSubstr("t.jinja:3: unexpected '}}'"));
  EXPECT_THAT(error_of("\n{{ x | frobnicate }}"), HasSubstr("t.jinja:2: no filter is named 'frobnicate'"));
  EXPECT_THAT(error_of("{{ x | frobnicate }}"), HasSubstr("tojson, trim"));
  EXPECT_THAT(error_of("{{ x is frobnicated }}"),
              HasSubstr("no test is named 'frobnicated'. Supported: !=, ==, boolean"));
  EXPECT_THAT(error_of("{{ 'x'.zfill(3) }}"), HasSubstr("no method is named 'zfill'. Supported: capitalize, endswith"));
  EXPECT_THAT(error_of("{{ messages[0].pop('role') }}"), HasSubstr("get, items, keys, values of dicts"));
  EXPECT_THAT(error_of("{% for m in messages %}{{ loop.depth }}{% endfor %}"), HasSubstr("Supported: first, index"));
  EXPECT_THAT(error_of("{{ frobnicate(1) }}"), HasSubstr("raise_exception, range"));
  EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("{% include %} is not supported"));
  EXPECT_THAT(error_of("{% raw %}{% endraw %}"), HasSubstr("Supported: if, for, set, macro"));
  EXPECT_THAT(error_of("{{ 7 // 2 }}"), HasSubstr("the operator // is not supported"));
  EXPECT_THAT(error_of("{{ '%d' % 2 }}"), HasSubstr("% does not support texts"));
  EXPECT_THAT(error_of("{{ 'abc'[::2] }}"), HasSubstr("no steps but [::-1]"));
  EXPECT_THAT(error_of("{{ '%d' | format(2) }}"), HasSubstr("supports only %s"));
  EXPECT_THAT(error_of("{%+ if 1 %}{% endif %}"), HasSubstr("'+' at the begin of a tag is not supported"));
  EXPECT_THAT(error_of("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loop is not supported"));
  EXPECT_THAT(error_of("{% macro m() %}\n{{ kwargs }}{% endmacro %}"),
              HasSubstr("t.jinja:2: 'kwargs' of a macro is not"));
  EXPECT_THAT(error_of("{% macro m(a) %}{% for x in varargs %}{% endfor %}{% endmacro %}"),
              HasSubstr("'varargs' of a"));
  EXPECT_EQ(render("{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(3) }}{{ varargs }}"), "3");
  EXPECT_THAT(error_of("{% for x in messages %}\n{{ x.content.y.z }}{% endfor %}"),
              HasSubstr("t.jinja:2: 'str object' has no attribute 'y'"));
  EXPECT_THAT(error_of("{{ messages.append(1) }}"), HasSubstr("no method is named 'append'"));
  EXPECT_THAT(error_of("\n\n{{ raise_exception('Roles must\x1b[2J alternate') }}"),
              HasSubstr("t.jinja:3: the chat template refuses this conversation: Roles must"));
  EXPECT_THAT(error_of("{{ raise_exception('\x1b') }}"), testing::Not(HasSubstr("\x1b"))) << "no control of a terminal";
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("does not fit into 64 bits"));
}

TEST(ChatTemplateTest, ConversationsAndOptionsAreChecked) {
  const auto parsed = ChatTemplate::parse("{{ messages[0].role }}", "t");
  for (const char* wrong : {"[]", "{}", "[1]", "\"hi\"", "null", "[[]]"}) {
    EXPECT_THROW(parsed.render(ordered_json::parse(wrong)), InputError) << wrong;
  }
  EXPECT_THROW(parsed.render(kMessages, {.tools = 5}), InputError);
  EXPECT_THROW(parsed.render(kMessages, {.documents = ordered_json::parse("[1]")}), InputError);
  EXPECT_THROW(parsed.render(kMessages, {.add_generation_prompt = true, .continue_final_message = true}), InputError);
  EXPECT_THROW(parsed.render(kMessages, {.continue_final_message = true}), InputError) << "it reads no content";
  EXPECT_EQ(render("{{ messages[0].content }}<end>", {.continue_final_message = true}), "hi");
  EXPECT_EQ(render("{{ messages[0].content | trim }}<end>", {.continue_final_message = true}), "hi");
  EXPECT_THAT(error_of("{# content #}x", {.continue_final_message = true}), HasSubstr("does not keep"));
  EXPECT_EQ(render("{{ bos_token }}{{ x }}", {.variables = {{"bos_token", "<s>"}, {"x", 1.5}}}), "<s>1.5");
  const auto with_tokens = ChatTemplate::parse("{{ bos_token }}", "t", {{"bos_token", "<s>"}});
  EXPECT_EQ(with_tokens.render(kMessages), "<s>");
  EXPECT_EQ(with_tokens.render(kMessages, {.variables = {{"bos_token", "<b>"}}}), "<b>");
}

TEST(ChatTemplateTest, InvalidUtf8BecomesU_FFFD) {
  const auto parsed = ChatTemplate::parse("\xff{{ messages[0].content }}{{ messages[0].content | length }}", "t");
  EXPECT_EQ(parsed.render({{{"role", "user"}, {"content", "\xc3\x28"}}}), "\xEF\xBF\xBD\xEF\xBF\xBD(2");
}

// Each would hang, fill the memory or use up the stack.
TEST(ChatTemplateTest, HostileTemplatesAreRefused) {
  const auto start = std::chrono::steady_clock::now();
  const std::string hundred = "{% for a in range(100000) %}{% for b in range(100000) %}";
  const std::vector<std::string> hostile = {
      hundred + "{% endfor %}{% endfor %}",
      "{{ 'x' * 1000000000000 }}",
      "{{ ('x' * 9223372036854775807) | length }}",
      "{{ range(1000000000000) }}",
      "{{ range(0, -9223372036854775807, -9223372036854775807) | join * 1000000000 }}",
      "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000) | list | join('b' * 1000000) }}",
      "{% set ns = namespace(x='x') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | "
      "length }}",
      "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[], y=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
      "tojson }}",
      "{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x | string }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% if true %}{% for i in [1] %}{% set x %}{{ [m()] | map('upper') | join }}{% endset %}{% endfor "
      "%}{% endif %}{% endmacro %}{{ m() }}",
      "{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}",
      "{{ " + repeated("[", 100'000),
      "{{ " + repeated("{1:", 100'000),
      "{{ " + repeated("not ", 100'000) + "1 }}",
      "{{ " + repeated("-", 100'000) + "1 }}",
      "{{ x" + repeated(".a", 100'000) + " }}",
      "{{ x" + repeated("[0", 100'000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100'000) + " }}",
      "{{ 1" + repeated(" | int", 100'000) + " }}",
      "{{ 1" + repeated(" is odd", 100'000) + " }}",
      "{{ x" + repeated("()", 100'000) + " }}",
      "{{ x is y" + repeated("(x is y", 100'000) + " }}",
      repeated("{% if 1 %}", 100'000),
      repeated("{% for x in y %}", 100'000),
      "{% set " + repeated("(", 100'000) + "x = 1 %}",
      "{% for " + repeated("(", 100'000) + "x in y %}",
      "{{ 123456789012345678901234567890 }}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a | length %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a.startswith(a) %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a.endswith(a ~ '') %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a < a ~ '' %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a in messages[0] %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = 'a' in a %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = messages[0][a] %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = a | int %}{% endfor %}",
      "{% set a = 'a' * 10000000 %}{% for i in range(3000) %}{% set n = 'a'.strip(a) %}{% endfor %}",
      "{% set a = 'a.' * 5000000 %}{{ range(100000) | map(attribute=a) | list }}",
      "{% for i in range(100000) %}{% set n = " + std::string(1'000'000, 'x') + " %}{% endfor %}",
      "{{ ('a' * 5000000) | list | length }}",
      "{{ ('a' * 5000000).split('a') | length }}",
      "{{ ('a ' * 5000000).split() | length }}",
      "{% for a in 'a' * 5000000 %}{% endfor %}",
      "{{ ('\\x01' * 40000000) | tojson | length }}",
      "{{ [('\\x01' * 40000000)] | string | length }}",
  };
  for (const std::string& text : hostile) {
    EXPECT_THAT(error_of(text, {.max_steps = 3'000'000}), testing::StartsWith("[chat] t.jinja:"))
        << text.substr(0, 120);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 60);
}

// Each takes a time that grows with the texts' lengths, not with their product.
TEST(ChatTemplateTest, LongTextsAreSearchedInLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  const std::string texts =
      "{% set a = 'a' * 2000000 %}{% set b = 'a' * 1000000 ~ 'b' %}{% set c = 'b' ~ 'a' * 1000000 %}";
  for (const auto& [expression, expected] : {std::pair("b in a", "False"),
                                             {"c in a", "False"},
                                             {"a | replace(b, '') == a", "True"},
                                             {"(a ~ 'b') | replace(b, 'x') | length", "1000001"},
                                             {"a.replace(c, '') == a", "True"},
                                             {"a.split(b) == [a]", "True"},
                                             {"(a ~ a).split('a' * 1000000) | length", "5"},
                                             {"a.find(b)", "-1"},
                                             {"(a ~ 'b').find(b)", "1000000"},
                                             {"a.rfind(c)", "-1"},
                                             {"(c ~ b).rfind(c)", "0"},
                                             {"(a ~ c ~ 'é' ~ c).rfind(c)", "3000002"},
                                             {"a.strip('b' * 1000000 ~ 'a') | length", "0"},
                                             {"('éa' * 3 ~ 'x').strip('y' * 50 ~ 'éa')", "x"},
                                             {"a.strip(b) | length", "0"},
                                             {"(a ~ 'é')[::-1] == 'é' ~ a", "True"},
                                             {"(a ~ 'é') | last ~ a | first", "éa"}}) {
    EXPECT_EQ(render(texts + "{{ " + expression + " }}"), expected) << expression;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 20);
}

TEST(ChatTemplateTest, LongChainsAreNoNesting) {
  EXPECT_EQ(render("{{ 0" + repeated(" + 1", 10'000) + " }}"), "10000");
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'a'", 10'000) + " == 'a' * 10001 }}"), "True");
  EXPECT_EQ(render("{{ 1" + repeated(" and 1", 10'000) + repeated(" or 0", 10'000) + " }}"), "1");
  EXPECT_EQ(render("{{ 1" + repeated(" < 2 > 1", 10'000) + " }}"), "True");
  EXPECT_EQ(render("{% if 0 %}" + repeated("{% elif 0 %}", 10'000) + "{% else %}x{% endif %}"), "x");
  EXPECT_EQ(render("{% macro m(n) %}{{ m(n - 1) if n else 'end' }}{% endmacro %}{{ m(40) }}"), "end");
}

TEST(ChatTemplateTest, LimitsCanBeSet) {
  const std::string loop = "{% for i in range(1000) %}xxxxxxxxxx{% endfor %}";
  EXPECT_EQ(render(loop).size(), 10'000u);
  EXPECT_THAT(error_of(loop, {.max_bytes = 9'999}), HasSubstr("too long"));
  EXPECT_THAT(error_of(loop, {.max_steps = 1'000}), HasSubstr("too many steps"));
}

// Values that hold each other are freed at the end (AddressSanitizer sees it otherwise).
TEST(ChatTemplateTest, CyclesAreFreed) {
  EXPECT_EQ(
      render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, ns.me] %}{{ ns.me.list | length }}"),
      "2");
  EXPECT_EQ(render("{% macro m() %}x{% endmacro %}{% set ns = namespace(m=m) %}{% set l = [m, ns] %}{{ l[0]() }}"),
            "x");
  EXPECT_EQ(render("{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{% set k = [m, loop] %}"
                   "{{ k | length }}{{ m() }}{% endfor %}"),
            "2122");
}

TEST(ChatTemplateTest, ThreadsShareATemplate) {
  const auto parsed = ChatTemplate::parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{{ m | tojson }}"
      "{% endfor %}{{ ns.n }}",
      "t");
  ordered_json messages = ordered_json::array();
  for (int i = 0; i < 50; ++i) {
    messages.push_back({{"role", "user"}, {"content", std::string(static_cast<size_t>(i), 'x')}});
  }
  const std::string expected = parsed.render(messages);
  std::vector<std::string> found(4);
  std::vector<std::thread> threads;
  for (std::string& text : found) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        text = parsed.render(messages);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(found, testing::Each(expected));
}

} // namespace
} // namespace trireme::chat
