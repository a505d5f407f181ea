#include <trireme/config/offload_json.h>

#include <trireme/base/text.h>
#include <trireme/config/fields.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using offload::Place;

// A buffer is read into and one written from while one is stepped.
constexpr int64_t kLeastBuffers = 3;

void fields(const auto& each, offload::OptimizerOptions& o) {
  each("buffer_count", o.buffer_count);
  each("pin_memory", o.pin_memory);
  each("pipeline_read", o.pipeline_read);
  each("pipeline_write", o.pipeline_write);
  each("fast_init", o.fast_init);
  each("ratio", o.ratio);
  each("delayed_update", o.delayed_update);
}

void fields(const auto& each, offload::ParameterOptions& o) {
  each("buffer_count", o.buffer_count);
  each("max_in_cpu", o.max_in_cpu);
  each("pin_memory", o.pin_memory);
}

void fields(const auto& each, aio::Options& o) {
  each("block_size", o.block_size);
  each("queue_depth", o.queue_depth);
  each("intra_op_parallelism", o.threads);
  each("single_submit", o.single_submit);
  each("overlap_events", o.overlap_events);
}

template <class Options>
ordered_json written(Options options, ordered_json out) {
  fields(WriteFields(out), options);
  return out;
}

Place place_of(const Values& section) {
  const auto device = section.get<std::string>("device", "none");
  return device == "cpu" ? Place::host : device == "nvme" ? Place::nvme : Place::device; // "auto" as "none"
}

std::string folder_of(const Values& section, Place place) {
  const auto folder = section.get<std::string>("nvme_path", "");
  if (place != Place::nvme) {
    return folder;
  }
  if (folder.empty()) {
    section.find("device")->fail("files need a folder, and there is no \"nvme_path\" beside it",
                                 "Write \"nvme_path\": \"/a/folder/on/a/disk\".");
  }
  if (folder == "auto") {
    section.find("nvme_path")
        ->fail(
            "\"auto\" is a placeholder that Hugging Face's Trainer fills in before DeepSpeed sees it; it does not "
            "say which disk is meant",
            "Write the folder.");
  }
  return folder;
}

void check_buffers(const Values& section, Place place, int64_t count, int64_t usual) {
  if (place == Place::nvme && count < kLeastBuffers) {
    section.find("buffer_count")
        ->fail(concat("one bucket is read and one written while one is used: at least ", kLeastBuffers,
                      " buffers, found ", count),
               concat("Write ", usual, ", or leave it out."));
  }
}

// Notes keys that only files use if the section asks for memory.
void note_what_files_need(const Values& section, Place place, std::initializer_list<const char*> keys,
                          std::vector<std::string>& notes) {
  std::vector<std::string> found;
  for (const char* key : keys) {
    if (place == Place::host && section.find(key) != nullptr) {
      found.emplace_back(key);
    }
  }
  if (!found.empty()) {
    notes.push_back(concat(section.node().where(), ": ", section.node().path(), ": ", join(found, ", "),
                           found.size() == 1 ? " has" : " have", " no effect: the device is \"cpu\", not \"nvme\"."));
  }
}

offload::OptimizerOptions read_optimizer_place(const Values& section, std::vector<std::string>& notes) {
  offload::OptimizerOptions out;
  out.place = place_of(section);
  if (out.place == Place::device) {
    return out;
  }
  out.nvme_path = folder_of(section, out.place);
  fields(ReadFields(section), out);
  check_buffers(section, out.place, out.buffer_count, offload::OptimizerOptions().buffer_count);
  note_what_files_need(section, out.place,
                       {"nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"}, notes);
  return out;
}

offload::ParameterOptions read_parameter_place(const Values& section, std::vector<std::string>& notes) {
  offload::ParameterOptions out;
  out.place = place_of(section);
  if (out.place == Place::device) {
    return out;
  }
  out.nvme_path = folder_of(section, out.place);
  fields(ReadFields(section), out);
  check_buffers(section, out.place, out.buffer_count, offload::ParameterOptions().buffer_count);
  note_what_files_need(section, out.place, {"nvme_path", "buffer_count", "max_in_cpu"}, notes);
  return out;
}

aio::Options read_aio(const Values& section) {
  aio::Options out;
  fields(ReadFields(section), out);
  if (out.block_size % aio::kAlignment != 0) {
    const int64_t near =
        std::max<int64_t>(1, (out.block_size + aio::kAlignment / 2) / aio::kAlignment) * aio::kAlignment;
    section.find("block_size")
        ->fail(concat("direct transfers are multiples of ", aio::kAlignment, " bytes, found ", out.block_size),
               concat("Write ", near, '.'));
  }
  if (out.block_size > aio::kMostBlockBytes) {
    section.find("block_size")->fail(concat("must be at most ", aio::kMostBlockBytes, ", found ", out.block_size));
  }
  return out;
}

ordered_json path_or_null(const std::string& path) {
  return path.empty() ? ordered_json(nullptr) : ordered_json(path);
}

} // namespace

offload::Options read_offload(const Values& engine, bool moves_activations, std::vector<std::string>& notes) {
  const Values zero = engine.section("zero_optimization");
  const Values section = engine.section("aio");
  offload::Options out;
  out.optimizer = read_optimizer_place(zero.section("offload_optimizer"), notes);
  out.parameters = read_parameter_place(zero.section("offload_param"), notes);
  out.aio = read_aio(section);
  if (section.present() && !out.uses_files() && !moves_activations && to_json(out.aio) != to_json(aio::Options())) {
    notes.push_back(concat(section.node().where(),
                           ": aio has no effect: nothing is kept in files, which \"device\": \"nvme\" in an offload "
                           "section does, or \"nvme\" in activation_checkpointing."));
  }
  return out;
}

ordered_json to_json(const offload::OptimizerOptions& options) {
  return written(options, {{"device", offload::word(options.place)}, {"nvme_path", path_or_null(options.nvme_path)}});
}

ordered_json to_json(const offload::ParameterOptions& options) {
  return written(options, {{"device", offload::word(options.place)}, {"nvme_path", path_or_null(options.nvme_path)}});
}

ordered_json to_json(const aio::Options& options) {
  return written(options, ordered_json::object());
}

} // namespace trireme::config
