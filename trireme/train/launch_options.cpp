#include <trireme/train/launch_options.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/train/program.h>

namespace trireme::train {

namespace fs = std::filesystem;

launch::LaunchOptions launch_options(const PlacesCommand& command) {
  launch::LaunchOptions options;
  if (!command.hostfile.empty()) {
    options.hosts = launch::read_hostfile(command.hostfile);
  } else if (command.min_nodes > 0 || command.max_nodes > 0 || !command.rsh.empty()) {
    throw InputError("trireme", "--rsh, --min-nodes and --max-nodes need several hosts",
                     "Name them in a file and give it with --hostfile.");
  }
  for (const std::string& word : split(command.rsh, ' ')) {
    if (!word.empty()) {
      options.rsh.push_back(word);
    }
  }
  for (const std::string& entry : command.environment) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw InputError("trireme", concat("--env ", entry, " is not NAME=VALUE"));
    }
    options.extra_env.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  options.agent = fs::read_symlink("/proc/self/exe");
  options.min_nodes = static_cast<int>(command.min_nodes);
  options.max_nodes = static_cast<int>(command.max_nodes);
  options.heartbeat_timeout = command.heartbeat_timeout;
  options.max_restarts = static_cast<int>(command.max_restarts.value_or(0));
  options.grace_seconds = command.grace;
  return options;
}

fs::path rank_program() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "trireme-rank";
  if (!fs::exists(program)) {
    throw Error("trireme", concat(program.string(), " is missing"),
                "It must be in the same folder as trireme; build or install both.");
  }
  return program;
}

std::vector<std::string> rank_words(const Program& program) {
  return program.rank.empty() ? std::vector<std::string>{rank_program().string()} : program.rank;
}

} // namespace trireme::train
