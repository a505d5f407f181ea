#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trireme::monitor {

/// Capabilities of the terminal that shows stderr.
struct Terminal {
  bool live = false;                                ///< lines may be redrawn in place
  bool colour = false;                              ///< colour escape codes are allowed
  bool unicode = false;                             ///< shows UTF-8
  std::function<int()> columns = [] { return 80; }; ///< asked at each redraw: windows change size
};

/// Decides from the environment; a pure function, for tests.
///
/// `window_columns` is the width of stderr's terminal, nullopt if it is not one. TRIREME_TTY=columns describes the
/// terminal behind the launcher (0: none). TERM=dumb and CI select plain lines, NO_COLOR no colour; a UTF-8 locale
/// allows line drawing.
/// Errors: InputError when TRIREME_TTY is not a number.
Terminal describe_terminal(const std::function<std::optional<std::string>(const char*)>& variable,
                           std::optional<int> window_columns);

/// Describes this process's stderr.
Terminal stderr_terminal();

} // namespace trireme::monitor
