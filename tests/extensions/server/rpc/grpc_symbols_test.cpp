// libtorch has a protobuf of its own in it and exports names of it; gRPC usually comes with another. A process that
// mixes the two corrupts its memory (pytorch#14573, grpc#19240), so nothing that grpc:// brings along may have one, or
// find libtorch's.
#define ONNX_NAMESPACE onnx_torch // as in the libtorch that was built

#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/command.h"

#include <gmock/gmock.h>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/serialization/export.h>

#include <link.h>

#include <fstream>
#include <regex>
#include <set>

namespace trireme::rpc {
namespace {

using testing::HasSubstr;

std::set<std::string> loaded() {
  std::set<std::string> names;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        static_cast<std::set<std::string>*>(into)->insert(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

/// Work for libtorch's protobuf: a model is written in ONNX's format, read again, checked, and printed.
std::string through_torchs_protobuf() {
  const auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(
      "graph(%x : Float(2, 3), %w : Float(2, 3)):\n  %y : Float(2, 3) = onnx::Add(%x, %w)\n  %z : Float(2, 3) = "
      "onnx::Relu(%y)\n  return (%z)\n",
      graph.get());
  const std::map<std::string, at::Tensor> weights = {{"w", torch::arange(6, torch::kFloat32).view({2, 3})}};
  const auto exported = torch::jit::export_onnx(graph, weights, 13, {});
  const std::string bytes = torch::jit::serialize_model_proto_to_string(std::get<0>(exported));
  torch::jit::check_onnx_proto(bytes);
  return bytes + torch::jit::pretty_print_onnx(graph, weights, 13, false, torch::onnx::OperatorExportTypes::ONNX,
                                               /*google_printer=*/true);
}

std::string through_grpc() {
  test::EchoServer server("grpc://127.0.0.1:0");
  const auto client = connect(server.address(), test::kAccess, test::soon());
  const std::vector<std::byte> body(size_t{3} << 20, std::byte{7});
  std::vector<std::byte> room(body.size());
  const std::string header = client->call("x", body, room)->wait(test::soon());
  return room == body ? header : "wrong bytes";
}

class GrpcSymbolsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

TEST_F(GrpcSymbolsTest, BothProtobufsWorkInOneProcess) {
  const std::string before = through_torchs_protobuf();
  EXPECT_THAT(before, HasSubstr("op_type: \"Relu\""));
  const auto without = loaded();
  EXPECT_EQ(through_grpc(), "echo x");
  EXPECT_EQ(through_torchs_protobuf(), before);
  std::thread both([&] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(through_torchs_protobuf(), before);
    }
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(through_grpc(), "echo x");
  }
  both.join();
  std::string brought;
  for (const auto& name : loaded()) {
    if (without.count(name) == 0) {
      brought += name + "\n";
    }
  }
  EXPECT_THAT(brought, HasSubstr("libtrireme_grpc.so"));
  EXPECT_THAT(brought, HasSubstr("libgrpc"));
  EXPECT_THAT(brought, testing::Not(HasSubstr("protobuf")));
}

/// The C++ library's names are the same in all libraries of a process, wherever the first of them lies; the wheel's
/// libtorch has some.
bool is_of_std(const std::string& name) {
  static const std::regex standard("^_Z(N[KR]*|T[ISV]N?)?St.*");
  static const std::regex others(".*(google|absl|grpc|upb|re2).*");
  return std::regex_match(name, standard) && !std::regex_match(name, others);
}

// The dynamic linker tells to which library it bound each name, of the module and of all that came with it.
TEST_F(GrpcSymbolsTest, NoNameOfTheModuleIsBoundToLibtorch) {
  std::string folder = testing::TempDir() + "trireme_bindings_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto [status, output] =
      test::run_command("LD_DEBUG=bindings LD_DEBUG_OUTPUT='" + folder + "/log' LD_BIND_NOW=1 '" + program +
                        "' --gtest_filter=GrpcSymbolsTest.BothProtobufsWorkInOneProcess");
  EXPECT_EQ(status, 0) << output;
  int of_grpc = 0;
  int to_libtorch = 0;
  int of_protobuf = 0;
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream log(entry.path());
    for (std::string line; std::getline(log, line);) {
      const size_t from = line.find("binding file ");
      const size_t to = line.find(" to ");
      if (from == std::string::npos || to == std::string::npos) {
        continue;
      }
      const std::string binder = line.substr(from, to - from);
      bool ours = false;
      for (const char* library :
           {"libtrireme_grpc", "libgrpc", "libgpr", "libupb", "libabsl", "libaddress_sorting", "libre2", "libcares"}) {
        ours = ours || binder.find(library) != std::string::npos;
      }
      if (!ours) {
        continue;
      }
      ++of_grpc;
      const std::string rest = line.substr(to);
      const size_t quote = rest.find('`');
      const std::string name =
          quote == std::string::npos ? "" : rest.substr(quote + 1, rest.find('\'', quote) - quote - 1);
      const bool torchs = (rest.find("libtorch") < quote || rest.find("libc10") < quote) && !is_of_std(name);
      to_libtorch += torchs ? 1 : 0;
      of_protobuf += name.find("6google8protobuf") != std::string::npos ? 1 : 0;
      if (torchs && first.empty()) {
        first = line;
      }
    }
  }
  std::filesystem::remove_all(folder);
  EXPECT_GT(of_grpc, 1000) << "the linker tells nothing";
  EXPECT_EQ(to_libtorch, 0) << first;
  EXPECT_EQ(of_protobuf, 0);
}

} // namespace
} // namespace trireme::rpc
