#pragma once

#include <trireme/comm/progress.h>

#include <map>
#include <string>
#include <vector>

namespace trireme::comm {

/// Verdict on an operation that has waited long, from the answers of a roll call.
struct Outlook {
  enum class Kind {
    open,     ///< undecided: the operation is over, or another rank's wait is still short
    late,     ///< blocked by ranks that live and do not wait themselves
    hopeless, ///< no rank will complete it
  };
  Kind kind = Kind::open;
  /// The ranks that block it, for kind `late`.
  std::vector<int> late = {};
};

/// Judges the operation that rank `from` waits for in group `key`. A wait counts when it has lasted `seconds`: a
/// shorter one may be over by now.
///
/// hopeless: it waits, directly or through others, for a rank that does not answer, has ended or has failed. Or it
/// waits for a rank in an operation that all have joined, for as long as all others in it. Or ranks wait for each
/// other. Pure.
Outlook judge(const std::map<int, PeerView>& ranks, int from, const std::string& key, double seconds);

} // namespace trireme::comm
