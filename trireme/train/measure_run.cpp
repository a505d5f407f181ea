#include <trireme/train/measure_run.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/launch/signals.h>
#include <trireme/monitor/metrics.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOutput = 4000;

// Runs `words` with its output in a file and returns its exit status. Passes signals on to it; it ends with this
// process.
int run_quietly(std::vector<std::string> words, const fs::path& output) {
  std::vector<char*> arguments;
  for (auto& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  launch::SignalWatch signals;
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error("estimate", concat("cannot start the run to measure: ", std::strerror(errno)));
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::sigaction(SIGPIPE, &signals.broken_pipe_before(), nullptr);
    ::sigprocmask(SIG_SETMASK, &signals.mask_before(), nullptr);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ::dup2(file, STDOUT_FILENO) < 0 || ::dup2(file, STDERR_FILENO) < 0) {
      ::_exit(127);
    }
    ::execv(arguments.front(), arguments.data());
    ::_exit(127);
  }
  int status = 0;
  int received_signal = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    pollfd signal{signals.fd(), POLLIN, 0};
    ::poll(&signal, 1, 20);
    while (const auto came = signals.next()) {
      received_signal = *came;
      ::kill(child, received_signal);
    }
  }
  if (received_signal != 0) {
    throw ExitNow{128 + received_signal};
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

MeasuredRun measure_run(const EstimateCommand& command, int64_t ranks, int64_t round) {
  const ScratchFolder scratch(make_scratch_folder("trireme-estimate"));
  const fs::path out = scratch.path / "run";
  std::vector<std::string> words = {fs::read_symlink("/proc/self/exe").string(),
                                    "train",
                                    command.run_file.string(),
                                    "-n",
                                    std::to_string(ranks),
                                    "--out",
                                    out.string()};
  std::vector<std::string> overrides = command.overrides;
  overrides.insert(overrides.end(), {concat("training.steps=", command.measured_steps), "training.checkpoint_every=0",
                                     "training.eval_every=0", "training.eval_batches=1", "training.sample=null"});
  for (const std::string& override : overrides) {
    words.insert(words.end(), {"--set", override});
  }
  if (const int status = run_quietly(words, scratch.path / "output"); status != 0) {
    std::string output = read_file(scratch.path / "output");
    output = output.size() > kMostOutput ? output.substr(output.size() - kMostOutput) : output;
    const std::string happened = concat("the run to measure ended with exit status ", status, ":\n", output);
    if (status == 2) {
      throw InputError("estimate", happened);
    }
    throw Error("estimate", happened);
  }
  MeasuredRun measured;
  std::vector<double> times;
  std::vector<int64_t> sent;
  for (const monitor::StepMetrics& step : monitor::read_metrics(out / "metrics.jsonl")) {
    measured.steps = step.step;
    measured.peak_rss_bytes = std::max(measured.peak_rss_bytes, step.peak_rss_bytes.value_or(0));
    if (step.device_peak_bytes) {
      measured.device_peak_bytes = std::max(measured.device_peak_bytes.value_or(0), *step.device_peak_bytes);
    }
    if (step.step == 1) { // a pipeline announces shapes, and caches are cold
      continue;
    }
    sent.push_back(step.comm_bytes.value_or(0));
    times.push_back(step.step_ms.value_or(0));
  }
  for (int64_t begin = 0; begin + round <= std::ssize(sent); ++begin) { // some steps also exchange step times
    const int64_t mean = std::accumulate(sent.begin() + begin, sent.begin() + begin + round, int64_t{0}) / round;
    measured.comm_bytes = std::min(measured.comm_bytes.value_or(mean), mean);
  }
  if (!times.empty()) {
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    measured.step_ms = times[times.size() / 2];
  }
  return measured;
}

} // namespace trireme::train
