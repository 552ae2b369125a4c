// Sixteen lanes as one register of AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inlined.h"

namespace edgespec {
namespace {

constexpr int most_rows(int, int) { return 8; }
constexpr bool Many = true;

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};

INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
INLINE F set(float x) { return {_mm512_set1_ps(x)}; }
INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE F load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_256(p))}; }
INLINE F load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16))};
}
INLINE void store_f16(uint16_t* p, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE F from_int(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
INLINE F load_i8(const int8_t* p) { return from_int({_mm512_cvtepi8_epi32(load_128(p))}); }
INLINE F load_u8(const uint8_t* p) { return from_int({_mm512_cvtepu8_epi32(load_128(p))}); }
template <int Mask>
INLINE F load_bits(const uint8_t* p, int shift) {
  const __m512i a = _mm512_srl_epi32(_mm512_cvtepu8_epi32(load_128(p)), _mm_cvtsi32_si128(shift));
  return from_int({_mm512_and_si512(a, _mm512_set1_epi32(Mask))});
}
INLINE F round(F a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
INLINE I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
INLINE F power_of_two(F n) {
  const __m512i a = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 23))};
}
INLINE F zero_below(F x, float least, F y) {
  const __mmask16 below = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(y.v, below, _mm512_setzero_ps())};
}
INLINE F near_zero(F x, float limit, F near, F far) {
  const __mmask16 is = _mm512_cmp_ps_mask(abs(x).v, _mm512_set1_ps(limit), _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(far.v, is, near.v)};
}
INLINE float max_of(F a) { return _mm512_reduce_max_ps(a.v); }
INLINE float sum_of(F a) {
  const __m256 m = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE F four_of(const F* a) {
  __m512 x[2];
  for (int i = 0; i < 2; ++i)  // lanes 8 apart, of a[i] below and a[i + 2] above
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i].v, a[i + 2].v, 0x44),
                         _mm512_shuffle_f32x4(a[i].v, a[i + 2].v, 0xee));
  // 4 apart, of x[0] in even quarters and x[1] in odd ones
  return {_mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x88),  // 0 2 of both
                        _mm512_shuffle_f32x4(x[0], x[1], 0xdd))};
}
INLINE F sums_of(const F* four) {
  __m512 z[2];
  for (int i = 0; i < 2; ++i)  // 2 apart
    z[i] = _mm512_add_ps(_mm512_shuffle_ps(four[i].v, four[i + 2].v, 0x44),
                         _mm512_shuffle_ps(four[i].v, four[i + 2].v, 0xee));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(z[0], z[1], 0x88),
                                   _mm512_shuffle_ps(z[0], z[1], 0xdd));
  // Quarters hold a[..3 + 0], a[.. + 8], a[.. + 4], a[.. + 12], and lanes in them 0, 2, 1, 3.
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_ps(order, all)};
}

template <int Shift>
INLINE I set_int(int32_t x) { return {_mm512_slli_epi32(_mm512_set1_epi32(x), Shift)}; }
INLINE int32_t sum_of(I a) { return _mm512_reduce_add_epi32(a.v); }
INLINE void store_bytes(int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

INLINE B load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
template <int Shift, int Mask>
INLINE B field(B a) {
  const __m512i mask = _mm512_set1_epi8(char(Mask));
  if (Shift == 0) return {_mm512_and_si512(a.v, mask)};
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, Shift), mask)};
}
template <int Shift>
INLINE B up(B a) { return {_mm512_slli_epi16(a.v, Shift)}; }
INLINE B either(B a, B b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int Value>
INLINE B where(uint16_t lanes) {
  return {_mm512_maskz_mov_epi32(lanes, _mm512_set1_epi8(char(Value)))};
}
INLINE B look_up(const uint8_t* table, B a) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_128(table)), a.v)};
}

template <int Max>
INLINE B prepared(B levels) { return levels; }

template <int Max>
struct Dot {
  static constexpr int Raised = 0;
  I total;
  INLINE void begin(I start) { total = start; }
  template <int Step>
  INLINE void add(const B& levels, const int8_t* x) {
    int32_t bytes;
    std::memcpy(&bytes, x, 4);
    total.v = _mm512_dpbusd_epi32(total.v, levels.v, _mm512_set1_epi32(bytes));
  }
  INLINE I value() const { return total; }
};

}  // namespace
}  // namespace edgespec
