#include <trireme/base/file.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

// The start of temporary names of `path`, up to the process id.
std::string temporary_prefix(const fs::path& path) {
  return concat('.', path.filename().string(), ".tmp.");
}

// A process that creates the name again after each of 10 removals does so on purpose.
constexpr int kMostRemovals = 10;

} // namespace

Descriptor create_new(const fs::path& path, int flags, mode_t mode) {
  for (int removals = 0;;) {
    Descriptor made(::open(path.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (made || (errno != EEXIST && errno != EINTR)) {
      return made;
    }
    if (errno == EEXIST && (removals++ == kMostRemovals || (::unlink(path.c_str()) != 0 && errno != ENOENT))) {
      return made;
    }
  }
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw InputError("file", concat(path.string(), " does not exist"), "Check the path.");
  }
  if (fs::is_directory(path, error)) {
    throw InputError("file", concat(path.string(), " is a folder; expected a file"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string content;
  std::vector<char> block(1 << 18);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    content.append(block.data(), static_cast<size_t>(in.gcount()));
  }
  if (!in.eof()) {
    throw InputError("file", concat("cannot read ", path.string(), ": ", std::strerror(errno)));
  }
  return content;
}

bool is_disk_full(int code) {
  return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

std::string describe_write_failure(int code, const fs::path& path, uint64_t needed_bytes) {
  std::string text = std::strerror(code);
  if (is_disk_full(code)) {
    std::error_code error;
    const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const auto space = fs::space(folder, error);
    const std::string needs = needed_bytes > 0 ? concat("needs ", format_bytes(needed_bytes)) : "";
    const std::string free = error ? "" : concat(format_bytes(space.available), " free");
    text +=
        needs.empty() && free.empty() ? "" : concat(" (", needs, needs.empty() || free.empty() ? "" : ", ", free, ")");
  }
  return text;
}

fs::path make_scratch_folder(const std::string& name, fs::path parent, const std::string& next) {
  std::error_code error;
  if (parent.empty()) {
    parent = fs::temp_directory_path(error);
    parent = error ? "/tmp" : parent;
    error.clear();
  } else {
    fs::create_directories(parent, error);
  }
  std::string pattern = (fs::absolute(parent) / concat(name, "-XXXXXX")).string();
  if (error || ::mkdtemp(pattern.data()) == nullptr) {
    throw InputError(
        "file",
        concat("cannot make a folder in ", parent.string(), ": ", error ? error.message() : std::strerror(errno)),
        next);
  }
  return pattern;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) {
    throw InputError("file", concat(path.string(), ": ", error.message()), "Check the path and its permissions.");
  }
  return found;
}

InputError in_words(const std::filesystem::filesystem_error& error) {
  const std::string what = error.what(); // "filesystem error: cannot list: Input/output error [/path]"
  const size_t begin = what.find("cannot ");
  const std::string operation =
      begin == std::string::npos ? "cannot use" : what.substr(begin, what.find(':', begin) - begin);
  return InputError("file",
                    concat(operation, ' ', error.path1().string(), ": ",
                           describe_write_failure(error.code().value(), error.path1(), 0)),
                    "Check the path and its permissions.");
}

void sync_folder(const fs::path& folder) {
  const Descriptor descriptor(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor || ::fsync(descriptor.get()) != 0) {
    throw Error("file",
                concat("cannot sync folder ", folder.string(), ": ", describe_write_failure(errno, folder / ".", 0)));
  }
}

void check_writable(const fs::path& path) {
  const fs::path temporary = temporary_name(path);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  errno = EISDIR;
  if (is_folder || !create_new(temporary, O_WRONLY)) {
    throw Error("file", concat("cannot create ", path.string(), ": ", describe_write_failure(errno, path, 0)));
  }
  ::unlink(temporary.c_str());
}

void write_file_atomically(const fs::path& path, std::string_view content, mode_t mode) {
  write_file_atomically(path, content, temporary_name(path), mode);
}

void write_file_atomically(const fs::path& path, std::string_view content, const fs::path& temporary, mode_t mode) {
  const auto fail = [&](const char* what) {
    const std::string reason = describe_write_failure(errno, path, content.size());
    ::unlink(temporary.c_str());
    throw Error("file", concat("cannot ", what, ' ', path.string(), ": ", reason),
                "The previous content, if any, is untouched.");
  };
  {
    const Descriptor out = create_new(temporary, O_WRONLY, mode);
    if (!out) {
      fail("create");
    }
    struct stat before{};
    if (::lstat(path.c_str(), &before) == 0 && S_ISREG(before.st_mode)) {
      ::fchmod(out.get(), before.st_mode & 0777); // a file system without modes refuses
    }
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = ::write(out.get(), content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) {
        continue;
      }
      if (n < 0) {
        fail("write");
      }
      done += static_cast<size_t>(n);
    }
    if (::fsync(out.get()) != 0) {
      fail("sync");
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    fail("replace");
  }
  sync_folder(path.parent_path());
}

fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / concat(temporary_prefix(path), ::getpid());
}

void remove_unfinished(const fs::path& path, std::chrono::seconds unchanged_for) {
  const std::string prefix = temporary_prefix(path);
  const auto is_recent = [&](const fs::path& file) {
    std::error_code unknown;
    const fs::file_time_type written = fs::last_write_time(file, unknown);
    return unchanged_for.count() > 0 && !unknown && fs::file_time_type::clock::now() - written < unchanged_for;
  };
  std::error_code ignored;
  for (fs::directory_iterator item(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored), end;
       !ignored && item != end; item.increment(ignored)) {
    const std::string name = item->path().filename().string();
    const std::string_view process = std::string_view(name).substr(std::min(prefix.size(), name.size()));
    if (name.starts_with(prefix) && !process.empty() &&
        process.find_first_not_of("0123456789") == std::string_view::npos && !is_recent(item->path())) {
      std::error_code stays;
      fs::remove(item->path(), stays);
    }
  }
}

void make_private_folders(const fs::path& folder, std::error_code& error) {
  if (fs::is_directory(folder, error)) {
    return;
  }
  if (folder.has_parent_path() && folder.parent_path() != folder) {
    make_private_folders(folder.parent_path(), error);
    if (error) {
      return;
    }
  }
  const int code = ::mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
  std::error_code ignored;
  error = code == 0 || fs::is_directory(folder, ignored) ? std::error_code()
                                                         : std::error_code(code, std::generic_category());
}

void make_private_folders(const fs::path& folder) {
  std::error_code error;
  make_private_folders(folder, error);
  if (error) {
    throw fs::filesystem_error("cannot make the folder", folder, error);
  }
}

} // namespace trireme
