#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trireme::monitor {

/// Says what the place that shows stderr can do.
struct Terminal {
  bool live = false;                                ///< lines may be redrawn in place
  bool colour = false;                              ///< escape codes for colour are welcome
  bool unicode = false;                             ///< shows UTF-8
  std::function<int()> columns = [] { return 80; }; ///< asked at each redraw: windows change size
};

/// Decides from the environment; a pure function, for tests.
///
/// `window_columns` is the width of the terminal that stderr is, nullopt when it is none.
/// TRIREME_TTY=columns stands for a terminal behind the launcher (0: no terminal there).
/// TERM=dumb and CI ask for plain lines, NO_COLOR for no colour; a UTF-8 locale allows line drawing.
/// Errors: InputError when TRIREME_TTY is not a number.
Terminal describe_terminal(const std::function<std::optional<std::string>(const char*)>& variable,
                           std::optional<int> window_columns);

/// Describes this process's stderr.
Terminal stderr_terminal();

} // namespace trireme::monitor
