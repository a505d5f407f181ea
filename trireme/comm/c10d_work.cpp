#include <trireme/comm/c10d_work.h>

#include <trireme/comm/store_handle.h>

namespace trireme::comm {

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

Trouble trouble_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Trouble& trouble) {
    return trouble;
  } catch (const std::exception& problem) {
    const std::string text = plain_text(problem);
    const bool late = text.find("imed out") != std::string::npos || text.find("timing out") != std::string::npos;
    return Trouble(late ? Trouble::Kind::deadline : Trouble::Kind::lost, text);
  } catch (...) {
    return Trouble(Trouble::Kind::lost, "libtorch failed without a reason");
  }
}

} // namespace trireme::comm
