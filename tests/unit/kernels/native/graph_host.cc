// Makes passes of a graph in ONNX Runtime with a library of operators, where there is no Python.
//
//   graph_host RUNTIME OPERATORS GRAPH OUTPUT PASS...
//
// PASS has for each input a line `name type rank dims... bytes` and the bytes. PASS.results gets the
// bytes of the output, and then of the inputs, of which the graph writes to some. Prints the
// instruction set that the operators use.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "ort_abi.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace {

using namespace edgespec;

// What programs need that open sessions.
enum HostSlot : int {
  GetErrorMessage = 2,
  CreateEnv = 3,
  CreateSession = 7,
  Run = 9,
  CreateSessionOptions = 10,
  SetIntraOpNumThreads = 24,
  RegisterCustomOpsLibrary = 29,
  CreateTensorWithData = 49,
  GetTensorShapeElementCount = 64,
  CreateCpuMemoryInfo = 69,
  ReleaseSession = 95,
  ReleaseValue = 96,
  ReleaseSessionOptions = 100,
};
constexpr int Errors = 3, Threads = 2;
constexpr int DeviceAllocator = 0, DefaultMemory = 0;

[[noreturn]] void fail(const std::string& why) {
  std::cerr << why << "\n";
  std::exit(1);
}

#ifdef _WIN32
using PathChar = wchar_t;
using Library = HMODULE;
Library load(const char* path) { return LoadLibraryA(path); }
void* symbol(Library library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(library, name));
}
void unload(Library library) { FreeLibrary(library); }
#else
using PathChar = char;
using Library = void*;
Library load(const char* path) { return dlopen(path, RTLD_NOW); }
void* symbol(Library library, const char* name) { return dlsym(library, name); }
void unload(Library library) { dlclose(library); }
#endif

template <class Result>
Result call_symbol(Library library, const char* name) {
  void* const found = library ? symbol(library, name) : nullptr;
  if (!found) fail(std::string("no library with ") + name);
  return reinterpret_cast<Result (*)()>(found)();
}

Api api;

template <class... Arguments>
void ask(int slot, Arguments... arguments) {
  if (void* status = call_api<void*>(api, Slot(slot), arguments...))
    fail(call_api<const char*>(api, Slot(GetErrorMessage), status));
}

void release(HostSlot slot, void* object) { call_api<void>(api, Slot(slot), object); }

struct Input {
  std::string name;
  int type;
  std::vector<int64_t> dims;
  std::vector<char> bytes;
};

std::vector<Input> read_inputs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Input> inputs;
  Input input;
  while (file >> input.name) {
    size_t rank, bytes;
    file >> input.type >> rank;
    input.dims.resize(rank);
    for (int64_t& dim : input.dims) file >> dim;
    file >> bytes;
    file.get();
    input.bytes.resize(bytes);
    if (!file.read(input.bytes.data(), std::streamsize(bytes))) fail(path + " is short");
    inputs.push_back(input);
  }
  return inputs;
}

void make_pass(void* session, const char* output, const std::string& path) {
  std::vector<Input> inputs = read_inputs(path);
  void* memory;
  ask(CreateCpuMemoryInfo, DeviceAllocator, DefaultMemory, &memory);
  std::vector<const char*> names;
  std::vector<void*> values;
  for (Input& each : inputs) {
    void* value;
    ask(CreateTensorWithData, memory, static_cast<void*>(each.bytes.data()), each.bytes.size(),
        each.dims.data(), each.dims.size(), each.type, &value);
    names.push_back(each.name.c_str());
    values.push_back(value);
  }
  void *result = nullptr, *shape, *data;
  size_t elements;
  ask(Run, session, nullptr, names.data(), values.data(), values.size(), &output, size_t(1),
      &result);
  ask(GetTensorTypeAndShape, result, &shape);
  ask(GetTensorShapeElementCount, shape, &elements);
  ask(GetTensorMutableData, result, &data);
  std::ofstream file(path + ".results", std::ios::binary);
  file.write(static_cast<char*>(data), std::streamsize(elements * sizeof(float)));
  for (const Input& each : inputs) file.write(each.bytes.data(), std::streamsize(each.bytes.size()));
  file.close();
  if (!file) fail("cannot write beside " + path);
  release(HostSlot(ReleaseTensorTypeAndShapeInfo), shape);
  release(ReleaseValue, result);
  for (void* each : values) release(ReleaseValue, each);
}

void* open_session(const std::string& graph, void* options) {
  void *environment, *session;
  ask(CreateEnv, Errors, "graph_host", &environment);
  const std::basic_string<PathChar> path(graph.begin(), graph.end());
  ask(CreateSession, environment, path.c_str(), options, &session);
  return session;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 6) fail("graph_host RUNTIME OPERATORS GRAPH OUTPUT PASS...");
  const Library runtime = load(arguments[1]), operators = load(arguments[2]);
  api = call_symbol<ApiBase*>(runtime, "OrtGetApiBase")->get_api(ApiVersion);
  const char* kernels = call_symbol<const char*>(operators, "edgespec_kernels");
  void *options, *registered;
  ask(CreateSessionOptions, &options);
  ask(SetIntraOpNumThreads, options, Threads);
  ask(RegisterCustomOpsLibrary, options, arguments[2], &registered);
  void* session = open_session(arguments[3], options);
  for (int i = 5; i < count; ++i) make_pass(session, arguments[4], arguments[i]);
  std::cout << kernels << std::endl;
  release(ReleaseSession, session);
  release(ReleaseSessionOptions, options);
  // Some of the library's code runs as it is unloaded, or else as the process ends.
  unload(static_cast<Library>(registered));
  unload(operators);
}
