#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::train {

/// JoinedJob::launcher of its tasks.
inline constexpr const char* kTfConfig = "TF_CONFIG";

/// A job and this process's task in it, as in TensorFlow's TF_CONFIG.
struct TfConfig {
  enum class Task { worker, server, evaluator };
  Task task = Task::worker;
  int index = 0; ///< among the workers, the chief first, or among the servers ("ps")
  /// "host:port" each; the chief is the first worker.
  std::vector<std::string> workers;
  std::vector<std::string> servers;
};

/// Reads TF_CONFIG; nothing if it is not set, or names no cluster. Errors: InputError for malformed text, or a task
/// that the cluster lacks.
std::optional<TfConfig> tf_config();

/// Sets the variables of trireme's launcher for a task of a job with parameter servers over `transport` ("tcp"):
/// TRIREME_SERVERS, TRIREME_WORKER or TRIREME_SERVER. Removes TF_CONFIG.
void become_task(const TfConfig& config, const std::string& transport);
/// The same for the evaluator of a run with this many data ranks or workers (TRIREME_EVALUATOR).
void become_evaluator(int64_t data_ranks);

} // namespace trireme::train
