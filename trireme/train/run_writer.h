#pragma once

#include <trireme/train/run_log.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/run_token.h>
#include <trireme/launch/exit_codes.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trireme::train {

/// The training is done, but what it leaves behind could not be written.
class NotSavedError : public Error {
 public:
  /// `what`: "the last checkpoint could not be saved". `is_worker`: one of several worlds, each of which ends
  /// separately.
  NotSavedError(const std::string& what, const std::string& why, const std::string& next, bool is_worker)
      : Error("train", concat("training is done but ", what, ": ", why), next), is_worker_(is_worker) {}
  int exit_code() const noexcept override { return is_worker_ ? launch::kNotSaved : 1; }

 private:
  bool is_worker_;
};

/// A process's role in writing the run folder: none, or the writer, once it has claimed the folder
/// (base/run_token.h).
///
/// In a world of ranks rank 0 writes from start to end. Of workers and replicas, each a separate world, the
/// first one writes. Another one may take over before this one knows that it is not first any more: then it
/// stops writing, and the training continues. Errors: ReplacedError once another training has claimed the
/// folder.
class RunWriter {
 public:
  /// `worker`: the number of this worker or replica.
  RunWriter(const std::filesystem::path& folder, std::optional<int64_t> worker)
      : folder_(folder),
        worker_(worker),
        token_(std::make_shared<RunToken>(RunToken::of_environment(folder / "logs"))) {}

  const std::shared_ptr<RunToken>& token() const { return token_; }
  bool writes() const { return log_.has_value(); }
  /// Another worker has taken over, and this one has not seen itself second since.
  bool handed_over() const { return handed_over_; }
  /// `is_sure`: if this one is still, or again, first, the other one is lost, and begin() may follow.
  void note_first(bool is_first, bool is_sure) { handed_over_ = handed_over_ && is_first && !is_sure; }
  /// Makes this process the writer. A worker claims the folder.
  void begin(const config::RunConfig& run, const Task& task, engine::Engine& engine, const data::Datasets& datasets,
             std::optional<int64_t> resumed_step) {
    write([&] {
      if (worker_) {
        token_->claim();
      }
      log_.emplace(folder_, run, task, engine, datasets, resumed_step, *token_);
    });
  }
  void stop() { log_.reset(); }

  /// Runs an action that writes, a save for instance.
  template <typename Action>
  void write(const Action& action) {
    try {
      action();
    } catch (const ReplacedError& error) {
      if (!worker_ || !error.by_own_job()) {
        throw;
      }
      handed_over_ = true;
      log_.reset();
      log::info("worker ", *worker_, " leaves reports and checkpoints to another one, which has taken over");
    }
  }
  /// Calls the action with the log, if this process has one.
  template <typename Action>
  void with_log(const Action& action) {
    if (log_) {
      write([&] { action(*log_); });
    }
  }
  void status(const char* text) {
    if (log_) {
      log_->status(text);
    }
  }

 private:
  std::filesystem::path folder_;
  std::optional<int64_t> worker_;
  std::shared_ptr<RunToken> token_;
  std::optional<RunLog> log_;
  bool handed_over_ = false;
};

} // namespace trireme::train
