// Sixteen lanes in plain C++: what every other instruction set must equal bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "inlined.h"

namespace edgespec {
namespace {

// Rows of a product at a time, of levels up to `max` in so many parts of a block.
constexpr int most_rows(int, int) { return 2; }
// Whether there are 32 registers.
constexpr bool Many = false;

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct B {
  uint8_t v[64];
};

#define LANES(i) for (int i = 0; i < 16; ++i)

INLINE void prefetch(const void*) {}
INLINE F load(const float* p) { F r; std::memcpy(r.v, p, 64); return r; }
INLINE void store(float* p, F a) { std::memcpy(p, a.v, 64); }
INLINE F set(float x) { F r; LANES(i) r.v[i] = x; return r; }
INLINE F add(F a, F b) { LANES(i) a.v[i] += b.v[i]; return a; }
INLINE F sub(F a, F b) { LANES(i) a.v[i] -= b.v[i]; return a; }
INLINE F mul(F a, F b) { LANES(i) a.v[i] *= b.v[i]; return a; }
INLINE F div(F a, F b) { LANES(i) a.v[i] /= b.v[i]; return a; }
INLINE F max(F a, F b) { LANES(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE F min(F a, F b) { LANES(i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE F abs(F a) { LANES(i) a.v[i] = std::fabs(a.v[i]); return a; }
INLINE F fma(F a, F b, F c) { LANES(i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
INLINE F load_f16(const uint16_t* p) { F r; LANES(i) r.v[i] = from_half(p[i]); return r; }
INLINE F load_bf16(const uint16_t* p) { F r; LANES(i) r.v[i] = from_bfloat(p[i]); return r; }
INLINE void store_f16(uint16_t* p, F a) { LANES(i) p[i] = to_half(a.v[i]); }
INLINE F load_i8(const int8_t* p) { F r; LANES(i) r.v[i] = float(p[i]); return r; }
INLINE F load_u8(const uint8_t* p) { F r; LANES(i) r.v[i] = float(p[i]); return r; }
// Bits `shift` and above of each byte, those of `Mask`.
template <int Mask>
INLINE F load_bits(const uint8_t* p, int shift) {
  F r;
  LANES(i) r.v[i] = float(p[i] >> shift & Mask);
  return r;
}
INLINE F from_int(I a) { F r; LANES(i) r.v[i] = float(a.v[i]); return r; }
// To the nearest integer, ties to even.
INLINE F round(F a) { LANES(i) a.v[i] = std::nearbyint(a.v[i]); return a; }
INLINE I to_int(F a) {
  I r;
  LANES(i) {
    float x = std::nearbyint(a.v[i]);
    r.v[i] = x >= -2147483648.0f && x < 2147483648.0f ? int32_t(x) : INT32_MIN;
  }
  return r;
}
// 2 to the power of n, an integer from -126 to 127.
INLINE F power_of_two(F n) {
  F r;
  LANES(i) {
    uint32_t bits = uint32_t(int32_t(n.v[i]) + 127) << 23;
    std::memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
// y where x >= least, else 0.
INLINE F zero_below(F x, float least, F y) {
  LANES(i) y.v[i] = x.v[i] < least ? 0.0f : y.v[i];
  return y;
}
// `near` where |x| < limit, else `far`.
INLINE F near_zero(F x, float limit, F near, F far) {
  LANES(i) far.v[i] = std::fabs(x.v[i]) < limit ? near.v[i] : far.v[i];
  return far;
}
INLINE float max_of(F a) {
  float m = a.v[0];
  LANES(i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
// Lanes 8 apart are added first, then 4, 2 and 1: the order of every sum over lanes.
INLINE float sum_of(F a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  return a.v[0];
}
// Lane 4i + j of sums_of(four) is sum_of(a[i]) of the a[0..3] that four[j] = four_of(a) is made of.
INLINE F four_of(const F* a) {
  F r{};
  for (int i = 0; i < 4; ++i) r.v[i] = sum_of(a[i]);
  return r;
}
INLINE F sums_of(const F* four) { F r; LANES(i) r.v[i] = four[i % 4].v[i / 4]; return r; }

// x times 2^Shift in all lanes.
template <int Shift>
INLINE I set_int(int32_t x) { I r; LANES(i) r.v[i] = x * (1 << Shift); return r; }
INLINE int32_t sum_of(I a) { int32_t s = 0; LANES(i) s += a.v[i]; return s; }
// The low byte of each lane.
INLINE void store_bytes(int8_t* p, I a) { LANES(i) p[i] = int8_t(a.v[i]); }

INLINE B load_bytes(const uint8_t* p) { B r; std::memcpy(r.v, p, 64); return r; }
// Bits `Shift` and above of each byte, those of `Mask`.
template <int Shift, int Mask>
INLINE B field(B a) { for (uint8_t& x : a.v) x = (x >> Shift) & Mask; return a; }
// Bits of each byte moved up by `Shift`; none may be lost.
template <int Shift>
INLINE B up(B a) { for (uint8_t& x : a.v) x = uint8_t(x << Shift); return a; }
INLINE B either(B a, B b) { for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i]; return a; }
// `Value` in all bytes of the lanes whose bit is set, else 0.
template <int Value>
INLINE B where(uint16_t lanes) {
  B r;
  for (int i = 0; i < 64; ++i) r.v[i] = lanes >> i / 4 & 1 ? Value : 0;
  return r;
}
// table[x] of each byte x < 16.
INLINE B look_up(const uint8_t* table, B a) { for (uint8_t& x : a.v) x = table[x & 15]; return a; }

// Levels of 16 lanes by four k, at most Max, ready to be multiplied.
template <int Max>
INLINE B prepared(B levels) { return levels; }

// Sum over k of levels (u8, at most Max) times activations (s8), 16 lanes.
template <int Max>
struct Dot {
  static constexpr int Raised = 0;  // what was subtracted from levels already
  I total;
  INLINE void begin(I start) { total = start; }
  // Adds four k of all lanes. `Step` counts the calls since `begin`, with four k each: x lies
  // 4 * Step behind the first call's.
  template <int Step>
  INLINE void add(const B& levels, const int8_t* x) {
    LANES(i) for (int k = 0; k < 4; ++k) total.v[i] += int32_t(levels.v[4 * i + k]) * x[k];
  }
  INLINE I value() const { return total; }
};

#undef LANES

}  // namespace
}  // namespace edgespec
