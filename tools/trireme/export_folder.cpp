#include "export_folder.h"

#include <trireme/base/units.h>
#include <trireme/generate/export_model.h>

#include <nlohmann/json.hpp>

#include <iostream>

namespace trireme::tools {

int export_folder(const ExportCommand& command) {
  std::optional<at::ScalarType> dtype;
  if (!command.dtype.empty()) {
    dtype = command.dtype == "bf16" ? at::kBFloat16 : command.dtype == "fp16" ? at::kHalf : at::kFloat;
  }
  const generate::Exported done = generate::export_model(command.from, command.folder, dtype, command.merge);
  const char* type = done.dtype == at::kBFloat16 ? "bf16" : done.dtype == at::kHalf ? "fp16" : "fp32";
  if (command.json) {
    std::cout << nlohmann::json({{"folder", command.folder.string()},
                                 {"step", done.step},
                                 {"parameters", done.parameters},
                                 {"adapter", done.is_adapter},
                                 {"dtype", type}})
                     .dump()
              << '\n';
  } else {
    std::cout << command.folder.string() << ": step " << done.step << ", "
              << format_count(static_cast<double>(done.parameters))
              << (done.is_adapter ? " parameters of adapters in " : " parameters in ") << type
              << (done.replaced ? concat(", in place of the export of step ", *done.replaced) : "") << '\n';
  }
  return 0;
}

} // namespace trireme::tools
