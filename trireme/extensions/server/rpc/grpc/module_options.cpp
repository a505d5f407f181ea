#include <trireme/extensions/server/rpc/grpc/module_options.h>

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace trireme::rpc::grpc {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

Bio reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

/// Refuses keys with a password, because nobody can be asked for it.
int no_password(char*, int, int, void*) {
  return 0;
}

/// Checks certificate and key first, because gRPC's own errors do not help.
void check_pair(const Settings& settings) {
  const Certificate certificate(PEM_read_bio_X509(reader(settings.certificate).get(), nullptr, no_password, nullptr));
  if (!certificate) {
    throw Failure(true, "the file of TRIREME_TLS_CERTIFICATE has no certificate in PEM.",
                  "It begins with -----BEGIN CERTIFICATE-----; see docs/grpc.md.");
  }
  const Key key(PEM_read_bio_PrivateKey(reader(settings.key).get(), nullptr, no_password, nullptr));
  if (!key) {
    throw Failure(true, "the file of TRIREME_TLS_KEY has no private key in PEM without a password.",
                  "See docs/grpc.md for how to make one.");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    throw Failure(true, "the key in TRIREME_TLS_KEY does not belong to the certificate in TRIREME_TLS_CERTIFICATE.",
                  "Use a certificate and a key that were made as a pair.");
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    throw Failure(true, "the certificate in TRIREME_TLS_CERTIFICATE has expired.", "Make a new one, see docs/grpc.md.");
  }
}

void check_authority(const Settings& settings, const char* variable) {
  const Certificate certificate(PEM_read_bio_X509(reader(settings.authority).get(), nullptr, no_password, nullptr));
  if (!certificate) {
    throw Failure(true, std::string("the file of ") + variable + " has no certificate in PEM.",
                  "It begins with -----BEGIN CERTIFICATE-----; see docs/grpc.md.");
  }
}

std::mutex log_mutex;
std::string& log_line() {
  static auto* const line = new std::string;
  return *line;
}

void keep_line(gpr_log_func_args* line) {
  if (line->severity == GPR_LOG_SEVERITY_ERROR) {
    const std::lock_guard lock(log_mutex);
    log_line() = line->message;
  }
}

} // namespace

std::string_view view(Text text) {
  return text.size == 0 ? std::string_view() : std::string_view(text.data, text.size);
}

std::string string(Text text) {
  return std::string(view(text));
}

void fill(Trouble* trouble, bool input, std::string_view happened, std::string_view next) {
  const auto put = [](char* to, size_t capacity, std::string_view from) {
    const size_t bytes = std::min(capacity - 1, from.size());
    std::memcpy(to, from.data(), bytes);
    to[bytes] = '\0';
  };
  trouble->input = input ? 1 : 0;
  put(trouble->happened, sizeof(trouble->happened), happened);
  put(trouble->next, sizeof(trouble->next), next);
}

Settings::Settings(const Options& options)
    : target(string(options.target)),
      listening(options.listening),
      tls(options.tls != 0),
      certificate(string(options.certificate)),
      key(string(options.key)),
      authority(string(options.authority)),
      job(string(options.job)),
      ask_after_ms(static_cast<int>(options.ask_after_ms)),
      give_up_after_ms(static_cast<int>(options.give_up_after_ms)) {
  if (options.secret.size != 0) {
    secret = store::Secret(view(options.secret));
  }
}

std::shared_ptr<::grpc::ServerCredentials> server_credentials(const Settings& settings) {
  if (!settings.tls) {
    return ::grpc::InsecureServerCredentials();
  }
  check_pair(settings);
  ::grpc::SslServerCredentialsOptions options(settings.authority.empty()
                                                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                  : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (!settings.authority.empty()) {
    check_authority(settings, "TRIREME_TLS_CLIENT_CA");
  }
  options.pem_root_certs = settings.authority;
  options.pem_key_cert_pairs.push_back({settings.key, settings.certificate});
  return ::grpc::SslServerCredentials(options);
}

std::shared_ptr<::grpc::ChannelCredentials> channel_credentials(const Settings& settings) {
  if (!settings.tls) {
    return ::grpc::InsecureChannelCredentials();
  }
  if (!settings.authority.empty()) {
    check_authority(settings, "TRIREME_TLS_CA");
  }
  if (!settings.certificate.empty()) {
    check_pair(settings);
  }
  ::grpc::SslCredentialsOptions options;
  options.pem_root_certs = settings.authority;
  options.pem_private_key = settings.key;
  options.pem_cert_chain = settings.certificate;
  return ::grpc::SslCredentials(options);
}

void set_arguments(const Settings& settings, const std::function<void(const char*, int)>& set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, settings.ask_after_ms);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, settings.give_up_after_ms);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1);
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
}

void keep_log() {
  static const bool kept = [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_function(keep_line);
    }
    return true;
  }();
  (void)kept;
}

std::string last_log() {
  const std::lock_guard lock(log_mutex);
  return log_line();
}

} // namespace trireme::rpc::grpc
