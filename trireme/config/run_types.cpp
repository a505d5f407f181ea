#include <trireme/config/run_types.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <stdexcept>

namespace trireme::config {
namespace {

// Names of built-in types are compared as the key table does: whatever the case.
const RunType& find_type(const std::vector<RunType>& types, const std::string& name) {
  const auto found = std::ranges::find_if(types, [&](const RunType& type) {
    return type.of_program ? type.name == name : lower(type.name) == lower(name);
  });
  if (found == types.end()) {
    throw std::logic_error(concat("run types: no type ", name));
  }
  return *found;
}

} // namespace

const RunType& RunTypes::model(const std::string& name) const {
  return find_type(models, name);
}

const RunType& RunTypes::data_set(const std::string& name) const {
  return find_type(data, name);
}

const RunTypes& built_in_types() {
  static const RunTypes types{
      {gpt_type(), llama_type(), bert_type(), cnn_type(), alexnet_type()},
      {tokens_type(), text_type(), json_lines_type(), labelled_text_type(), images_type(), mixture_type()}};
  return types;
}

} // namespace trireme::config
