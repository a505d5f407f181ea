#pragma once

#include <trireme/config/run_file.h>

namespace trireme::config {

/// Checks that data of type images has a file of labels for each file of images. Errors: InputError with the place of
/// the labels.
void check_images(const JsonNode& root, const RunConfig& run);

} // namespace trireme::config
