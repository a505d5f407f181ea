#include <trireme/monitor/terminal.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>

#include <map>

namespace trireme::monitor {
namespace {

Terminal describe(const std::map<std::string, std::string>& environment, std::optional<int> window_columns) {
  return describe_terminal(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? std::nullopt : std::optional<std::string>(found->second);
      },
      window_columns);
}

TEST(TerminalTest, AWindowIsLive) {
  const Terminal terminal = describe({{"TERM", "xterm-256color"}, {"LANG", "en_GB.UTF-8"}}, 132);
  EXPECT_TRUE(terminal.live);
  EXPECT_TRUE(terminal.colour);
  EXPECT_TRUE(terminal.unicode);
  EXPECT_EQ(terminal.columns(), 132);
}

TEST(TerminalTest, APipeIsPlain) {
  const Terminal terminal = describe({{"TERM", "xterm"}}, std::nullopt);
  EXPECT_FALSE(terminal.live);
  EXPECT_FALSE(terminal.colour);
}

TEST(TerminalTest, TheLauncherSpeaksForTheTerminalBehindIt) {
  const Terminal terminal = describe({{"TERM", "xterm"}, {"TRIREME_TTY", "97"}}, std::nullopt);
  EXPECT_TRUE(terminal.live);
  EXPECT_EQ(terminal.columns(), 97);
  EXPECT_FALSE(describe({{"TRIREME_TTY", "0"}}, std::nullopt).live);
  EXPECT_EQ(describe({{"TRIREME_TTY", "97"}}, 50).columns(), 50);
}

TEST(TerminalTest, HonoursNoColorCiAndDumb) {
  EXPECT_TRUE(describe({{"NO_COLOR", "1"}}, 80).live);
  EXPECT_FALSE(describe({{"NO_COLOR", "1"}}, 80).colour);
  EXPECT_FALSE(describe({{"CI", "true"}}, 80).live);
  EXPECT_TRUE(describe({{"CI", "false"}}, 80).live);
  EXPECT_FALSE(describe({{"TERM", "dumb"}}, 80).live);
  EXPECT_FALSE(describe({{"TERM", "dumb"}, {"TRIREME_TTY", "80"}}, std::nullopt).live);
}

TEST(TerminalTest, TheFirstLocaleVariableDecides) {
  EXPECT_FALSE(describe({{"LC_ALL", "C"}, {"LANG", "en_US.UTF-8"}}, 80).unicode);
  EXPECT_TRUE(describe({{"LC_CTYPE", "C.utf8"}}, 80).unicode);
  EXPECT_FALSE(describe({}, 80).unicode);
}

TEST(TerminalTest, RefusesAWidthThatIsNoNumber) {
  for (const char* text : {"wide", "80x", "-3", "99999999999"}) {
    EXPECT_THROW(describe({{"TRIREME_TTY", text}}, std::nullopt), InputError) << text;
  }
}

} // namespace
} // namespace trireme::monitor
