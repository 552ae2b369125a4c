// What must be inlined into a kernel, since a call would spill its registers.
#pragma once

#ifdef _MSC_VER
#define INLINE __forceinline
#define NOINLINE __declspec(noinline)
#define INLINED [[msvc::forceinline]]  // of a lambda
#else
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define INLINED __attribute__((always_inline))
#endif
