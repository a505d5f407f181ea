#include <trireme/comm/backends.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/gloo/gloo_backend.h>
#include <trireme/comm/hierarchy/hierarchical_backend.h>
#include <trireme/comm/mpi/mpi_backend.h>
#include <trireme/comm/nccl/nccl_backend.h>
#include <trireme/comm/null/null_backend.h>
#include <trireme/comm/shm/shm_backend.h>
#include <trireme/comm/staged/staged_backend.h>

#include <map>
#include <utility>

namespace trireme::comm {
namespace {

constexpr const char* kSharedMemoryNeeds =
    "It needs memfd_create, /proc, and no limit on files or address space (ulimit -f, -v) below this machine's memory.";

bool always() {
  return true;
}

bool any_group(const GroupSetup&) {
  return true;
}

/// "auto" never selects it: it needs mpirun, on all ranks.
bool when_asked(const GroupSetup&) {
  return false;
}

bool alone(const GroupSetup& setup) {
  return setup.size == 1;
}

std::shared_ptr<Backend> connect_null(const GroupSetup& setup) {
  if (setup.size != 1) {
    throw InputError("comm",
                     concat("backend \"null\" is for one rank, group \"", setup.name, "\" has ", setup.size, "."),
                     "Set the backend to \"auto\" or \"gloo\" (TRIREME_BACKEND or WorldOptions::backend).");
  }
  return make_null_backend();
}

} // namespace

const std::vector<BackendEntry>& backends() {
  static const std::vector<BackendEntry> table = {
      {"shm", "memory shared by ranks of one host, CPU tensors", at::kCPU, shm_available, shm_suits, connect_shm,
       kSharedMemoryNeeds},
      {"shm+gloo", "shared memory inside each host and TCP between hosts, CPU tensors", at::kCPU, shm_available,
       hierarchy_suits, connect_hierarchy, kSharedMemoryNeeds},
      {"gloo", "TCP between ranks of any hosts, CPU tensors", at::kCPU, always, any_group, connect_gloo},
      {"mpi", "the MPI whose mpirun started the ranks, CPU tensors", at::kCPU, mpi_available, when_asked, connect_mpi,
       "Start the ranks with mpirun, and have Trireme built with that MPI (cmake -DTRIREME_MPI=ON)."},
      {"nccl", "NCCL between GPUs, CUDA tensors", at::kCUDA, nccl_available, any_group, connect_nccl,
       "It needs a libtorch with CUDA, NCCL's header when Trireme is built, and a GPU.", nccl_card},
      {"staged", "pinned memory and the group's host backend, tensors of any device", std::nullopt, always, any_group,
       connect_staged},
      {"null", "a world of one rank", at::kCPU, always, alone, connect_null},
  };
  return table;
}

const BackendEntry& find_backend(const std::string& name) {
  std::vector<std::string> names = {"auto"};
  for (const auto& entry : backends()) {
    if (name == entry.name) {
      if (!entry.available()) {
        throw InputError("comm", concat("backend \"", name, "\" is not available here."), entry.needs);
      }
      return entry;
    }
    names.push_back(entry.name);
  }
  throw InputError("comm", concat("unknown backend \"", name, "\"."),
                   concat(did_you_mean(name, names), " It comes from TRIREME_BACKEND or WorldOptions::backend."));
}

std::string announcement(const BackendEntry& choice, at::Device device) {
  return concat(choice.name, ' ', choice.card != nullptr ? choice.card(device) : "");
}

bool suits_all(const BackendEntry& choice, bool required, const GroupSetup& setup,
               const std::vector<std::string>& announced) {
  std::string why;
  std::map<std::pair<int, std::string>, size_t> first_on; // by host and GPU
  for (size_t member = 0; member < announced.size() && why.empty(); ++member) {
    const auto [before, own] = first_on.try_emplace({setup.hosts[member], announced[member]}, member);
    if (announced[member].substr(0, announced[member].find(' ')) != choice.name) {
      why = concat("rank ", setup.members[member], " does not use it");
    } else if (!own && choice.card != nullptr) {
      why = concat("ranks ", setup.members[before->second], " and ", setup.members[member], " are on one GPU (",
                   announced[member].substr(announced[member].find(' ') + 1), ')');
    }
  }
  if (required && choice.card != nullptr && !why.empty()) {
    throw InputError("comm",
                     concat("group \"", setup.name, "\" cannot use ", choice.name, ", which was asked for: ", why, '.'),
                     "Give each rank a GPU of its own, or set TRIREME_BACKEND (or WorldOptions::backend) to \"auto\", "
                     "which goes through host memory then.");
  }
  return why.empty();
}

} // namespace trireme::comm
