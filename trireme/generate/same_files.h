#pragma once

#include <trireme/comm/group.h>

#include <filesystem>
#include <functional>
#include <vector>

namespace trireme::generate {

/// Calls f(); with several ranks as engine::check_together(): an error on some is thrown on all of them. Collective.
void together(const comm::Group& ranks, const std::function<void()>& f);

/// Compares the files that f() returns, each by its name without the folder and its content: ranks that read different
/// ones would split a model that nobody has. Files that all ranks have from one disk are not read. Collective; nothing
/// is done for one rank, nor f() called. Cost: a stat of each file; one read of all if ranks have copies of their own.
/// Errors: InputError on every rank with the first file that differs and the ranks; those of f(), on every rank.
void check_same_files(const comm::Group& ranks, const std::function<std::vector<std::filesystem::path>()>& f);

} // namespace trireme::generate
