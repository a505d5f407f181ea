#include "fetch_data.h"

#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/data/fetch.h>

namespace trireme::tools {

int fetch_data(const DataFetchCommand& command) {
  data::FetchOptions options;
  options.from = command.from;
  options.check = !command.no_check;
  const data::FetchResult result = data::fetch(command.name, command.out, options);
  if (result.already_there) {
    log::info(command.name, " is already in ", result.folder.string(), ", checked");
    return 0;
  }
  log::info(command.name, " from ", result.source, " is in ", result.folder.string(), ':');
  for (const data::FetchedFile& file : result.files) {
    log::info("  ", file.name, "  ", format_bytes(file.bytes));
  }
  return 0;
}

} // namespace trireme::tools
