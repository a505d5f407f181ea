#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

namespace trireme::comm {

/// Keeps strangers from gloo's listening socket while no group is being connected.
///
/// gloo accepts any connection and keeps unknown ones until the process ends; it needs
/// no new connections once its groups are connected. So outside of Opening's life a packet filter on the socket
/// drops what comes to it; connections that are there already are not touched. Needs no rights. Where the
/// system refuses the filter, the door stays open.
class GlooDoor {
 public:
  /// Call before gloo makes its socket, find() after it.
  GlooDoor();
  void find();

  /// While one lives, gloo's socket can be reached.
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

/// Has the kernel end the connections that are made while it lives once the other host is silent
/// (store::end_when_silent()): gloo sets no such thing, so a link that is cut would show only at an operation's
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
