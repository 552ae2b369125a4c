// The library's entry, and what operators see of ONNX Runtime.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "kernels.h"
#include "exported.h"
#include "op.h"

namespace edgespec {
namespace {

Api api = nullptr;
std::atomic<size_t> most_threads{SIZE_MAX};  // that take part in a call

template <class... Arguments>
void ask(Slot slot, Arguments... arguments) {
  if (void* status = call_api<void*>(api, slot, arguments...)) {
    call_api<void>(api, ReleaseStatus, status);
    refuse("ONNX Runtime refused call %d of its interface", int(slot));
  }
}

void* failure(const char* operation, const char* what) {
  const std::string text = std::string("edgespec.") + operation + ": " + what;
  return call_api<void*>(api, CreateStatus, int(InvalidArgument), text.c_str());
}

struct Node {
  const Definition* definition;
  Operator* operation;
};

template <class Function>
void* guarded(const Definition& definition, Function function) {
  try {
    function();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return failure(definition.label, "out of memory");
  } catch (const std::exception& error) {
    return failure(definition.label, error.what());
  }
}

const Definition& of(const CustomOp* op) { return *static_cast<const Definition*>(op); }

thread_local struct Arena {
  uint8_t* start = nullptr;
  size_t size = 0;
  ~Arena() { std::free(start); }
} arenas[2];

}  // namespace

Definition::Definition(const char* name_, std::vector<InputKind> inputs_,
                       Operator* (*make_)(const Attributes&))
    : label(name_), kinds(std::move(inputs_)), make(make_) {
  name = [](const CustomOp* op) { return of(op).label; };
  provider = [](const CustomOp*) -> const char* { return nullptr; };
  inputs = [](const CustomOp* op) { return of(op).kinds.size(); };
  input_type = [](const CustomOp* op, size_t i) { return int(of(op).kinds[i].type); };
  input_presence = [](const CustomOp* op, size_t i) { return int(of(op).kinds[i].presence); };
  input_memory = [](const CustomOp*, size_t) { return 0; };
  outputs = [](const CustomOp*) { return size_t(1); };
  output_type = [](const CustomOp*, size_t) { return int(F32); };
  output_presence = [](const CustomOp*, size_t) { return int(Required); };
  variadic_input_least = [](const CustomOp*) { return 1; };
  variadic_input_alike = [](const CustomOp*) { return 1; };
  variadic_output_least = [](const CustomOp*) { return 1; };
  variadic_output_alike = [](const CustomOp*) { return 1; };
  first_version = [](const CustomOp*) { return 1; };
  last_version = [](const CustomOp*) { return 1; };
  create = [](const CustomOp* op, Api, const void* info, void** kernel) {
    return guarded(of(op), [&] {
      *kernel = new Node{&of(op), of(op).make(Attributes(info))};
    });
  };
  compute = [](void* kernel, void* context) {
    const Node& node = *static_cast<Node*>(kernel);
    return guarded(*node.definition, [&] { node.operation->compute(Call(context)); });
  };
  destroy = [](void* kernel) {
    Node* node = static_cast<Node*>(kernel);
    delete node->operation;
    delete node;
  };
}

int64_t Tensor::size() const {
  int64_t all = 1;
  for (int i = 0; i < rank; ++i) all *= dims[i];
  return all;
}

void Tensor::check(const char* name, ElementType wanted,
                   std::initializer_list<int64_t> shape) const {
  if (!data) refuse("input %s is missing", name);
  if (type != wanted) refuse("%s has elements of type %d instead of %d", name, type, wanted);
  if (rank != int(shape.size())) refuse("%s has %d dimensions instead of %d", name, rank,
                                        int(shape.size()));
  int i = 0;
  for (int64_t want : shape) {
    if (want >= 0 && dims[i] != want)
      refuse("dimension %d of %s is %lld instead of %lld", i, name, (long long)dims[i],
             (long long)want);
    ++i;
  }
}

int64_t Attributes::integer(const char* name, int64_t otherwise) const {
  int64_t value;
  void* status = call_api<void*>(api, KernelInfoGetAttributeInt64, info_, name, &value);
  if (!status) return value;
  call_api<void>(api, ReleaseStatus, status);
  return otherwise;
}

float Attributes::real(const char* name, float otherwise) const {
  float value;
  void* status = call_api<void*>(api, KernelInfoGetAttributeFloat, info_, name, &value);
  if (!status) return value;
  call_api<void>(api, ReleaseStatus, status);
  return otherwise;
}

std::string Attributes::text(const char* name) const {
  char value[1024];
  size_t size = sizeof value;
  void* status = call_api<void*>(api, KernelInfoGetAttributeString, info_, name, value, &size);
  if (!status) return value;
  call_api<void>(api, ReleaseStatus, status);
  return "";
}

std::vector<int64_t> Attributes::integers(const char* name) const {
  int64_t values[64];
  size_t count = 64;
  void* status = call_api<void*>(api, KernelInfoGetAttributeArrayInt64, info_, name, values, &count);
  if (!status) return std::vector<int64_t>(values, values + count);
  call_api<void>(api, ReleaseStatus, status);
  return {};
}

int Call::inputs() const {
  size_t count = 0;
  ask(KernelContextGetInputCount, context_, &count);
  return int(count);
}

Tensor Call::input(int index) const {
  void* value = nullptr;
  ask(KernelContextGetInput, context_, size_t(index), &value);
  Tensor found;
  if (!value) return found;
  void* shape = nullptr;
  size_t rank = 0;
  int type = 0;
  ask(GetTensorTypeAndShape, value, &shape);
  ask(GetDimensionsCount, shape, &rank);
  ask(GetTensorElementType, shape, &type);
  found.rank = int(rank);
  found.type = ElementType(type);
  if (rank <= MostDims) ask(GetDimensions, shape, found.dims, rank);
  call_api<void>(api, ReleaseTensorTypeAndShapeInfo, shape);
  if (rank > MostDims) refuse("input %d has %d dimensions", index, int(rank));
  ask(GetTensorMutableData, value, &found.data);
  static char nothing[64];
  if (!found.data) found.data = nothing;  // a tensor without elements
  return found;
}

float* Call::output(int index, const int64_t* dims, int rank) const {
  void* value = nullptr;
  void* data = nullptr;
  ask(KernelContextGetOutput, context_, size_t(index), dims, size_t(rank), &value);
  ask(GetTensorMutableData, value, &data);
  return static_cast<float*>(data);
}

void Call::run_parts(void (*function)(void*, size_t), size_t parts, void* data) const {
  const size_t most = most_threads.load(std::memory_order_relaxed);
  if (parts <= most) return ask(KernelContextParallelFor, context_, function, parts, size_t(0), data);
  struct Taken {
    void (*function)(void*, size_t);
    size_t parts;
    void* data;
    std::atomic<size_t> next{0};
  } all{function, parts, data};
  const auto take = [](void* given, size_t) {
    Taken& all = *static_cast<Taken*>(given);
    for (size_t part; (part = all.next.fetch_add(1, std::memory_order_relaxed)) < all.parts;)
      all.function(all.data, part);
  };
  if (most == 1) return take(&all, 0);  // the other threads sleep on
  void (*const each)(void*, size_t) = take;
  ask(KernelContextParallelFor, context_, each, most, size_t(0), &all);
}

Space::Space(Scratch which, size_t bytes) {
  Arena& arena = arenas[int(which)];
  if (arena.size < bytes + 64) {
    std::free(arena.start);
    arena.size = 0;
    const size_t wanted = bytes + bytes / 4 + 64;
    arena.start = static_cast<uint8_t*>(std::malloc(wanted));
    if (!arena.start) throw std::bad_alloc();
    arena.size = wanted;
  }
  next_ = arena.start + (-reinterpret_cast<uintptr_t>(arena.start) & 63);
}

}  // namespace edgespec

// Lets so many threads, 1 or more, take part in each call of an operator of this process.
EXPORTED void edgespec_use_threads(int64_t most) {
  edgespec::most_threads.store(size_t(most), std::memory_order_relaxed);
}

EXPORTED void* RegisterCustomOps(void* options, edgespec::ApiBase* base) {
  using namespace edgespec;
  const Api found = base->get_api(ApiVersion);
  if (!found) return nullptr;  // older: the session then names the operator that it does not know
  api = found;
  if (!kernels_or_none()) {
    const std::string text = std::string("EDGESPEC_KERNELS is '") + std::getenv("EDGESPEC_KERNELS") +
                             "': choose one of " + names_of_kernels();
    return call_api<void*>(api, CreateStatus, int(InvalidArgument), text.c_str());
  }
  static void* domain = nullptr;
  if (!domain) {
    void* status = call_api<void*>(api, CreateCustomOpDomain, "edgespec", &domain);
    for (Definition* each : {&block_linear(), &block_embedding(), &tree_attention(), &gated_unit(),
                             &expert_linear(), &low_rank(), &short_conv(), &gated_delta(),
                             &state_space(), &norm(), &moments(), &softmax(), &sigmoid()})
      if (!status) status = call_api<void*>(api, CustomOpDomainAdd, domain,
                                            static_cast<CustomOp*>(each));
    if (status) return status;
  }
  return call_api<void*>(api, AddCustomOpDomain, options, domain);
}
