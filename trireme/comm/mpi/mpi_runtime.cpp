#include <trireme/comm/mpi/mpi_runtime.h>

#include <trireme/base/env.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/comm/mpi/patience.h>

#include <dlfcn.h>

#include <array>
#include <filesystem>

namespace trireme::comm::mpi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNext =
    "Start it with: mpirun -n RANKS PROGRAM, of the Open MPI or MPICH that Trireme was built with (TRIREME_MPI in "
    "CMake).";

/// The MPIs whose mpirun (or srun) may have started this process, the likelier first.
std::vector<std::string> possible() {
  if (env::text("OMPI_COMM_WORLD_SIZE")) {
    return {"openmpi"};
  }
  if (env::text("PMI_SIZE")) {
    return {"mpich"};
  }
  return env::text("PMIX_RANK") ? std::vector<std::string>{"openmpi", "mpich"} : std::vector<std::string>{};
}

/// Paths of a module; a relative folder starts from the program's own.
std::vector<std::string> candidates() {
  if (const auto given = env::text("TRIREME_MPI_MODULE")) {
    return {*given};
  }
  std::vector<std::string> found;
  std::error_code error;
  const fs::path program_folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& mpi : possible()) {
    for (const auto& folder : split(TRIREME_MPI_FOLDERS, ':')) {
      const fs::path path = program_folder / folder / concat("libtrireme_", mpi, ".so");
      if (path.is_absolute() && fs::exists(path, error)) {
        found.push_back(path.string());
      }
    }
  }
  return found;
}

void combine(const void* in, void* inout, int64_t count, kernels::Element element, kernels::Combine combine) {
  const std::array<const void*, 2> inputs = {inout, in};
  kernels::CombineArgs args;
  args.in = inputs.data();
  args.inputs = 2;
  args.out = &inout;
  args.outputs = 1;
  args.element = element;
  args.combine = combine;
  kernels::active_kernels().combine(args, 0, count);
}

} // namespace

Runtime& Runtime::process() {
  static auto* runtime = new Runtime; // never destroyed: MPI's own threads may outlive main()
  return *runtime;
}

bool Runtime::load(std::string& why) {
  if (loaded_) {
    why = why_not_;
    return functions_ != nullptr;
  }
  loaded_ = true;
  const auto paths = candidates();
  why_not_ = "no module for it is built or installed";
  for (const auto& path : paths) {
    // Global: Open MPI's plugins need its symbols in the entire process.
    void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      why_not_ = ::dlerror();
      continue;
    }
    const auto entry = reinterpret_cast<EntryPoint>(::dlsym(handle, kEntryPoint));
    if (entry == nullptr || entry()->version != kInterfaceVersion) {
      why_not_ = path + " is from another version of Trireme";
      continue;
    }
    functions_ = entry();
    why_not_.clear();
    break;
  }
  why = why_not_;
  return functions_ != nullptr;
}

bool Runtime::available() {
  const std::lock_guard lock(mutex);
  std::string why;
  return !possible().empty() && load(why);
}

void Runtime::start() {
  const std::lock_guard lock(mutex);
  if (finished_) {
    throw InputError("comm", "MPI has ended in this process and cannot be started again.",
                     "Open one World per process with the backend \"mpi\".");
  }
  if (started_) {
    return;
  }
  std::string why;
  if (!load(why)) {
    throw InputError("comm", concat("backend \"mpi\" cannot be loaded: ", why, "."), kNext);
  }
  const int64_t most = env::integer("TRIREME_MPI_MOST").value_or(1 << 30);
  if (most < 1 || most > (1 << 30)) {
    throw InputError("comm", concat("TRIREME_MPI_MOST must be between 1 and 2^30 elements a call, it is ", most, "."),
                     "Unset it.");
  }
  int threads = 0;
  if (const int code = functions_->start(combine, most, &rank_, &size_, &threads); code != 0) {
    std::array<char, 512> text{};
    functions_->describe(code, text.data(), static_cast<int>(text.size()));
    throw InputError("comm", concat("MPI does not start: ", text.data(), "."), kNext);
  }
  if (threads == 0) {
    throw InputError("comm", "MPI was started without support for calls from more than one thread.",
                     "Call MPI_Init_thread with MPI_THREAD_SERIALIZED or more, or leave starting MPI to Trireme.");
  }
  started_ = true;
}

std::string Runtime::library() const {
  const std::string all = functions_->library();
  return all.substr(0, all.find_first_of(",\n"));
}

void Runtime::group_opened() {
  const std::lock_guard lock(mutex);
  ++groups_;
}

void Runtime::group_closed(std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(mutex);
    if (--groups_ > 0 || gave_up_ || finished_) {
      return;
    }
    finished_ = true;
  }
  finish(patience);
}

void Runtime::finish(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Operation meeting = nullptr;
  int done = 0;
  int code = 0;
  {
    const std::lock_guard lock(mutex);
    code = functions_->meet(&meeting);
  }
  for (Patience wait(0, false); code == 0 && done == 0 && std::chrono::steady_clock::now() < deadline; wait.pause()) {
    const std::lock_guard lock(mutex);
    code = functions_->test(meeting, &done);
  }
  if (done == 0) {
    log::warning("not all ranks reached the end of MPI, so this one ends without MPI_Finalize.");
    return;
  }
  const std::lock_guard lock(mutex);
  functions_->finish();
}

void Runtime::give_up(std::vector<at::Tensor> memory) {
  static auto* const kept = new std::vector<at::Tensor>;
  const std::lock_guard lock(mutex);
  gave_up_ = true;
  kept->insert(kept->end(), std::make_move_iterator(memory.begin()), std::make_move_iterator(memory.end()));
}

void Runtime::give_up() {
  give_up({});
}

void Runtime::check(int code, const char* call) const {
  if (code != 0) {
    std::array<char, 512> text{};
    functions_->describe(code, text.data(), static_cast<int>(text.size()));
    throw Trouble(Trouble::Kind::lost, concat(call, ": ", text.data()));
  }
}

} // namespace trireme::comm::mpi
