#include <trireme/plan/estimate/what_stays.h>

#include <trireme/memory/offload/not_moved.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>

#include <numeric>

namespace trireme::estimate {
namespace {

using offload::Place;

constexpr int64_t kLeastBuffers = 3; // of files

std::string in_files(const char* what, int64_t bytes, const std::string& folder, const FileBuffers& buffers) {
  return concat(what, ' ', format_bytes(bytes), " in files in ", folder, " (", format_bytes(buffers.bytes),
                " of buffers in memory)");
}

// `buckets`: everything that is in the files.
std::string of_buffers(const char* section, const char* what, int64_t bytes, const FileBuffers& buffers,
                       bool of_units) {
  return concat(
      section, " to \"nvme\" saves no memory: its buffers (buffer_count) hold all ", buffers.count,
      buffers.count == 1 ? " bucket of " : " buckets of ", what, ", ", format_bytes(bytes),
      ". To save some: ", buffers.count > kLeastBuffers ? concat("\"buffer_count\": ", kLeastBuffers, ", or ") : "",
      of_units ? "a model of more, smaller units" : "a smaller \"reduce_bucket_size\"");
}

} // namespace

std::string where_things_are(const Run& run, const Elsewhere& there) {
  std::vector<std::string> parts;
  const offload::OptimizerOptions& states = run.offload.optimizer;
  const offload::ParameterOptions& parameters = run.offload.parameters;
  const int64_t e = run.parameter_bytes();
  if (there.elements > 0 && states.place == Place::nvme) {
    parts.push_back(
        in_files("masters and optimizer states", there.state_file_bytes, states.nvme_path, there.state_buffers));
  } else if (there.elements > 0) {
    parts.push_back(
        concat("masters and optimizer states ", format_bytes(there.master_bytes + there.state_bytes), " on the host"));
  }
  if (there.gradient_file_bytes > 0) {
    parts.push_back(in_files("gradients", there.gradient_file_bytes, states.nvme_path, there.gradient_buffers));
  } else if (!there.gradient_pieces.empty()) {
    parts.push_back(
        concat("gradients ",
               format_bytes(std::accumulate(there.gradient_pieces.begin(), there.gradient_pieces.end(), int64_t{0})),
               " on the host"));
  }
  const int64_t kept = e * (there.parameters - there.parameters_in_files);
  if (there.parameters > 0 && parameters.place == Place::nvme) {
    const std::string in_memory =
        kept == 0 ? "" : concat(format_bytes(kept), run.on_device ? " on the host" : " in memory");
    parts.push_back(there.parameters_in_files == 0 ? concat("parameters ", in_memory, ", none in files")
                                                   : concat(in_files("parameters", there.parameter_file_bytes,
                                                                     parameters.nvme_path, there.parameter_buffers),
                                                            kept == 0 ? "" : ", " + in_memory));
  } else if (there.parameters > 0) {
    parts.push_back(concat("parameters ", format_bytes(kept), " on the host"));
  }
  return parts.empty() ? "" : concat("offload, a rank: ", join(parts, "; "));
}

std::vector<std::string> what_stays(const Run& run, const Elsewhere& there) {
  std::vector<std::string> notes;
  const offload::OptimizerOptions& states = run.offload.optimizer;
  const offload::ParameterOptions& parameters = run.offload.parameters;
  if (run.moves_states() && run.on_device && states.ratio > 0 && there.elements == 0) {
    notes.push_back(
        concat("offload_optimizer moves nothing: buckets move whole, and none lies in the first ", states.ratio,
               " of the parameters (ratio). To move some: a larger \"ratio\", or a smaller \"reduce_bucket_size\""));
  }
  if (there.state_file_bytes > 0 && there.state_buffers.hold_all) {
    notes.push_back(of_buffers("offload_optimizer", "masters and states", there.state_file_bytes, there.state_buffers,
                               run.shards(3)));
  }
  if (run.moves_parameters()) {
    const int64_t kept = parameters.place == Place::nvme ? there.parameters - there.parameters_in_files : 0;
    std::string note = offload::what_is_not_moved(there.parameters, kept, run.parameter_bytes(), parameters,
                                                  run.zero.param_persistence_threshold);
    if (!note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  if (there.parameter_file_bytes > 0 && there.parameter_buffers.hold_all) {
    notes.push_back(
        of_buffers("offload_param", "parameters", there.parameter_file_bytes, there.parameter_buffers, true));
  }
  return notes;
}

} // namespace trireme::estimate
