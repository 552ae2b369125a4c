// Sixteen lanes as four registers of NEON; with EDGESPEC_DOTPROD or EDGESPEC_I8MM (which has both
// signs) also their products of bytes.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "inlined.h"

namespace edgespec {
namespace {

#if defined(EDGESPEC_DOTPROD) || defined(EDGESPEC_I8MM)
constexpr int most_rows(int, int) { return 4; }
#else
constexpr int most_rows(int, int) { return 2; }
#endif
constexpr bool Many = false;  // 32 registers, but of four lanes

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct B {
  uint8x16_t v[4];
};

#define QUARTERS(i) for (int i = 0; i < 4; ++i)

#ifdef _MSC_VER
INLINE void prefetch(const void* p) { __prefetch(p); }
#else
INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
#endif
INLINE F load(const float* p) { F r; QUARTERS(i) r.v[i] = vld1q_f32(p + 4 * i); return r; }
INLINE void store(float* p, F a) { QUARTERS(i) vst1q_f32(p + 4 * i, a.v[i]); }
INLINE F set(float x) { F r; QUARTERS(i) r.v[i] = vdupq_n_f32(x); return r; }
INLINE F add(F a, F b) { QUARTERS(i) a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
INLINE F sub(F a, F b) { QUARTERS(i) a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
INLINE F mul(F a, F b) { QUARTERS(i) a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
INLINE F div(F a, F b) { QUARTERS(i) a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
// Not vmaxq_f32 and vminq_f32, which differ in zeros and in what is no number.
INLINE F max(F a, F b) {
  QUARTERS(i) a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
INLINE F min(F a, F b) {
  QUARTERS(i) a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
INLINE F abs(F a) { QUARTERS(i) a.v[i] = vabsq_f32(a.v[i]); return a; }
INLINE F fma(F a, F b, F c) { QUARTERS(i) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return c; }
INLINE F load_f16(const uint16_t* p) {
  F r;
  QUARTERS(i) r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
INLINE F load_bf16(const uint16_t* p) {
  F r;
  QUARTERS(i) r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
INLINE void store_f16(uint16_t* p, F a) {
  QUARTERS(i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
INLINE F from_int(I a) { F r; QUARTERS(i) r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
INLINE F load_i8(const int8_t* p) {
  const int8x16_t a = vld1q_s8(p);
  const int16x8_t half[2] = {vmovl_s8(vget_low_s8(a)), vmovl_s8(vget_high_s8(a))};
  F r;
  for (int i = 0; i < 2; ++i) {
    r.v[2 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i])));
    r.v[2 * i + 1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(half[i])));
  }
  return r;
}
INLINE F from_bytes(uint8x16_t a) {
  const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(a)), vmovl_u8(vget_high_u8(a))};
  F r;
  for (int i = 0; i < 2; ++i) {
    r.v[2 * i] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(half[i])));
    r.v[2 * i + 1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(half[i])));
  }
  return r;
}
INLINE F load_u8(const uint8_t* p) { return from_bytes(vld1q_u8(p)); }
template <int Mask>
INLINE F load_bits(const uint8_t* p, int shift) {
  const uint8x16_t a = vshlq_u8(vld1q_u8(p), vdupq_n_s8(int8_t(-shift)));
  return from_bytes(vandq_u8(a, vdupq_n_u8(Mask)));
}
INLINE F round(F a) { QUARTERS(i) a.v[i] = vrndnq_f32(a.v[i]); return a; }
INLINE I to_int(F a) {  // what does not fit becomes the least, like on other processors
  const float32x4_t limit = vdupq_n_f32(2147483648.0f);
  const int32x4_t least = vdupq_n_s32(INT32_MIN);
  I r;
  QUARTERS(i) r.v[i] = vbslq_s32(vcaltq_f32(a.v[i], limit), vcvtnq_s32_f32(a.v[i]), least);
  return r;
}
INLINE F power_of_two(F n) {
  const int32x4_t bias = vdupq_n_s32(127);
  QUARTERS(i) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n.v[i]), bias);
    n.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
  }
  return n;
}
INLINE F zero_below(F x, float least, F y) {
  const float32x4_t l = vdupq_n_f32(least);
  QUARTERS(i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(y.v[i]);
    y.v[i] = vreinterpretq_f32_u32(vbicq_u32(bits, vcltq_f32(x.v[i], l)));
  }
  return y;
}
INLINE F near_zero(F x, float limit, F near, F far) {
  const float32x4_t l = vdupq_n_f32(limit);
  QUARTERS(i) far.v[i] = vbslq_f32(vcaltq_f32(x.v[i], l), near.v[i], far.v[i]);
  return far;
}
INLINE float max_of(F a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
// Lanes 8 apart are added, then 4.
INLINE float32x4_t sum_of_quarters(F a) {
  return vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
}
INLINE float sum_of(F a) {
  const float32x4_t x = sum_of_quarters(a);
  return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
}
// Lanes 2 apart are added, of a below and b above.
INLINE float32x4_t sums_of_halves(float32x4_t a, float32x4_t b) {
  return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                   vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}
INLINE F four_of(const F* a) { F r; QUARTERS(i) r.v[i] = sum_of_quarters(a[i]); return r; }
INLINE F sums_of(const F* four) {
  F r;
  QUARTERS(i)
    r.v[i] = vpaddq_f32(sums_of_halves(four[0].v[i], four[1].v[i]),
                        sums_of_halves(four[2].v[i], four[3].v[i]));
  return r;
}

template <int Shift>
INLINE I set_int(int32_t x) {
  I r;
  QUARTERS(i) r.v[i] = vdupq_n_s32(x * (1 << Shift));
  return r;
}
INLINE int32_t sum_of(I a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
INLINE void store_bytes(int8_t* p, I a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

INLINE B load_bytes(const uint8_t* p) {
  B r;
  QUARTERS(i) r.v[i] = vld1q_u8(p + 16 * i);
  return r;
}
template <int Shift, int Mask>
INLINE B field(B a) {
  if constexpr (Shift > 0) QUARTERS(i) a.v[i] = vshrq_n_u8(a.v[i], Shift);
  if constexpr (Mask != 255 >> Shift) QUARTERS(i) a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(Mask));
  return a;
}
template <int Shift>
INLINE B up(B a) { QUARTERS(i) a.v[i] = vshlq_n_u8(a.v[i], Shift); return a; }
INLINE B either(B a, B b) { QUARTERS(i) a.v[i] = vorrq_u8(a.v[i], b.v[i]); return a; }
template <int Value>
INLINE B where(uint16_t lanes) {
  const uint32_t bits[4] = {1, 2, 4, 8};
  const uint32x4_t all = vdupq_n_u32(lanes), own = vld1q_u32(bits);
  const uint32x4_t value = vdupq_n_u32(Value * 0x01010101u);
  B r;
  QUARTERS(i) {
    const uint32x4_t set = vtstq_u32(vshlq_u32(all, vdupq_n_s32(-4 * i)), own);
    r.v[i] = vreinterpretq_u8_u32(vandq_u32(set, value));
  }
  return r;
}
INLINE B look_up(const uint8_t* table, B a) {
  const uint8x16_t t = vld1q_u8(table);
  QUARTERS(i) a.v[i] = vqtbl1q_u8(t, a.v[i]);
  return a;
}

#ifdef EDGESPEC_I8MM
constexpr int raised_of(int) { return 0; }
#else
// Bytes are multiplied as signed ones, so levels that do not fit are lowered.
constexpr int raised_of(int max) { return max > 127 ? 128 : 0; }
#endif

template <int Max>
INLINE B prepared(B levels) {
  if constexpr (raised_of(Max) == 128)
    QUARTERS(i) levels.v[i] = veorq_u8(levels.v[i], vdupq_n_u8(128));
  return levels;
}

#if defined(EDGESPEC_DOTPROD) || defined(EDGESPEC_I8MM)

template <int Max>
struct Dot {
  static constexpr int Raised = raised_of(Max);
  I total;
  INLINE void begin(I start) { total = start; }
  template <int Step>
  INLINE void add(const B& levels, const int8_t* x) {
    const int8x16_t four = vld1q_s8(x - Step % 4 * 4);  // steps, of which compilers load once
    QUARTERS(i) {
#ifdef EDGESPEC_I8MM
      total.v[i] = vusdotq_laneq_s32(total.v[i], levels.v[i], four, Step % 4);
#else
      total.v[i] = vdotq_laneq_s32(total.v[i], vreinterpretq_s8_u8(levels.v[i]), four, Step % 4);
#endif
    }
  }
  INLINE I value() const { return total; }
};

#else

// Products are added in 16 bits, as many steps as fit, and then in pairs.
template <int Max>
struct Dot {
  static constexpr int Raised = raised_of(Max);
  static constexpr int Steps = 32767 / (127 * (Raised ? Raised : Max));
  I total;
  int16x8_t narrow[8];
  int32x4_t pairs[8];
  INLINE void begin(I start) {
    total = start;
    for (int i = 0; i < 8; ++i) pairs[i] = vdupq_n_s32(0);
  }
  template <int Step>
  INLINE void add(const B& levels, const int8_t* x) {
    const int8x8_t four = vreinterpret_s8_s32(vld1_dup_s32(reinterpret_cast<const int32_t*>(x)));
    for (int i = 0; i < 8; ++i) {
      const int8x16_t both = vreinterpretq_s8_u8(levels.v[i / 2]);
      const int8x8_t half = i % 2 ? vget_high_s8(both) : vget_low_s8(both);
      if (Step && Step % Steps == 0) pairs[i] = vpadalq_s16(pairs[i], narrow[i]);
      narrow[i] = Step % Steps == 0 ? vmull_s8(half, four) : vmlal_s8(narrow[i], half, four);
    }
  }
  INLINE I value() const {
    I all;
    QUARTERS(i) {
      const int32x4_t low = vpadalq_s16(pairs[2 * i], narrow[2 * i]);
      const int32x4_t high = vpadalq_s16(pairs[2 * i + 1], narrow[2 * i + 1]);
      all.v[i] = vaddq_s32(total.v[i], vpaddq_s32(low, high));
    }
    return all;
  }
};

#endif

#undef QUARTERS

}  // namespace
}  // namespace edgespec
