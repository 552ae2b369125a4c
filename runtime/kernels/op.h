// What operators see of ONNX Runtime: attributes, tensors, threads and errors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace edgespec {

// A graph or a call that does not fit; becomes an error of the session.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Refused(text);
}

constexpr int MostDims = 5;

struct Tensor {
  void* data = nullptr;  // null: an optional input that is not given
  ElementType type = Any;
  int rank = 0;
  int64_t dims[MostDims] = {};

  template <class T>
  T* as() const { return static_cast<T*>(data); }
  explicit operator bool() const { return data != nullptr; }
  int64_t size() const;
  // Refuses another type, or other dims; negative ones may be any.
  void check(const char* name, ElementType wanted, std::initializer_list<int64_t> shape) const;
};

// A node's attributes.
class Attributes {
 public:
  explicit Attributes(const void* info) : info_(info) {}
  int64_t integer(const char* name, int64_t otherwise) const;
  float real(const char* name, float otherwise) const;
  std::string text(const char* name) const;  // empty if there is none
  std::vector<int64_t> integers(const char* name) const;

 private:
  const void* info_;
};

// One call of a node.
class Call {
 public:
  explicit Call(void* context) : context_(context) {}
  int inputs() const;
  Tensor input(int index) const;
  float* output(int index, const int64_t* dims, int rank) const;
  float* output(int index, std::initializer_list<int64_t> dims) const {
    return output(index, dims.begin(), int(dims.size()));
  }
  // Runs function(0) ... function(parts - 1) on the session's threads.
  template <class Function>
  void parallel(int64_t parts, const Function& function) const {
    if (parts == 1) return function(0);
    struct Parts {
      const Function& function;
      std::atomic<bool> failed{false};  // exceptions must not reach the session's threads
    } all{function};
    if (parts > 0)
      run_parts(
          [](void* data, size_t part) {
            Parts& parts = *static_cast<Parts*>(data);
            try {
              parts.function(int64_t(part));
            } catch (...) {
              parts.failed = true;
            }
          },
          size_t(parts), &all);
    if (all.failed) throw std::bad_alloc();
  }
  // Runs function(0) ... function(count - 1), in few parts, since each is soon done.
  template <class Function>
  void each(int64_t count, const Function& function) const {
    const int64_t parts = count < 8 ? 1 : 8;
    parallel(parts, [&](int64_t part) {
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) function(i);
    });
  }
  // Runs function(row) for rows of so many numbers, in parts that are worth a thread.
  template <class Function>
  void by_row(int64_t rows, int64_t width, const Function& function) const {
    constexpr int64_t PartNumbers = 1 << 14;
    const int64_t parts = std::min<int64_t>(rows, rows * width / PartNumbers + 1);
    parallel(parts, [&](int64_t part) {
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) function(r);
    });
  }

 private:
  void run_parts(void (*function)(void*, size_t), size_t parts, void* data) const;
  void* context_;
};

// Memory for one call of a node (Shared) or one part of it (Own) on this thread. It is kept, so
// that calls allocate nothing once it has grown.
enum class Scratch { Shared, Own };
class Space {
 public:
  Space(Scratch which, size_t bytes);
  // The next `count` values, aligned to 64 bytes.
  template <class T>
  T* take(int64_t count) {
    T* found = reinterpret_cast<T*>(next_);
    next_ += bytes_of<T>(count);
    return found;
  }
  template <class T>
  static size_t bytes_of(int64_t count) { return (size_t(count) * sizeof(T) + 63) / 64 * 64; }

 private:
  uint8_t* next_;
};

class Operator {
 public:
  virtual ~Operator() = default;
  virtual void compute(const Call& call) = 0;
};

struct InputKind {
  ElementType type;
  Presence presence = Required;
};

// What a graph may name in the domain `edgespec`.
struct Definition : CustomOp {
  Definition(const char* name, std::vector<InputKind> inputs, Operator* (*make)(const Attributes&));
  const char* label;
  std::vector<InputKind> kinds;
  Operator* (*make)(const Attributes&);
};

Definition& block_linear();
Definition& block_embedding();
Definition& tree_attention();
Definition& gated_unit();
Definition& expert_linear();
Definition& low_rank();
Definition& short_conv();
Definition& gated_delta();
Definition& state_space();
Definition& norm();
Definition& moments();
Definition& softmax();
Definition& sigmoid();

}  // namespace edgespec
