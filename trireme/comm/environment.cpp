#include <trireme/comm/environment.h>

#include <trireme/base/error.h>
#include <trireme/base/slurm.h>
#include <trireme/base/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

namespace trireme::comm {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kMostRanks = 1'000'000;

/// Typed reading with errors that name the variable.
class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }
  bool has(const std::string& name) const { return lookup_(name).has_value(); }
  std::optional<int> integer(const std::string& name) const {
    const auto text = lookup_(name);
    if (!text) {
      return std::nullopt;
    }
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) {
      throw InputError("comm",
                       concat("the environment variable ", name, " must be a whole number, it is \"", *text, "\"."),
                       concat("Correct it, or unset it to run one rank."));
    }
    return value;
  }
  int require(const std::string& name, const std::string& because) const {
    const auto value = integer(name);
    if (!value) {
      throw InputError(
          "comm", concat("the environment variable ", name, " is not set, but ", because, " is."),
          concat("Set both, or none of them for one rank; trireme launch and torchrun set all that is needed."));
    }
    return *value;
  }

 private:
  const Lookup& lookup_;
};

/// The variables in which one family of launchers gives rank and size.
struct Family {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Family kMpiFamilies[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MPI (PMIx)", "PMIX_RANK", "PMIX_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

void read_address(const Variables& variables, const std::string& host_name, const std::string& port_name,
                  Environment& environment) {
  if (const auto host = variables.text(host_name)) {
    environment.host = *host;
    environment.port = variables.integer(port_name).value_or(kDefaultPort);
    environment.meeting_file.clear();
    if (environment.port < 1 || environment.port > 65535) {
      throw InputError("comm", concat(port_name, " must be a port between 1 and 65535, it is ", environment.port, "."),
                       "Choose one above 1024, such as 29500.");
    }
  }
}

/// True if `trireme launch` started the launcher that started this process: the variables of its store are not for
/// these ranks.
bool of_inner_launcher(const Variables& variables) {
  const auto run = variables.text("TORCHELASTIC_RUN_ID");
  const auto of_trireme = variables.text("TRIREME_RUN_ID");
  return run && of_trireme && *run != *of_trireme;
}

void read_plain(const Variables& variables, Environment& environment) {
  environment.source = variables.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "RANK and WORLD_SIZE";
  environment.rank = variables.require("RANK", "WORLD_SIZE");
  environment.size = variables.require("WORLD_SIZE", "RANK");
  environment.local_rank = variables.integer("LOCAL_RANK").value_or(-1);
  environment.local_size = variables.integer("LOCAL_WORLD_SIZE").value_or(-1);
  environment.listen_fd =
      environment.rank == 0 && !of_inner_launcher(variables) ? variables.integer("TRIREME_LISTEN_FD") : std::nullopt;
  environment.store_of_agent = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const auto run = variables.text("TORCHELASTIC_RUN_ID");
  const auto restart = variables.text("TORCHELASTIC_RESTART_COUNT");
  environment.job = variables.text("TRIREME_RUN_ID").value_or(run.value_or(""));
  if (run || restart) {
    environment.key_prefix = concat(run.value_or("none"), ".", restart.value_or("0"), "/");
  }
}

void read_mpi(const Variables& variables, const Family& family, Environment& environment) {
  environment.source = family.source;
  environment.rank = variables.require(family.rank, family.size);
  environment.size = variables.require(family.size, family.rank);
  environment.local_rank = variables.integer(family.local_rank).value_or(-1);
  environment.local_size = variables.integer(family.local_size).value_or(-1);
  environment.job = variables.text("PMIX_NAMESPACE").value_or("");
  // mpirun gives no address. On one host a file suffices: in the session's own folder if there is one.
  for (const char* folder : {"PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir"}) {
    const auto path = variables.text(folder);
    if (path && environment.meeting_file.empty()) {
      environment.meeting_file = *path + "/trireme-meeting";
    }
  }
  const auto job = variables.text("PMIX_NAMESPACE");
  if (environment.meeting_file.empty()) {
    // Resolved by the rendezvous: a private folder under the temporary one, named after the common parent.
    environment.meeting_file = "parent";
  } else if (job) {
    // One mpirun may start several programs in sequence in one session.
    std::string name = *job;
    for (char& letter : name) {
      letter = std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
    }
    environment.meeting_file += "-" + name;
  }
}

void read_slurm(const Variables& variables, Environment& environment) {
  environment.source = "Slurm";
  environment.rank = variables.require("SLURM_PROCID", "SLURM_NTASKS");
  environment.size = variables.require("SLURM_NTASKS", "SLURM_PROCID");
  environment.local_rank = variables.integer("SLURM_LOCALID").value_or(-1);
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto nodes = variables.text(name);
    if (nodes && environment.host.empty()) {
      const auto hosts = expand_host_list(*nodes);
      environment.host = hosts.front();
      if (hosts.size() == 1) {
        environment.local_size = environment.size;
        environment.host = "127.0.0.1";
      }
    }
  }
  if (const auto job = variables.text("SLURM_JOB_ID")) {
    environment.job = concat("Slurm ", *job, ".", variables.text("SLURM_STEP_ID").value_or("0"));
  }
  environment.port = 15000 + variables.integer("SLURM_JOB_ID").value_or(14500) % 10000;
}

void read_pet(const Variables& variables, Environment& environment) {
  environment.source = "Kubeflow (PET_*)";
  const std::string nodes = variables.text("PET_NNODES").value_or("1");
  const auto bounds = split(nodes, ':');
  if (bounds.size() > 2 || bounds.front() != bounds.back()) {
    throw InputError("comm", concat("PET_NNODES is the range \"", nodes, "\"; without torchrun it must be one number."),
                     "Start it with torchrun --no-python, or set PET_NNODES to a number.");
  }
  const auto ranks_a_node = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (ranks_a_node != "1" && ranks_a_node != "auto" && ranks_a_node != "cpu" && ranks_a_node != "gpu") {
    throw InputError(
        "comm",
        concat("PET_NPROC_PER_NODE=", ranks_a_node, " requests several ranks per node, but this process is one."),
        "Start the program with: torchrun --no-python PROGRAM   (it reads the PET_ variables and starts the ranks)");
  }
  Lookup first_bound = [&](const std::string& name) {
    return name == "PET_NNODES" ? std::optional(bounds.front()) : variables.text(name);
  };
  environment.size = Variables(first_bound).integer("PET_NNODES").value_or(1);
  environment.rank = variables.integer("PET_NODE_RANK").value_or(0);
  environment.local_rank = 0;
  environment.local_size = 1;
  if (environment.size > 1 && !variables.has("PET_NODE_RANK")) {
    variables.require("PET_NODE_RANK", "PET_NNODES=" + nodes);
  }
  read_address(variables, "PET_MASTER_ADDR", "PET_MASTER_PORT", environment);
}

[[noreturn]] void refuse_tf_config(const std::string& happened) {
  throw InputError(
      "comm", "TF_CONFIG " + happened,
      R"(It should look like {"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}.)");
}

void read_tf_config(const std::string& text, Environment& environment) {
  environment.source = "TF_CONFIG";
  std::vector<std::string> tasks;
  std::optional<int> rank;
  try {
    const auto config = nlohmann::json::parse(text);
    if (!config.contains("cluster")) {
      return;
    }
    const std::string my_type = config.at("task").at("type");
    const int my_index = config.at("task").at("index").is_string()
                             ? std::stoi(config.at("task").at("index").get<std::string>())
                             : config.at("task").at("index").get<int>();
    for (const char* type : {"chief", "master", "worker"}) {
      const auto members = config.at("cluster").find(type);
      if (members == config.at("cluster").end()) {
        continue;
      }
      if (my_type == type && my_index >= 0 && my_index < static_cast<int>(members->size())) {
        rank = static_cast<int>(tasks.size()) + my_index;
      }
      for (const auto& member : *members) {
        tasks.push_back(member);
      }
    }
    if (!rank) {
      refuse_tf_config(concat("has task ", my_index, " of \"", my_type,
                              "\" for this process, which is not among chief and worker."));
    }
  } catch (const std::exception& error) {
    if (dynamic_cast<const InputError*>(&error) != nullptr) {
      throw;
    }
    refuse_tf_config(concat("cannot be parsed (", error.what(), ")."));
  }
  const size_t colon = tasks.front().rfind(':');
  if (colon == std::string::npos) {
    refuse_tf_config(concat("gives no port for \"", tasks.front(), "\"."));
  }
  environment.rank = *rank;
  environment.size = static_cast<int>(tasks.size());
  environment.host = tasks.front().substr(0, colon);
  const std::string port = tasks.front().substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), environment.port);
  if (error != std::errc() || end != port.data() + port.size() || environment.port < 1 || environment.port > 65535) {
    refuse_tf_config(concat("gives the port \"", port, "\"."));
  }
}

void check(const Environment& environment, const Variables& variables) {
  const auto& source = environment.source;
  if (environment.size < 1 || environment.size > kMostRanks) {
    throw InputError("comm", concat("the world size must be at least 1, got ", environment.size, " (", source, ")."),
                     "Correct it.");
  }
  if (environment.rank < 0 || environment.rank >= environment.size) {
    throw InputError("comm",
                     concat("rank ", environment.rank, " is outside a world of ", environment.size, " (", source, ")."),
                     concat("Ranks run from 0 to ", environment.size - 1, ": correct the rank or the world size."));
  }
  const bool local_wrong = environment.local_size > environment.size || environment.local_size == 0 ||
                           (environment.local_size > 0 && environment.local_rank >= environment.local_size);
  if (local_wrong) {
    throw InputError("comm",
                     concat("local rank ", environment.local_rank, " of ", environment.local_size,
                            " does not fit a world of ", environment.size, " (", source, ")."),
                     "LOCAL_RANK must be below LOCAL_WORLD_SIZE, and that not above WORLD_SIZE.");
  }
  if (environment.size == 1) {
    return;
  }
  const bool one_host = environment.local_size == environment.size;
  if (environment.host.empty() && (environment.meeting_file.empty() || !one_host)) {
    if (!environment.meeting_file.empty() && environment.local_size < 0) {
      return; // the file works if all ranks share a host; no variable contradicts that
    }
    throw InputError(
        "comm",
        concat("MASTER_ADDR is not set, so ", environment.size, " ranks (", source, ") do not know where to connect."),
        variables.has("OMPI_COMM_WORLD_SIZE") ? "Type: mpirun -x MASTER_ADDR=HOST_OF_RANK_0 -x MASTER_PORT=29500 ..."
                                              : "Set MASTER_ADDR to the host of rank 0 (127.0.0.1 for one host) and "
                                                "MASTER_PORT to a free port, such as 29500.");
  }
}

} // namespace

Environment read_environment(const Lookup& lookup, const std::function<bool(int task)>& run_as_task) {
  const Variables variables(lookup);
  const SlurmPlace slurm = slurm_place(lookup, run_as_task ? run_as_task : runs_as_task);
  Environment environment;
  const Family* mpi = nullptr;
  for (const auto& family : kMpiFamilies) {
    // srun sets PMI_* too, but only Slurm's variables then give the address, or show that this is no task; Hydra sets
    // the local ones.
    const bool of_srun = std::string_view(family.rank).starts_with("PMI") && slurm != SlurmPlace::none &&
                         !variables.has(family.local_size);
    if (mpi == nullptr && variables.has(family.rank) && variables.has(family.size) && !of_srun) {
      mpi = &family;
    }
  }
  const bool both = variables.has("RANK") && variables.has("WORLD_SIZE");
  const bool one = variables.has("RANK") || variables.has("WORLD_SIZE");
  if (both) {
    read_plain(variables, environment);
  } else if (mpi != nullptr) {
    read_mpi(variables, *mpi, environment);
  } else if (slurm == SlurmPlace::task) {
    read_slurm(variables, environment);
  } else if (one) {
    read_plain(variables, environment); // reports the missing one
  } else if (variables.has("PET_NNODES") || variables.has("PET_NODE_RANK")) {
    read_pet(variables, environment);
  } else if (const auto config = variables.text("TF_CONFIG")) {
    read_tf_config(*config, environment);
  }
  read_address(variables, "MASTER_ADDR", "MASTER_PORT", environment);
  if (both && !environment.store_of_agent && !of_inner_launcher(variables)) {
    read_address(variables, "TRIREME_STORE_ADDR", "TRIREME_STORE_PORT", environment);
  }
  check(environment, variables);
  if (slurm == SlurmPlace::shell && environment.source.empty() && variables.text("SLURM_NTASKS") != "1") {
    environment.note = concat(
        "this program is one rank alone: it was typed in a shell, which is task 0 of ", *variables.text("SLURM_NTASKS"),
        " (SLURM_NTASKS) of a step of Slurm. Start ranks with srun; with RANK and WORLD_SIZE set it is one of them.");
  }
  if (environment.size == 1) {
    environment.local_rank = std::max(environment.local_rank, 0);
    environment.local_size = 1;
  }
  return environment;
}

} // namespace trireme::comm
