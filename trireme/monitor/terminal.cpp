#include <trireme/monitor/terminal.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

namespace trireme::monitor {
namespace {

constexpr int kUnknownWidth = 80;

int window_width() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUnknownWidth;
}

int whole_number(const std::string& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw InputError("progress", concat("TRIREME_TTY must be a number of columns, got \"", text, "\""),
                     "Unset it; the launcher sets it.");
  }
  return value;
}

} // namespace

Terminal describe_terminal(const std::function<std::optional<std::string>(const char*)>& variable,
                           std::optional<int> window_columns) {
  const auto word = [&](const char* name) { return lower(variable(name).value_or("")); };
  int columns = window_columns.value_or(0);
  if (const auto far_end = variable("TRIREME_TTY"); far_end && !window_columns) {
    columns = whole_number(*far_end);
  }
  const std::string ci = word("CI");
  const bool in_ci = !ci.empty() && ci != "false" && ci != "0";

  Terminal terminal;
  terminal.live = columns > 0 && word("TERM") != "dumb" && !in_ci;
  terminal.colour = terminal.live && word("NO_COLOR").empty();
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const std::string locale = word(name); !locale.empty()) {
      terminal.unicode = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
      break;
    }
  }
  if (columns > 0) {
    terminal.columns = [columns] { return columns; };
  }
  return terminal;
}

Terminal stderr_terminal() {
  if (::isatty(STDERR_FILENO) == 1) {
    Terminal terminal = describe_terminal(env::text, window_width());
    terminal.columns = window_width;
    return terminal;
  }
  struct stat kind{};
  if (::fstat(STDERR_FILENO, &kind) == 0 && S_ISREG(kind.st_mode)) {
    // A file, even under the launcher: TRIREME_TTY describes the launcher's pipe only.
    return describe_terminal([](const char*) { return std::nullopt; }, std::nullopt);
  }
  return describe_terminal(env::text, std::nullopt);
}

} // namespace trireme::monitor
