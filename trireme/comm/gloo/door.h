#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

namespace trireme::comm {

/// Blocks strangers from gloo's listening socket while no group connects.
///
/// gloo accepts any connection and keeps unknown ones until the process ends; it needs no new connections once its
/// groups are connected. So while no Opening exists, a packet filter on the socket drops incoming packets;
/// existing connections are not affected. Needs no privileges. If the system refuses the filter, the socket stays
/// reachable.
class GlooDoor {
 public:
  /// Construct it before gloo creates its socket; call find() afterwards.
  GlooDoor();
  void find();

  /// While one exists, gloo's socket is reachable.
  class Opening {
   public:
    Opening();
    ~Opening();
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
  };

 private:
  std::vector<int> before_;
};

/// Makes the kernel end connections made during its lifetime once the other host is silent
/// (store::end_when_silent()). gloo does not set this, so a cut link would show only at an operation's
/// time-out.
class ProbedConnections {
 public:
  ProbedConnections();
  ~ProbedConnections();
  ProbedConnections(const ProbedConnections&) = delete;
  ProbedConnections& operator=(const ProbedConnections&) = delete;

 private:
  std::set<ino_t> before_;
};

} // namespace trireme::comm
