#include "folder_fixture.h"

#include <tests/support/folders.h>
#include <trireme/checkpoint/safetensors.h>

#include <ATen/ATen.h>

namespace trireme::checkpoint {
namespace {

// Runs tests/checkpoint/cross_check.py, which uses Hugging Face's safetensors, and returns what it prints.
std::string cross_check(const std::string& verb, const fs::path& file) {
  const std::string command = concat('"', test::python(), "\" \"", test::source_dir(),
                                     "/tests/checkpoint/cross_check.py\" ", verb, " \"", file.string(), "\" 2>&1");
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    output += static_cast<char>(c);
  }
  ::pclose(pipe);
  return output;
}

// The same rule as in cross_check.py.
std::vector<NamedTensor> expected_tensors() {
  const std::pair<const char*, at::ScalarType> types[] = {
      {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16}, {"F64", at::kDouble}, {"I64", at::kLong},
      {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},       {"U8", at::kByte},    {"BOOL", at::kBool}};
  const std::pair<const char*, std::vector<int64_t>> shapes[] = {
      {"matrix", {5, 7}}, {"vector", {13}}, {"scalar", {}}, {"empty", {3, 0}}};
  std::vector<NamedTensor> tensors;
  for (const auto& [type_name, type] : types) {
    for (const auto& [kind, shape] : shapes) {
      const at::Tensor i = at::arange(c10::multiply_integers(shape), at::kLong);
      const at::Tensor values =
          type == at::kBool ? i.remainder(3).eq(0) : (i * 7 + 3).remainder(101) - (type == at::kByte ? 0 : 50);
      tensors.push_back({concat(type_name, '.', kind, " \u00e9\""), values.to(type).reshape(shape)});
    }
  }
  return tensors;
}

class SafetensorsPythonTest : public FolderTest {};

TEST_F(SafetensorsPythonTest, HuggingFaceReadsWhatWeWrite) {
  write_safetensors(folder_ / "ours.safetensors", expected_tensors(), {{"format", "pt"}, {"author", "caf\u00e9"}});
  EXPECT_EQ(cross_check("check", folder_ / "ours.safetensors"), "equal 40\n");
}

TEST_F(SafetensorsPythonTest, WeReadWhatHuggingFaceWrites) {
  ASSERT_EQ(cross_check("write", folder_ / "theirs.safetensors"), "equal 40\n");
  const Safetensors read = Safetensors::open(folder_ / "theirs.safetensors");
  EXPECT_EQ(read.metadata().at("author"), "caf\u00e9");
  const std::vector<NamedTensor> expected = expected_tensors();
  ASSERT_EQ(read.tensors().size(), expected.size());
  for (const NamedTensor& tensor : expected) {
    const at::Tensor found = read.tensor(tensor.name);
    EXPECT_EQ(found.scalar_type(), tensor.tensor.scalar_type()) << tensor.name;
    EXPECT_TRUE(at::equal(found, tensor.tensor)) << tensor.name;
  }
}

} // namespace
} // namespace trireme::checkpoint
