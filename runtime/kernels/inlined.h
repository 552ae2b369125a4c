// What must be inlined into a kernel, since a call would spill its registers.
#pragma once

#include <cstdint>
#include <utility>

#ifdef _MSC_VER
#define INLINE __forceinline
#define NOINLINE __declspec(noinline)
#define INLINED [[msvc::forceinline]]  // of a lambda
#else
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define INLINED __attribute__((always_inline))
#endif

namespace edgespec {
namespace {

template <class Function, int... Steps>
INLINE void unrolled(const Function& function, std::integer_sequence<int, Steps...>) {
  (function(std::integral_constant<int, Steps>()), ...);
}
// Calls function(0), function(1), ... with constants.
template <int Count, class Function>
INLINE void unrolled(const Function& function) {
  unrolled(function, std::make_integer_sequence<int, Count>());
}
// Calls function(count) with a constant, `Most` for more than these.
template <int Most, class Function>
INLINE void at_most(int64_t count, const Function& function) {
  unrolled<Most>([&](auto step) INLINED {
    constexpr int Count = step + 1;
    if (count == Count || (Count == Most && count > Most))
      function(std::integral_constant<int, Count>());
  });
}

}  // namespace
}  // namespace edgespec
