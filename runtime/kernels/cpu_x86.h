// What an x86 processor and its operating system offer.
#pragma once

#include <cstdint>

#ifdef _MSC_VER
#include <immintrin.h>
#include <intrin.h>
#else
#include <cpuid.h>
#endif

namespace edgespec {
namespace {

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

inline Registers cpu_id(uint32_t leaf, uint32_t part = 0) {
  Registers r;
#ifdef _MSC_VER
  int found[4];
  __cpuid(found, 0);
  if (uint32_t(found[0]) < leaf) return r;
  __cpuidex(found, int(leaf), int(part));
  r = {uint32_t(found[0]), uint32_t(found[1]), uint32_t(found[2]), uint32_t(found[3])};
#else
  __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);
#endif
  return r;
}

// Which registers the operating system saves.
inline uint64_t saved() {
  if (!(cpu_id(1).c >> 27 & 1)) return 0;
#ifdef _MSC_VER
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
#endif
}

inline bool has_avx2() {
  const Registers one = cpu_id(1), seven = cpu_id(7);
  const bool fma = one.c >> 12 & 1, f16c = one.c >> 29 & 1, avx2 = seven.b >> 5 & 1;
  return fma && f16c && avx2 && (saved() & 6) == 6;
}

inline bool has_avx_vnni() { return has_avx2() && (cpu_id(7, 1).a >> 4 & 1); }

inline bool has_avx512_vnni() {
  const Registers seven = cpu_id(7);
  const bool f = seven.b >> 16 & 1, dq = seven.b >> 17 & 1, bw = seven.b >> 30 & 1;
  const bool vl = seven.b >> 31 & 1, vnni = seven.c >> 11 & 1;
  return has_avx2() && f && dq && bw && vl && vnni && (saved() & 0xe6) == 0xe6;
}

}  // namespace
}  // namespace edgespec
