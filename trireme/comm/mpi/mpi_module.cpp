// The only file that includes <mpi.h>; see mpi_functions.h.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <trireme/comm/mpi/mpi_functions.h>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace trireme::comm::mpi {
namespace {

using kernels::Combine;
using kernels::Element;

struct Requests {
  std::vector<MPI_Request> all;
};

struct MpiRuntime {
  CombineFunction combine = nullptr;
  int64_t most = 1 << 30;
  bool started_here = false;
  MPI_Comm meeting = MPI_COMM_NULL;
  MPI_Datatype half = MPI_DATATYPE_NULL;
  MPI_Datatype bfloat16 = MPI_DATATYPE_NULL;
  /// By element and combine; MPI_OP_NULL if MPI's own is used.
  std::array<std::array<MPI_Op, 3>, 4> own_ops{};
};

MpiRuntime& state() {
  static MpiRuntime instance;
  return instance;
}

MPI_Comm& comm_of(Communicator communicator) {
  return *static_cast<MPI_Comm*>(communicator);
}

/// Runs `call` with storage for its requests; returns the operation on success.
template <typename Call>
int begin(Operation* operation, const Call& call) {
  auto* requests = new Requests;
  const int code = call(*requests);
  if (code != MPI_SUCCESS) {
    delete requests; // earlier requests end with the communicator, which is not used after an error
    return code;
  }
  *operation = requests;
  return MPI_SUCCESS;
}

MPI_Request* next(Requests& requests) {
  requests.all.push_back(MPI_REQUEST_NULL);
  return &requests.all.back();
}

/// A datatype of this many bytes, for counts that overflow an int, or that an MPI would add up in an
/// int.
struct Bytes {
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
  bool own = false;

  int make(int64_t bytes, int64_t in_all) {
    const int64_t most = state().most;
    if (in_all <= most) {
      count = static_cast<int>(bytes);
      return MPI_SUCCESS;
    }
    count = 1;
    own = true;
    const int64_t whole = bytes / most;
    MPI_Datatype chunk = MPI_DATATYPE_NULL;
    std::array<MPI_Datatype, 2> parts = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
    const std::array<int, 2> ones = {1, 1};
    const std::array<MPI_Aint, 2> at = {0, static_cast<MPI_Aint>(whole * most)};
    int code = MPI_Type_contiguous(static_cast<int>(most), MPI_BYTE, &chunk);
    code = code != MPI_SUCCESS ? code : MPI_Type_contiguous(static_cast<int>(whole), chunk, &parts[0]);
    code = code != MPI_SUCCESS ? code : MPI_Type_contiguous(static_cast<int>(bytes % most), MPI_BYTE, &parts[1]);
    code = code != MPI_SUCCESS ? code : MPI_Type_create_struct(2, ones.data(), at.data(), parts.data(), &type);
    code = code != MPI_SUCCESS ? code : MPI_Type_commit(&type);
    for (MPI_Datatype* part : {&chunk, &parts[0], &parts[1]}) {
      if (*part != MPI_DATATYPE_NULL) {
        MPI_Type_free(part);
      }
    }
    return code;
  }
  ~Bytes() {
    if (own && type != MPI_BYTE && type != MPI_DATATYPE_NULL) {
      MPI_Type_free(&type); // operations in progress keep it
    }
  }
};

MPI_Datatype type_of(Element element) {
  switch (element) {
    case Element::f32:
      return MPI_FLOAT;
    case Element::f64:
      return MPI_DOUBLE;
    case Element::f16:
      return state().half;
    case Element::bf16:
      return state().bfloat16;
    case Element::u8:
      return MPI_UINT8_T;
    case Element::i8:
      return MPI_INT8_T;
    case Element::i16:
      return MPI_INT16_T;
    case Element::i32:
      return MPI_INT32_T;
    case Element::i64:
      return MPI_INT64_T;
  }
  return MPI_DATATYPE_NULL;
}

int64_t size_of(Element element) {
  switch (element) {
    case Element::u8:
    case Element::i8:
      return 1;
    case Element::f16:
    case Element::bf16:
    case Element::i16:
      return 2;
    case Element::f32:
    case Element::i32:
      return 4;
    case Element::f64:
    case Element::i64:
      return 8;
  }
  return 0;
}

template <Element element, Combine combine>
void user_op(void* in, void* inout, int* count, MPI_Datatype*) {
  state().combine(in, inout, *count, element, combine);
}

template <Element element, Combine combine>
int make_op() {
  return MPI_Op_create(user_op<element, combine>, 1,
                       &state().own_ops[static_cast<size_t>(element)][static_cast<size_t>(combine)]);
}

/// MPI has no 16-bit floats, and its MAX and MIN may lose a NaN.
int make_ops() {
  static_assert(static_cast<int>(Element::f32) == 0 && static_cast<int>(Element::bf16) == 3 &&
                static_cast<int>(Combine::sum) == 0);
  for (auto& row : state().own_ops) {
    row.fill(MPI_OP_NULL);
  }
  for (const auto make :
       {make_op<Element::f32, Combine::max>, make_op<Element::f32, Combine::min>, make_op<Element::f64, Combine::max>,
        make_op<Element::f64, Combine::min>, make_op<Element::f16, Combine::sum>, make_op<Element::f16, Combine::max>,
        make_op<Element::f16, Combine::min>, make_op<Element::bf16, Combine::sum>, make_op<Element::bf16, Combine::max>,
        make_op<Element::bf16, Combine::min>}) {
    if (const int code = make(); code != MPI_SUCCESS) {
      return code;
    }
  }
  return MPI_SUCCESS;
}

MPI_Op op_of(Element element, Combine combine) {
  const auto row = static_cast<size_t>(element);
  if (row < state().own_ops.size() && state().own_ops[row][static_cast<size_t>(combine)] != MPI_OP_NULL) {
    return state().own_ops[row][static_cast<size_t>(combine)];
  }
  return combine == Combine::sum ? MPI_SUM : combine == Combine::max ? MPI_MAX : MPI_MIN;
}

const char* library() {
  static const std::string text = [] {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> buffer{};
    int length = 0;
    MPI_Get_library_version(buffer.data(), &length);
    return std::string(buffer.data());
  }();
  return text.c_str();
}

int start(CombineFunction combine, int64_t most, int* rank, int* size, int* threads) {
  state().combine = combine;
  state().most = most;
  int initialized = 0;
  int level = MPI_THREAD_SINGLE;
  int code = MPI_Initialized(&initialized);
  if (code == MPI_SUCCESS && initialized == 0) {
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    state().started_here = code == MPI_SUCCESS;
  } else if (code == MPI_SUCCESS) {
    code = MPI_Query_thread(&level);
  }
  if (code != MPI_SUCCESS) {
    return code;
  }
  *threads = level >= MPI_THREAD_SERIALIZED ? 1 : 0;
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  if (*threads == 0) {
    return MPI_SUCCESS;
  }
  // Leaves the error handling of the program's own MPI calls unchanged.
  code = MPI_Comm_dup(MPI_COMM_WORLD, &state().meeting);
  code = code != MPI_SUCCESS ? code : MPI_Comm_set_errhandler(state().meeting, MPI_ERRORS_RETURN);
  for (MPI_Datatype* type : {&state().half, &state().bfloat16}) {
    code = code != MPI_SUCCESS ? code : MPI_Type_contiguous(2, MPI_BYTE, type);
    code = code != MPI_SUCCESS ? code : MPI_Type_commit(type);
  }
  return code != MPI_SUCCESS ? code : make_ops();
}

int meet(Operation* operation) {
  return begin(operation, [&](Requests& requests) { return MPI_Ibarrier(state().meeting, next(requests)); });
}

int finish() {
  MpiRuntime& own = state();
  for (auto& row : own.own_ops) {
    for (MPI_Op& op : row) {
      if (op != MPI_OP_NULL) {
        MPI_Op_free(&op);
      }
    }
  }
  MPI_Type_free(&own.half);
  MPI_Type_free(&own.bfloat16);
  MPI_Comm_free(&own.meeting);
  return own.started_here ? MPI_Finalize() : MPI_SUCCESS;
}

int open(const int* ranks, int count, int tag, Communicator* communicator) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  int code = MPI_Comm_group(state().meeting, &world);
  code = code != MPI_SUCCESS ? code : MPI_Group_incl(world, count, ranks, &members);
  code = code != MPI_SUCCESS ? code : MPI_Comm_create_group(state().meeting, members, tag, &made);
  code = code != MPI_SUCCESS ? code : MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  for (MPI_Group* group : {&world, &members}) {
    if (*group != MPI_GROUP_NULL) {
      MPI_Group_free(group);
    }
  }
  if (code == MPI_SUCCESS) {
    *communicator = new MPI_Comm(made);
  }
  return code;
}

int close(Communicator communicator) {
  const int code = MPI_Comm_free(&comm_of(communicator));
  delete static_cast<MPI_Comm*>(communicator);
  return code;
}

int all_reduce(Communicator communicator, void* data, int64_t count, Element element, Combine combine,
               Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    int code = MPI_SUCCESS;
    for (int64_t at = 0; at < count && code == MPI_SUCCESS; at += state().most) {
      code = MPI_Iallreduce(MPI_IN_PLACE, static_cast<std::byte*>(data) + at * size_of(element),
                            static_cast<int>(std::min(state().most, count - at)), type_of(element),
                            op_of(element, combine), comm_of(communicator), next(requests));
    }
    return code;
  });
}

/// For more elements than one call allows: slices are not contiguous for every rank at once, so each is reduced to its
/// owner.
int reduce_slices(MPI_Comm comm, const std::byte* in, void* out, int64_t count, Element element, Combine combine,
                  Requests& requests) {
  int size = 0;
  int rank = 0;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  int code = MPI_SUCCESS;
  for (int root = 0; root < size; ++root) {
    for (int64_t at = 0; at < count && code == MPI_SUCCESS; at += state().most) {
      code = MPI_Ireduce(in + (root * count + at) * size_of(element),
                         root == rank ? static_cast<std::byte*>(out) + at * size_of(element) : nullptr,
                         static_cast<int>(std::min(state().most, count - at)), type_of(element),
                         op_of(element, combine), root, comm, next(requests));
    }
  }
  return code;
}

int reduce_scatter(Communicator communicator, const void* in, void* out, int64_t count, Element element,
                   Combine combine, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    const MPI_Comm comm = comm_of(communicator);
    int size = 0;
    MPI_Comm_size(comm, &size);
    if (count * size > state().most) {
      return reduce_slices(comm, static_cast<const std::byte*>(in), out, count, element, combine, requests);
    }
    return MPI_Ireduce_scatter_block(in, out, static_cast<int>(count), type_of(element), op_of(element, combine), comm,
                                     next(requests));
  });
}

/// Sum of the bytes of all ranks.
int64_t of_all(Communicator communicator, int64_t bytes) {
  int size = 0;
  MPI_Comm_size(comm_of(communicator), &size);
  return bytes * size;
}

int all_gather(Communicator communicator, const void* in, void* out, int64_t bytes, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    Bytes slice;
    const int code = slice.make(bytes, of_all(communicator, bytes));
    int rank = 0;
    MPI_Comm_rank(comm_of(communicator), &rank);
    const bool in_place = in == static_cast<std::byte*>(out) + rank * bytes;
    return code != MPI_SUCCESS ? code
                               : MPI_Iallgather(in_place ? MPI_IN_PLACE : in, slice.count, slice.type, out, slice.count,
                                                slice.type, comm_of(communicator), next(requests));
  });
}

int broadcast(Communicator communicator, void* data, int64_t bytes, int root, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    Bytes all;
    const int code = all.make(bytes, bytes);
    return code != MPI_SUCCESS ? code
                               : MPI_Ibcast(data, all.count, all.type, root, comm_of(communicator), next(requests));
  });
}

int all_to_all(Communicator communicator, const void* in, void* out, int64_t bytes, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    Bytes slice;
    const int code = slice.make(bytes, of_all(communicator, bytes));
    return code != MPI_SUCCESS ? code
                               : MPI_Ialltoall(in, slice.count, slice.type, out, slice.count, slice.type,
                                               comm_of(communicator), next(requests));
  });
}

int send(Communicator communicator, const void* data, int64_t bytes, int to, int tag, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    Bytes all;
    const int code = all.make(bytes, bytes);
    return code != MPI_SUCCESS ? code
                               : MPI_Isend(data, all.count, all.type, to, tag, comm_of(communicator), next(requests));
  });
}

int recv(Communicator communicator, void* data, int64_t bytes, int from, int tag, Operation* operation) {
  return begin(operation, [&](Requests& requests) {
    Bytes all;
    const int code = all.make(bytes, bytes);
    return code != MPI_SUCCESS ? code
                               : MPI_Irecv(data, all.count, all.type, from, tag, comm_of(communicator), next(requests));
  });
}

int barrier(Communicator communicator, Operation* operation) {
  return begin(operation, [&](Requests& requests) { return MPI_Ibarrier(comm_of(communicator), next(requests)); });
}

int test(Operation operation, int* done) {
  auto* requests = static_cast<Requests*>(operation);
  *done = 0;
  // One by one: a request's error is then the return value, not a status field that may be unset.
  while (!requests->all.empty()) {
    int one = 0;
    const int code = MPI_Test(&requests->all.back(), &one, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
      delete requests;
      return code;
    }
    if (one == 0) {
      return MPI_SUCCESS;
    }
    requests->all.pop_back();
  }
  delete requests;
  *done = 1;
  return MPI_SUCCESS;
}

int64_t largest_tag() {
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
  return found != 0 ? *static_cast<int*>(value) : 32767;
}

void describe(int code, char* text, int capacity) {
  std::array<char, MPI_MAX_ERROR_STRING> buffer{};
  int length = 0;
  MPI_Error_string(code, buffer.data(), &length);
  std::strncpy(text, buffer.data(), static_cast<size_t>(capacity) - 1);
  text[capacity - 1] = '\0';
}

} // namespace
} // namespace trireme::comm::mpi

extern "C" __attribute__((visibility("default"))) const trireme::comm::mpi::Functions* trireme_mpi_functions() {
  using namespace trireme::comm::mpi;
  static const Functions functions = {
      kInterfaceVersion, library,   start,      meet, finish, open,    close, all_reduce,  reduce_scatter,
      all_gather,        broadcast, all_to_all, send, recv,   barrier, test,  largest_tag, describe};
  return &functions;
}
