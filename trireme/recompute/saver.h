#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace trireme::recompute {

/// Takes over what autograd keeps from forward to backward, on the thread where a SavingScope names it.
class Saver {
 public:
  virtual ~Saver() = default;
  /// Makes the hooks of one saved tensor: call_pack_hook() gets it at once, call_unpack_hook() gives it back in
  /// backward, on whichever thread runs it. They may outlive the Saver. While they exist autograd does not look for
  /// changes in place: that is theirs to do.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> save() = 0;
};

/// Lets autograd ask `saver` for every tensor it saves on this thread while the scope lives; nullptr: it keeps them as
/// ever. Scopes nest.
///
/// libtorch has default hooks for Python only; here its engine is replaced, at the first scope with a saver, by one
/// that asks the thread's Saver. Saving without one costs a look at a variable of the thread. Errors: Error where the
/// process has an engine other than libtorch's own (Python's).
class SavingScope {
 public:
  explicit SavingScope(Saver* saver);
  ~SavingScope();
  SavingScope(const SavingScope&) = delete;
  SavingScope& operator=(const SavingScope&) = delete;

 private:
  Saver* before_;
};

} // namespace trireme::recompute
