#include <trireme/offload/preflight.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestProbe = 256 << 20;
constexpr int64_t kSmallestProbe = 8 << 20;
constexpr double kHundredths = 100;

std::string size(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string speed(double bytes_per_second) {
  return concat(format_bytes(bytes_per_second), "/s");
}

} // namespace

void add_use(std::vector<FolderUse>& folders, const Options& options, const KindUse& states, const KindUse& parameters, int64_t ranks) {
  const auto add = [&](const std::string& folder, const KindUse& kind, int64_t FolderUse::* bytes, int64_t ranks_there) {
    auto found = std::find_if(folders.begin(), folders.end(), [&](const FolderUse& use) { return use.folder == folder; });
    if (found == folders.end()) {
      folders.push_back({folder, 0, 0, 0, 0, 0, 0});
      found = folders.end() - 1;
    }
    found->ranks += ranks_there;
    (*found).*bytes += ranks * kind.bytes;
    found->read_bytes += ranks * kind.read_bytes;
    found->write_bytes += ranks * kind.write_bytes;
    found->start_bytes += ranks * kind.start_bytes;
  };
  const bool has_states = options.optimizer.place == Place::nvme && states.bytes > 0;
  const bool has_parameters = options.parameters.place == Place::nvme && parameters.bytes > 0;
  if (has_states) {
    add(options.optimizer.nvme_path, states, &FolderUse::state_bytes, ranks);
  }
  if (has_parameters) {
    add(options.parameters.nvme_path, parameters, &FolderUse::parameter_bytes, has_states && options.parameters.nvme_path == options.optimizer.nvme_path ? 0 : ranks);
  }
}

fs::path existing_folder(const fs::path& folder) {
  std::error_code error;
  fs::path found = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(found, error) && found.has_relative_path()) {
    found = found.parent_path();
  }
  const bool is_that = found == fs::absolute(folder, error).lexically_normal();
  const std::string named = concat("nvme_path ", folder.string(), is_that ? "" : concat(", of which there is ", found.string(), ','));
  if (!fs::is_directory(found, error)) {
    throw InputError("offload", concat(named, " is not a folder"), "Name one on a disk.");
  }
  if (::faccessat(AT_FDCWD, found.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw InputError("offload", concat(named, " may not be written to: ", std::strerror(errno)), "Change its permissions, or name another folder.");
  }
  return found;
}

Refusal refusal(const FolderUse& use, const Options& options, const Room& room) {
  const int64_t missing = use.bytes() - room.free_bytes;
  if (missing <= 0) {
    return {};
  }
  Refusal out;
  out.what = concat("files of ", use.ranks, use.ranks == 1 ? " rank need " : " ranks need ", size(use.bytes()), " in ", use.folder.string(), ", which has ", size(room.free_bytes), " free: ", size(missing),
                    " too little");
  const std::string free = concat("memory, which has ", size(room.memory_bytes), " free");
  // What does not fit stays on the device, whose memory nobody asks for here.
  const double share = use.state_bytes > 0 ? static_cast<double>(room.free_bytes - use.parameter_bytes) / static_cast<double>(use.state_bytes) : 0;
  const double ratio = std::floor(kHundredths * options.optimizer.ratio * share) / kHundredths;
  const int64_t states = use.state_bytes;
  const int64_t parameters = use.parameter_bytes;
  if (parameters > 0 && states > 0 && states <= room.free_bytes && parameters <= room.memory_bytes) {
    out.next = concat("Fits with \"offload_param\": {\"device\": \"cpu\"}: ", size(parameters), " of parameters stay in ", free, '.');
  } else if (parameters > 0 && states > 0 && parameters <= room.free_bytes && states <= room.memory_bytes) {
    out.next = concat("Fits with \"offload_optimizer\": {\"device\": \"cpu\"}: ", size(states), " of masters and states stay in ", free, '.');
  } else if (use.bytes() <= room.memory_bytes) {
    out.next = concat("Fits without files, with \"device\": \"cpu\": all of it stays in ", free, '.');
  } else if (room.on_device && ratio > 0) {
    out.next = concat("Fits with \"ratio\": ", ratio, " in offload_optimizer, if devices have room for the rest of the states, ", size(static_cast<int64_t>((1 - share) * static_cast<double>(states))), '.');
  } else {
    out.next = concat("Memory (", size(room.memory_bytes), " free) cannot take it either: use a folder with more room, more hosts with a higher ZeRO stage, or a smaller model.");
  }
  return out;
}

Preflight judge(const FolderUse& use, const Options& options, const aio::Probe& disk) {
  Preflight out{use, disk, static_cast<double>(use.read_bytes) / disk.read_bytes_per_s, static_cast<double>(use.write_bytes) / disk.write_bytes_per_s, {}};
  out.lines.push_back(concat(use.folder.string(), " (", disk.filesystem, "): files of ", use.ranks, use.ranks == 1 ? " rank need " : " ranks need ", size(use.bytes()), ", ", size(disk.free_bytes), " are free"));
  const bool has_threads = std::strcmp(disk.engine, "threads") == 0; // each has one request in the system
  const std::string engine = has_threads ? concat(options.aio.threads, options.aio.threads == 1 ? " thread" : " threads") : disk.engine;
  out.lines.push_back(concat(engine, ", ", disk.direct ? concat("direct transfers (aligned to ", disk.alignment, " bytes)") : "no direct transfers here: through the system's cache", ", ",
                             size(options.aio.block_size), " a request", has_threads ? "" : concat(", ", options.aio.queue_depth, " at a time"), ": reads ", speed(disk.read_bytes_per_s), ", writes ", speed(disk.write_bytes_per_s)));
  const double both = out.read_seconds + out.write_seconds;
  out.lines.push_back(concat("a step reads ", size(use.read_bytes), " in ", format_seconds(out.read_seconds), " and writes ", size(use.write_bytes), " in ", format_seconds(out.write_seconds), ": ",
                             format_seconds(both), " of the disk's time"));
  if (use.start_bytes > 0) {
    out.lines.push_back(concat("before the first step ", size(use.start_bytes), " are written in ", format_seconds(static_cast<double>(use.start_bytes) / disk.write_bytes_per_s)));
  }
  std::string waited;
  if (use.state_bytes > 0 && !options.optimizer.pipeline_read) {
    waited = "\"pipeline_read\"";
  }
  if (use.state_bytes > 0 && !options.optimizer.pipeline_write) {
    waited += concat(waited.empty() ? "" : " and ", "\"pipeline_write\"");
  }
  if (!waited.empty()) {
    out.lines.push_back(concat("these moves are waited for where ", waited, waited.find(" and ") == std::string::npos ? " is" : " are", " off; on, they hide behind the optimizer's computation"));
  }
  if (!disk.direct) {
    out.lines.push_back("files take memory of the system's cache beside that of the ranks");
  }
  return out;
}

int64_t probe_bytes(const FolderUse& use, const Options& options, int64_t free_bytes) {
  const int64_t whole_queue = 4 * options.aio.block_size * options.aio.queue_depth;
  const int64_t wanted = std::clamp(std::max(use.bytes(), whole_queue), kSmallestProbe, kLargestProbe);
  return std::max<int64_t>(options.aio.block_size, std::min(wanted, free_bytes / 2) / options.aio.block_size * options.aio.block_size);
}

void check_room(const std::vector<FolderUse>& folders, const Options& options, int64_t memory_bytes, bool on_device) {
  std::map<dev_t, int64_t> wanted; // by disk: folders on one share its room
  for (const FolderUse& use : folders) {
    std::error_code error;
    const fs::path folder = existing_folder(use.folder);
    const fs::space_info space = fs::space(folder, error);
    struct stat disk = {};
    int64_t& others = wanted[::stat(folder.c_str(), &disk) == 0 ? disk.st_dev : 0];
    const Room room{error ? use.bytes() : static_cast<int64_t>(space.available) - others, memory_bytes, on_device}; // what cannot be known does not refuse
    if (Refusal no = refusal(use, options, room); !no.what.empty()) {
      no.what += others > 0 ? concat(", beside ", size(others), " of the other folder on that disk") : "";
      throw InputError("offload", no.what, no.next);
    }
    others += use.bytes();
  }
}

std::vector<Preflight> preflight(const std::vector<FolderUse>& folders, const Options& options) {
  std::vector<Preflight> out;
  for (const FolderUse& use : folders) {
    const fs::path folder = existing_folder(use.folder);
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && static_cast<int64_t>(space.available) < 2 * options.aio.block_size) {
      out.push_back({use, {}, 0, 0, {concat(use.folder.string(), ": files of ", use.ranks, use.ranks == 1 ? " rank need " : " ranks need ", size(use.bytes()), ", ", size(static_cast<int64_t>(space.available)),
                                            " are free: too little to measure the disk")}});
      continue;
    }
    out.push_back(judge(use, options, aio::probe(folder, options.aio, probe_bytes(use, options, error ? kSmallestProbe : static_cast<int64_t>(space.available)))));
  }
  return out;
}

} // namespace trireme::offload
