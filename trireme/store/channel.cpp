#include <trireme/store/channel.h>

#include <trireme/base/clock.h>
#include <trireme/base/units.h>
#include <trireme/store/messages.h>
#include <trireme/store/transfer.h>

namespace trireme::store {
namespace {

class SocketChannel final : public Channel {
 public:
  explicit SocketChannel(Descriptor socket) : socket_(std::move(socket)) {}

  std::string exchange(const std::string& request, std::chrono::milliseconds patience) override {
    const auto deadline = Clock::now() + patience;
    const auto must = [&](Transfer transfer) {
      if (transfer == Transfer::late) {
        const double seconds = static_cast<double>(patience.count()) / 1000;
        throw LostError(concat("it has not answered for ", format_seconds(seconds)));
      }
      if (transfer != Transfer::done) {
        throw LostError("the connection has been closed");
      }
    };
    must(send_all(socket_.get(), request, deadline));
    std::string reply(kLengthBytes, '\0');
    must(receive_all(socket_.get(), reply.data(), reply.size(), deadline));
    try {
      reply.resize(message_length(reply));
    } catch (const BadMessage&) {
      must(Transfer::ended);
    }
    must(receive_all(socket_.get(), reply.data(), reply.size(), deadline));
    return reply;
  }

 private:
  Descriptor socket_;
};

} // namespace

std::unique_ptr<Channel> make_socket_channel(Descriptor socket) {
  return std::make_unique<SocketChannel>(std::move(socket));
}

} // namespace trireme::store
