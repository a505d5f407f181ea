#pragma once

#include <signal.h>

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace trireme::data {

/// While it lives, the first of these signals only asks to end, so that the process can remove what is half made. A
/// second one of the kind ends the process at once. What was ignored, as under nohup, still is. One at a time in a
/// process; the destructor restores the earlier handlers.
class EndingSignals {
 public:
  explicit EndingSignals(std::initializer_list<int> numbers);
  ~EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  /// The last signal that came while there was one, or 0.
  static int asked();

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

} // namespace trireme::data
