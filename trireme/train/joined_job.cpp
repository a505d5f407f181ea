#include <trireme/train/joined_job.h>

#include <trireme/train/tf_config.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/slurm.h>

#include <charconv>

namespace trireme::train {
namespace {

int64_t number(const char* name) {
  const std::string text = env::text(name).value_or("");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError("trireme",
                     concat("the environment variable ", name, " must be a whole number, got \"", text, "\""),
                     "Correct it, or unset it.");
  }
  return value;
}

struct Names {
  const char* launcher;
  const char* ranks;
  const char* rank;
};

// In the order of comm/environment.h, which describes each.
constexpr Names kLaunchers[] = {{"torchrun or another launcher", "WORLD_SIZE", "RANK"},
                                {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                {"mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                {"mpirun", "PMI_SIZE", "PMI_RANK"},
                                {"srun", "SLURM_NTASKS", "SLURM_PROCID"},
                                {"Kubeflow", "PET_NNODES", "PET_NODE_RANK"}};

} // namespace

std::optional<JoinedJob> joined_job() {
  const SlurmPlace slurm = slurm_place();
  for (const Names& names : kLaunchers) {
    if (!env::text(names.ranks) || !env::text(names.rank)) {
      continue;
    }
    if (std::string(names.launcher) == "srun" && slurm != SlurmPlace::task) {
      continue; // in batch scripts and interactive shells these are the allocation's
    }
    if (std::string(names.ranks) == "PMI_SIZE" && slurm == SlurmPlace::shell && !env::text("MPI_LOCALNRANKS")) {
      continue; // set by srun, too, for the shell
    }
    if (std::string(names.launcher) == "Kubeflow" && env::text(names.ranks)->find(':') != std::string::npos) {
      throw InputError(
          "trireme",
          concat("PET_NNODES=", *env::text(names.ranks), " allows the number of hosts to change, which needs torchrun"),
          "Type: torchrun --no-python trireme train RUN.json --resume   or give one number.");
    }
    const JoinedJob job{names.launcher, number(names.ranks), number(names.rank)};
    return job.ranks > 1 ? std::optional(job) : std::nullopt;
  }
  if (const auto config = tf_config()) {
    const bool serves = config->task == TfConfig::Task::server; // servers write nothing of the run
    return JoinedJob{kTfConfig, std::ssize(config->workers), serves ? std::ssize(config->workers) : config->index};
  }
  return std::nullopt;
}

void check_joined(const TrainCommand& command, const JoinedJob& job) {
  if (command.ranks > 0 && command.ranks != job.ranks) {
    throw InputError("trireme",
                     concat("-n asks for ", command.ranks, command.ranks == 1 ? " rank" : " ranks", ", but ",
                            job.launcher, " has started ", job.ranks),
                     concat("Remove -n under ", job.launcher, ", or start the command once, without it."));
  }
  const PlacesCommand& places = command.places;
  const char* const refused = !places.hostfile.empty()              ? "--hostfile"
                              : places.min_nodes > 0                ? "--min-nodes"
                              : places.max_nodes > 0                ? "--max-nodes"
                              : places.max_restarts.value_or(0) > 0 ? "--max-restarts"
                                                                    : nullptr;
  if (refused != nullptr) {
    throw InputError("trireme",
                     concat(refused, " is for ranks that trireme starts, but ", job.launcher, " has started ",
                            job.ranks, " of them"),
                     concat("Give it to ", job.launcher,
                            " in its own words (docs/launching.md), or start the command once, without it."));
  }
}

} // namespace trireme::train
