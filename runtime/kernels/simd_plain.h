// Sixteen lanes in plain C++: what every other instruction set must equal bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace edgespec {
namespace {

constexpr int MaxRows = 4;

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

inline F load(const float* p) { F r; std::memcpy(r.v, p, 64); return r; }
inline void store(float* p, F a) { std::memcpy(p, a.v, 64); }
inline F set(float x) { F r; LANES(i) r.v[i] = x; return r; }
inline F add(F a, F b) { LANES(i) a.v[i] += b.v[i]; return a; }
inline F sub(F a, F b) { LANES(i) a.v[i] -= b.v[i]; return a; }
inline F mul(F a, F b) { LANES(i) a.v[i] *= b.v[i]; return a; }
inline F div(F a, F b) { LANES(i) a.v[i] /= b.v[i]; return a; }
inline F max(F a, F b) { LANES(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F min(F a, F b) { LANES(i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F abs(F a) { LANES(i) a.v[i] = std::fabs(a.v[i]); return a; }
inline F fma(F a, F b, F c) { LANES(i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
inline F load_f16(const uint16_t* p) { F r; LANES(i) r.v[i] = from_half(p[i]); return r; }
inline F load_bf16(const uint16_t* p) { F r; LANES(i) r.v[i] = from_bfloat(p[i]); return r; }
inline void store_f16(uint16_t* p, F a) { LANES(i) p[i] = to_half(a.v[i]); }
inline F load_i8(const int8_t* p) { F r; LANES(i) r.v[i] = float(p[i]); return r; }
inline F load_u8(const uint8_t* p) { F r; LANES(i) r.v[i] = float(p[i]); return r; }
inline F from_int(I a) { F r; LANES(i) r.v[i] = float(a.v[i]); return r; }
// To the nearest integer, ties to even.
inline F round(F a) { LANES(i) a.v[i] = std::nearbyint(a.v[i]); return a; }
inline I to_int(F a) {
  I r;
  LANES(i) {
    float x = std::nearbyint(a.v[i]);
    r.v[i] = x >= -2147483648.0f && x < 2147483648.0f ? int32_t(x) : INT32_MIN;
  }
  return r;
}
// 2 to the power of n, an integer from -126 to 127.
inline F power_of_two(F n) {
  F r;
  LANES(i) {
    uint32_t bits = uint32_t(int32_t(n.v[i]) + 127) << 23;
    std::memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
// y where x >= least, else 0.
inline F zero_below(F x, float least, F y) {
  LANES(i) y.v[i] = x.v[i] < least ? 0.0f : y.v[i];
  return y;
}
// `near` where |x| < limit, else `far`.
inline F near_zero(F x, float limit, F near, F far) {
  LANES(i) far.v[i] = std::fabs(x.v[i]) < limit ? near.v[i] : far.v[i];
  return far;
}
inline float max_of(F a) {
  float m = a.v[0];
  LANES(i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
// Lanes 8 apart are added first, then 4, 2 and 1: the order of every sum over lanes.
inline float sum_of(F a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  return a.v[0];
}
// Lane i of the result is sum_of(a[i]).
inline F sums_of(const F* a) { F r; LANES(i) r.v[i] = sum_of(a[i]); return r; }

inline I set_int(int32_t x) { I r; LANES(i) r.v[i] = x; return r; }
inline I sub(I a, I b) { LANES(i) a.v[i] -= b.v[i]; return a; }
inline int32_t sum_of(I a) { int32_t s = 0; LANES(i) s += a.v[i]; return s; }
// The low byte of each lane.
inline void store_bytes(int8_t* p, I a) { LANES(i) p[i] = int8_t(a.v[i]); }

inline B load_bytes(const uint8_t* p) { B r; std::memcpy(r.v, p, 64); return r; }
// Bits `Shift` and above of each byte, those of `Mask`.
template <int Shift, int Mask>
inline B field(B a) { for (uint8_t& x : a.v) x = (x >> Shift) & Mask; return a; }
// Bits of each byte moved up by `Shift`; none may be lost.
template <int Shift>
inline B up(B a) { for (uint8_t& x : a.v) x = uint8_t(x << Shift); return a; }
inline B either(B a, B b) { for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i]; return a; }
// table[x] of each byte x < 16.
inline B look_up(const uint8_t* table, B a) { for (uint8_t& x : a.v) x = table[x & 15]; return a; }

// Levels of 16 lanes by four k, at most Max, ready to be multiplied.
template <int Max>
inline B prepared(B levels) { return levels; }

// Sum over k of levels (u8, at most Max) times activations (s8), 16 lanes.
template <int Max>
struct Dot {
  static constexpr int Shift = 0;  // subtracted from levels already
  I total;
  void clear() { total = set_int(0); }
  // Adds four k of all lanes. `Step` counts the calls since `clear`.
  template <int Step>
  void add(const B& levels, const int8_t* x) {
    LANES(i) for (int k = 0; k < 4; ++k) total.v[i] += int32_t(levels.v[4 * i + k]) * x[k];
  }
  I value() const { return total; }
};

#undef LANES

}  // namespace
}  // namespace edgespec
