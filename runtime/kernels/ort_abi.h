// The parts of ONNX Runtime's C interface that an operator library needs, by slot number.
//
// OrtApi is a struct of function pointers that only ever grows at its end, so a slot is stable.
// `ApiVersion` is the version that we ask for; a runtime that is older refuses the library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgespec {

constexpr uint32_t ApiVersion = 17;  // the first with ParallelFor for kernels

using Api = void* const*;

enum Slot : int {
  CreateStatus = 0,
  CreateCustomOpDomain = 26,
  CustomOpDomainAdd = 27,
  AddCustomOpDomain = 28,
  GetTensorMutableData = 51,
  GetTensorElementType = 60,
  GetDimensionsCount = 61,
  GetDimensions = 62,
  GetTensorTypeAndShape = 65,
  KernelInfoGetAttributeFloat = 85,
  KernelInfoGetAttributeInt64 = 86,
  KernelInfoGetAttributeString = 87,
  KernelContextGetInputCount = 88,
  KernelContextGetInput = 90,
  KernelContextGetOutput = 91,
  ReleaseStatus = 93,
  ReleaseTensorTypeAndShapeInfo = 99,
  KernelInfoGetAttributeArrayInt64 = 163,
  KernelContextParallelFor = 274,
};

enum ElementType : int { Any = 0, F32 = 1, U8 = 2, I8 = 3, I32 = 6, I64 = 7, F16 = 10 };

enum ErrorCode : int { Fail = 1, InvalidArgument = 2 };

enum Presence : int { Required = 0, Optional = 1, Variadic = 2 };

template <class Result, class... Arguments>
inline Result call_api(Api api, Slot slot, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(api[slot])(arguments...);
}

// OrtApiBase.
struct ApiBase {
  Api (*get_api)(uint32_t version);
  const char* (*version)();
};

// OrtCustomOp of version 17: what it asks of an operator. Slots that are null are not asked for.
struct CustomOp {
  uint64_t version = ApiVersion;
  void* create_v1 = nullptr;
  const char* (*name)(const CustomOp*) = nullptr;
  const char* (*provider)(const CustomOp*) = nullptr;  // null: the CPU
  int (*input_type)(const CustomOp*, size_t) = nullptr;
  size_t (*inputs)(const CustomOp*) = nullptr;
  int (*output_type)(const CustomOp*, size_t) = nullptr;
  size_t (*outputs)(const CustomOp*) = nullptr;
  void* compute_v1 = nullptr;
  void (*destroy)(void* kernel) = nullptr;
  int (*input_presence)(const CustomOp*, size_t) = nullptr;
  int (*output_presence)(const CustomOp*, size_t) = nullptr;
  int (*input_memory)(const CustomOp*, size_t) = nullptr;
  int (*variadic_input_least)(const CustomOp*) = nullptr;
  int (*variadic_input_alike)(const CustomOp*) = nullptr;
  int (*variadic_output_least)(const CustomOp*) = nullptr;
  int (*variadic_output_alike)(const CustomOp*) = nullptr;
  void* (*create)(const CustomOp*, Api, const void* info, void** kernel) = nullptr;
  void* (*compute)(void* kernel, void* context) = nullptr;
  void* infer_shape = nullptr;
  int (*first_version)(const CustomOp*) = nullptr;
  int (*last_version)(const CustomOp*) = nullptr;
  void* may_in_place = nullptr;
  void* release_in_place = nullptr;
  void* aliases = nullptr;
  void* release_aliases = nullptr;
};
static_assert(sizeof(CustomOp) == 26 * 8, "layout of OrtCustomOp");

}  // namespace edgespec
