#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tools {

/// JoinedJob::launcher of its tasks.
inline constexpr const char* kTfConfig = "TF_CONFIG";

/// What TensorFlow's TF_CONFIG says of a job and of this process.
struct TfConfig {
  enum class Task { worker, server, evaluator };
  Task task = Task::worker;
  int index = 0; ///< among the workers, the chief first, or among the servers ("ps")
  /// "host:port" of each; the chief is the first worker.
  std::vector<std::string> workers;
  std::vector<std::string> servers;
};

/// Reads TF_CONFIG; nothing where it is not set, or names no cluster. Errors: InputError for text that is none, or a
/// task that the cluster lacks.
std::optional<TfConfig> tf_config();

/// Gives a task of a job with parameter servers, which speak `transport` ("tcp"), the variables that trireme's launcher
/// would set (TRIREME_SERVERS, TRIREME_WORKER or TRIREME_SERVER), and removes TF_CONFIG.
void become_task(const TfConfig& config, const std::string& transport);
/// The same for the task that evaluates checkpoints of a run with so many data ranks or workers (TRIREME_EVALUATOR).
void become_evaluator(int64_t data_ranks);

} // namespace trireme::tools
