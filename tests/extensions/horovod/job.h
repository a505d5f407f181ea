#pragma once

#include <trireme/extensions/horovod/horovod.h>

namespace trireme::horovod {

/// init() and shutdown() around a test's body.
class Job {
 public:
  explicit Job(comm::World& world) { init(world); }
  ~Job() { shutdown(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
};

} // namespace trireme::horovod
