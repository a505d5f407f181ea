#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Reads the character vectors of an R lazy-load database (`data/Rdata.rdb` of an installed R package) without R. The
/// file has blocks of a 4-byte big-endian length and a zlib stream of R's XDR serialisation, versions 2 and 3 (R
/// Internals, "Serialization Formats").
///
/// Returns one list of UTF-8 strings per block, in the order of the file; NA becomes "". Errors: InputError with
/// `source`, block and offset for truncated or damaged data, and for R objects other than character vectors without
/// attributes.
std::vector<std::vector<std::string>> read_rdb(std::string_view bytes, const std::string& source);

} // namespace trireme::data
