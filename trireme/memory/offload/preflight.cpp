#include <trireme/memory/offload/preflight.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestProbe = 256 << 20;
constexpr int64_t kSmallestProbe = 8 << 20;
constexpr double kHundredths = 100;

std::string speed(double bytes_per_second) {
  return concat(format_bytes(bytes_per_second), "/s");
}

// Returns 0, or errno. A file system that does not report its free space may allow no files at all: /proc.
int cannot_create_files(const fs::path& folder) {
  const fs::path name = temporary_name(folder / "trireme");
  if (!create_new(name, O_WRONLY)) {
    return errno;
  }
  ::unlink(name.c_str());
  return 0;
}

} // namespace

void add_use(std::vector<FolderUse>& folders, const Options& options, const KindUse& states, const KindUse& parameters,
             int64_t ranks, const ActivationUse& activations) {
  std::set<std::string> counted;
  const auto use_of = [&](const std::string& folder) -> FolderUse& {
    auto found =
        std::find_if(folders.begin(), folders.end(), [&](const FolderUse& use) { return use.folder == folder; });
    if (found == folders.end()) {
      folders.push_back({});
      found = folders.end() - 1;
      found->folder = folder;
    }
    found->ranks += counted.insert(folder).second ? ranks : 0;
    return *found;
  };
  const auto add = [&](const std::string& folder, const KindUse& kind, int64_t FolderUse::* bytes) {
    FolderUse& use = use_of(folder);
    use.*bytes += ranks * kind.bytes;
    use.read_bytes += ranks * kind.read_bytes;
    use.write_bytes += ranks * kind.write_bytes;
    use.start_bytes += ranks * kind.start_bytes;
    use.gradient_bytes += ranks * kind.gradient_bytes;
    use.building_bytes += ranks * kind.building_bytes;
    use.state_read_bytes += ranks * kind.state_read_bytes;
    use.state_write_bytes += ranks * kind.state_write_bytes;
  };
  if (options.optimizer.place == Place::nvme && states.bytes > 0) {
    add(options.optimizer.nvme_path, states, &FolderUse::state_bytes);
  }
  if (options.parameters.place == Place::nvme && parameters.bytes + parameters.building_bytes > 0) {
    add(options.parameters.nvme_path, parameters, &FolderUse::parameter_bytes);
  }
  if (activations.bytes > 0) {
    add(activations.folder, {activations.bytes, activations.moved_bytes, activations.moved_bytes},
        &FolderUse::activation_bytes);
  }
}

fs::path existing_folder(const fs::path& folder) {
  std::error_code error;
  fs::path found = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(found, error) && found.has_relative_path()) {
    found = found.parent_path();
  }
  const bool is_that = found == fs::absolute(folder, error).lexically_normal();
  const std::string named = concat("nvme_path ", folder.string(),
                                   is_that ? "" : concat(", whose nearest existing parent ", found.string(), ','));
  if (!fs::is_directory(found, error)) {
    throw InputError("offload", concat(named, " is not a folder"), "Name a folder on a disk.");
  }
  if (::faccessat(AT_FDCWD, found.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw InputError("offload", concat(named, " may not be written to: ", std::strerror(errno)),
                     "Change its permissions, or name another folder.");
  }
  return found;
}

Refusal refusal(const FolderUse& use, const Options& options, const Room& room) {
  const int64_t free_at_start = room.free_at_start.value_or(room.free_bytes);
  const auto fits = [&](int64_t while_training, int64_t at_start) {
    return while_training <= room.free_bytes && at_start <= free_at_start;
  };
  if (fits(use.bytes(), use.bytes_at_start())) {
    return {};
  }
  const bool at_start = use.bytes_at_start() - free_at_start >
                        use.bytes() - room.free_bytes; // the larger shortage: room for it is enough for the other
  const int64_t needed = at_start ? use.bytes_at_start() : use.bytes();
  const int64_t there = at_start ? free_at_start : room.free_bytes;
  Refusal out;
  out.what = concat("files of ", use.ranks, use.ranks == 1 ? " rank need " : " ranks need ", format_bytes(needed),
                    at_start ? " while the model is built, its parameters twice," : "", " in ", use.folder.string(),
                    ", which has ", format_bytes(there), " free: ", format_bytes(needed - there), " too little");
  const auto memory_takes = [&](int64_t bytes) { return room.memory_bytes && bytes <= *room.memory_bytes; };
  const std::string free = concat("memory, which has ", format_bytes(room.memory_bytes.value_or(0)), " free");
  // The rest stays on the device, whose memory is not checked.
  const double share = use.state_bytes > 0
                           ? static_cast<double>(room.free_bytes - use.parameter_bytes - use.activation_bytes) /
                                 static_cast<double>(use.state_bytes)
                           : 0;
  const double ratio = std::floor(kHundredths * options.optimizer.ratio * share) / kHundredths;
  const int64_t states = use.state_bytes;
  const int64_t parameters = use.parameter_bytes;
  const int64_t activations = use.activation_bytes;
  const int64_t with_parameters =
      parameters + use.gradient_bytes; // if masters and parameters are in files, gradients are too
  const bool both = options.optimizer.place == Place::nvme &&
                    options.parameters.place == Place::nvme; // in this folder, or one of them on another disk
  if (activations > 0 && fits(use.bytes() - activations, use.bytes_at_start())) {
    out.next =
        concat("Fits with \"activation_checkpointing\": {\"policy\": \"recompute\"}: ", format_bytes(activations),
               " of activations need no files.");
  } else if (both && parameters > 0 && fits(states - use.gradient_bytes + activations, 0) &&
             memory_takes(with_parameters)) {
    out.next =
        concat("Fits with \"offload_param\": {\"device\": \"cpu\"}: ", format_bytes(parameters), " of parameters ",
               use.gradient_bytes > 0 ? concat("and ", format_bytes(use.gradient_bytes), " of gradients ") : "",
               "stay in ", free, '.');
  } else if (both && states > 0 && fits(parameters + activations, parameters + use.building_bytes) &&
             memory_takes(states)) {
    out.next = concat(
        "Fits with \"offload_optimizer\": {\"device\": \"cpu\"}: ", format_bytes(states),
        use.gradient_bytes > 0 ? " of masters, states and gradients stay in " : " of masters and states stay in ", free,
        '.');
  } else if (fits(activations, 0) && memory_takes(states + parameters)) {
    out.next = concat("Fits without files", activations > 0 ? " but those of activations" : "",
                      ", with \"device\": \"cpu\": all of it stays in ", free, '.');
  } else if (activations > 0 && memory_takes(states + parameters)) {
    out.next = concat(
        "Fits without files, with \"activation_checkpointing\": {\"policy\": \"recompute\"} and \"device\": \"cpu\": ",
        format_bytes(states + parameters), " stay in ", free, '.');
  } else if (room.on_device && ratio > 0) {
    out.next = concat("Fits with \"ratio\": ", ratio,
                      " in offload_optimizer, if devices have room for the rest of the states, ",
                      format_bytes(static_cast<int64_t>((1 - share) * static_cast<double>(states))), '.');
  } else {
    out.next = concat(room.memory_bytes
                          ? concat("Memory (", format_bytes(*room.memory_bytes), " free) cannot take it either: use")
                          : std::string("Use"),
                      " a folder with more room, more hosts with a higher ZeRO stage, or a smaller model.");
  }
  return out;
}

Preflight judge(const FolderUse& use, const Options& options, const aio::Probe& disk) {
  const auto reading = [&](int64_t bytes) { return static_cast<double>(bytes) / disk.read_bytes_per_s; };
  const auto writing = [&](int64_t bytes) { return static_cast<double>(bytes) / disk.write_bytes_per_s; };
  Preflight out{use, disk, reading(use.read_bytes), writing(use.write_bytes), 0, {}};
  out.lines.push_back(concat(use.folder.string(), " (", disk.filesystem, "): files of ", use.ranks,
                             use.ranks == 1 ? " rank need " : " ranks need ", format_bytes(use.most_bytes()), ", ",
                             format_bytes(disk.free_bytes), " are free"));
  if (use.building_bytes > 0) {
    out.lines.push_back(concat("of these ", format_bytes(use.bytes_at_start()),
                               " while the model is built, its parameters twice, and ", format_bytes(use.bytes()),
                               " while it trains"));
  }
  const bool has_threads = std::strcmp(disk.engine, "threads") == 0; // each thread has one request in the system
  const std::string engine =
      has_threads ? concat(options.aio.threads, options.aio.threads == 1 ? " thread" : " threads") : disk.engine;
  out.lines.push_back(concat(engine, ", ",
                             disk.direct ? concat("direct transfers (aligned to ", disk.alignment, " bytes)")
                                         : "no direct transfers here: through the system's cache",
                             ", ", format_bytes(options.aio.block_size), " a request",
                             has_threads ? "" : concat(", ", options.aio.queue_depth, " at a time"), ": reads ",
                             speed(disk.read_bytes_per_s), ", writes ", speed(disk.write_bytes_per_s)));
  const double both = out.read_seconds + out.write_seconds;
  if (both > 0) {
    out.lines.push_back(concat("a step reads ", format_bytes(use.read_bytes), " in ", format_seconds(out.read_seconds),
                               " and writes ", format_bytes(use.write_bytes), " in ", format_seconds(out.write_seconds),
                               ": ", format_seconds(both), " of the disk's time"));
  }
  std::string off;
  if (use.state_read_bytes > 0 && !options.optimizer.pipeline_read) {
    off = "\"pipeline_read\"";
    out.waited_seconds += reading(use.state_read_bytes);
  }
  if (use.state_write_bytes > 0 && !options.optimizer.pipeline_write) {
    off += concat(off.empty() ? "" : " and ", "\"pipeline_write\"");
    out.waited_seconds += writing(use.state_write_bytes);
  }
  if (both > 0) {
    out.lines.push_back(concat("a step takes at least ", format_seconds(both),
                               off.empty() ? ""
                                           : concat(", of which ", format_seconds(out.waited_seconds),
                                                    " come on top of its computation because ", off,
                                                    off.find(" and ") == std::string::npos ? " is" : " are", " off")));
  }
  if (use.start_bytes > 0) {
    out.lines.push_back(concat("before the first step ", format_bytes(use.start_bytes), " are written in ",
                               format_seconds(writing(use.start_bytes))));
  }
  if (!disk.direct) {
    out.lines.push_back("files take memory of the system's cache beside that of the ranks");
  }
  return out;
}

int64_t probe_bytes(const FolderUse& use, const Options& options, int64_t free_bytes) {
  const int64_t whole_queue = 4 * options.aio.block_size * options.aio.queue_depth;
  const int64_t wanted = std::clamp(std::max(use.bytes(), whole_queue), kSmallestProbe, kLargestProbe);
  return std::max<int64_t>(options.aio.block_size,
                           std::min(wanted, free_bytes / 2) / options.aio.block_size * options.aio.block_size);
}

void check_room(const std::vector<FolderUse>& folders, const Options& options, std::optional<int64_t> memory_bytes,
                bool on_device) {
  struct Taken {
    int64_t while_training = 0;
    int64_t at_start = 0;
  };
  std::map<dev_t, Taken> taken; // by disk: folders on one disk share its space
  for (const FolderUse& use : folders) {
    std::error_code error;
    const fs::path folder = existing_folder(use.folder);
    const fs::space_info space = fs::space(folder, error);
    const bool is_unknown = error || space.capacity == 0;
    if (const int code = is_unknown ? cannot_create_files(folder) : 0; code != 0) {
      throw InputError("offload",
                       concat("nvme_path ", use.folder.string(), " is on a file system that takes no files (",
                              aio::filesystem_of(folder), "): ", std::strerror(code)),
                       "Name a folder on a disk.");
    }
    struct stat disk = {};
    Taken& others = taken[::stat(folder.c_str(), &disk) == 0 ? disk.st_dev : 0];
    const int64_t free = is_unknown ? std::numeric_limits<int64_t>::max()
                                    : static_cast<int64_t>(space.available); // unknown space is not refused
    const Room room{free - others.while_training, memory_bytes, on_device, free - others.at_start};
    if (Refusal no = refusal(use, options, room); !no.what.empty()) {
      no.what += others.while_training > 0
                     ? concat(", beside ", format_bytes(others.while_training), " of the other folder on that disk")
                     : "";
      throw InputError("offload", no.what, no.next);
    }
    others.while_training += use.bytes();
    others.at_start += use.bytes_at_start();
  }
}

std::vector<Preflight> preflight(const std::vector<FolderUse>& folders, const Options& options) {
  std::vector<Preflight> out;
  for (const FolderUse& use : folders) {
    const fs::path folder = existing_folder(use.folder);
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && static_cast<int64_t>(space.available) < 2 * options.aio.block_size) {
      out.push_back(
          {use,
           {},
           0,
           0,
           0,
           {concat(use.folder.string(), ": files of ", use.ranks, use.ranks == 1 ? " rank need " : " ranks need ",
                   format_bytes(use.most_bytes()), ", ", format_bytes(static_cast<int64_t>(space.available)),
                   " are free: too little to measure the disk")}});
      continue;
    }
    out.push_back(
        judge(use, options,
              aio::probe(folder, options.aio,
                         probe_bytes(use, options, error ? kSmallestProbe : static_cast<int64_t>(space.available)))));
  }
  return out;
}

} // namespace trireme::offload
