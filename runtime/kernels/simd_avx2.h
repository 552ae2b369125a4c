// Sixteen lanes as two registers of AVX2; with EDGESPEC_AVX_VNNI also its products of bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inlined.h"

namespace edgespec {
namespace {

#ifdef EDGESPEC_AVX_VNNI
constexpr int most_rows(int, int) { return 4; }
#else
// Of levels from 65 to 128 no sums of 16 bits are kept, which would take registers.
constexpr int most_rows(int max, int parts) {
  return max > 15 && parts == 1 && (max <= 64 || max > 128) ? 2 : 4;
}
#endif
constexpr bool Many = false;

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct B {
  __m256i lo, hi;
};

INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, F a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
INLINE F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
INLINE F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
INLINE F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}
INLINE __m256 from_bfloats(__m128i a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}
INLINE F load_bf16(const uint16_t* p) {
  return {from_bfloats(load_128(p)), from_bfloats(load_128(p + 8))};
}
INLINE void store_f16(uint16_t* p, F a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
INLINE F from_int(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
INLINE F load_i8(const int8_t* p) {
  const __m128i a = load_128(p);
  return from_int({_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))});
}
INLINE F from_bytes(__m128i a) {
  return from_int({_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))});
}
INLINE F load_u8(const uint8_t* p) { return from_bytes(load_128(p)); }
template <int Mask>
INLINE F load_bits(const uint8_t* p, int shift) {
  const __m128i a = _mm_srl_epi16(load_128(p), _mm_cvtsi32_si128(shift));
  return from_bytes(_mm_and_si128(a, _mm_set1_epi8(Mask)));
}
INLINE F round(F a) {
  constexpr int Nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, Nearest), _mm256_round_ps(a.hi, Nearest)};
}
INLINE I to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
INLINE F power_of_two(F n) {
  const I a = to_int(n);
  const __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a.lo, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a.hi, bias), 23))};
}
INLINE F zero_below(F x, float least, F y) {
  const __m256 l = _mm256_set1_ps(least);
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, l, _CMP_LT_OQ), y.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, l, _CMP_LT_OQ), y.hi)};
}
INLINE F near_zero(F x, float limit, F near, F far) {
  const __m256 l = _mm256_set1_ps(limit);
  const F a = abs(x);
  return {_mm256_blendv_ps(far.lo, near.lo, _mm256_cmp_ps(a.lo, l, _CMP_LT_OQ)),
          _mm256_blendv_ps(far.hi, near.hi, _mm256_cmp_ps(a.hi, l, _CMP_LT_OQ))};
}
INLINE float max_of(F a) {
  const __m256 m = _mm256_max_ps(a.lo, a.hi);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
INLINE float sum_of(F a) {
  const __m256 m = _mm256_add_ps(a.lo, a.hi);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
// Sums of lanes 4 apart, of a below and b above.
INLINE __m256 sums_of_halves(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
// Sums of eight registers of lanes 8 apart, of which `sums_of_halves` made x: of i and i + 4.
INLINE __m256 sums_of_eight(const __m256* x) {
  __m256 y[2];
  for (int i = 0; i < 2; ++i)  // 2 apart
    y[i] = _mm256_add_ps(_mm256_shuffle_ps(x[i], x[i + 2], 0x44),
                         _mm256_shuffle_ps(x[i], x[i + 2], 0xee));
  // 1 apart; lanes are then those of 0, 2, 1, 3 in each half
  const __m256 z = _mm256_add_ps(_mm256_shuffle_ps(y[0], y[1], 0x88),
                                 _mm256_shuffle_ps(y[0], y[1], 0xdd));
  return _mm256_permute_ps(z, 0xd8);
}
INLINE F four_of(const F* a) {
  __m256 x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm256_add_ps(a[i].lo, a[i].hi);  // 8 apart
  return {sums_of_halves(x[0], x[1]), sums_of_halves(x[2], x[3])};
}
INLINE F sums_of(const F* four) {
  const __m256 low[4] = {four[0].lo, four[1].lo, four[2].lo, four[3].lo};
  const __m256 high[4] = {four[0].hi, four[1].hi, four[2].hi, four[3].hi};
  return {sums_of_eight(low), sums_of_eight(high)};
}

template <int Shift>
INLINE I set_int(int32_t x) {
  const __m256i all = _mm256_slli_epi32(_mm256_set1_epi32(x), Shift);
  return {all, all};
}
INLINE int32_t sum_of(I a) {
  const __m256i m = _mm256_add_epi32(a.lo, a.hi);
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE void store_bytes(int8_t* p, I a) {
  const __m256i low = _mm256_set1_epi32(255);
  __m256i x = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
  x = _mm256_permute4x64_epi64(x, 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
INLINE B load_bytes(const uint8_t* p) { return {load_256(p), load_256(p + 32)}; }
template <int Shift, int Mask>
INLINE B field(B a) {
  const __m256i mask = _mm256_set1_epi8(char(Mask));
  if (Shift == 0) return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, Shift), mask),
          _mm256_and_si256(_mm256_srli_epi16(a.hi, Shift), mask)};
}
template <int Shift>
INLINE B up(B a) {
  return {_mm256_slli_epi16(a.lo, Shift), _mm256_slli_epi16(a.hi, Shift)};
}
INLINE B either(B a, B b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int Value>
INLINE __m256i where(__m256i lanes, __m256i own) {
  const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(lanes, own), own);
  return _mm256_and_si256(set, _mm256_set1_epi8(char(Value)));
}
template <int Value>
INLINE B where(uint16_t lanes) {
  const __m256i all = _mm256_set1_epi32(lanes);
  const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return {where<Value>(all, own), where<Value>(all, _mm256_slli_epi32(own, 8))};
}
INLINE B look_up(const uint8_t* table, B a) {
  const __m256i t = _mm256_broadcastsi128_si256(load_128(table));
  return {_mm256_shuffle_epi8(t, a.lo), _mm256_shuffle_epi8(t, a.hi)};
}

INLINE __m256i four(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

#ifdef EDGESPEC_AVX_VNNI

template <int Max>
INLINE B prepared(B levels) { return levels; }

template <int Max>
struct Dot {
  static constexpr int Raised = 0;
  I total;
  INLINE void begin(I start) { total = start; }
  template <int Step>
  INLINE void add(const B& levels, const int8_t* x) {
    const __m256i y = four(x);
    total.lo = _mm256_dpbusd_avx_epi32(total.lo, levels.lo, y);
    total.hi = _mm256_dpbusd_avx_epi32(total.hi, levels.hi, y);
  }
  INLINE I value() const { return total; }
};

#else

INLINE void widen(I& total, const I& narrow) {
  const __m256i one = _mm256_set1_epi16(1);
  total.lo = _mm256_add_epi32(total.lo, _mm256_madd_epi16(narrow.lo, one));
  total.hi = _mm256_add_epi32(total.hi, _mm256_madd_epi16(narrow.hi, one));
}

// Products of two pairs are added in 16 bits: as many steps fit as 2 * 127 * Max allows.
template <int Max, bool Wide = (Max > 128)>
struct Levels {
  B bytes;
};
// Levels of 8 bits would not fit even once, so their halves are multiplied apart.
template <int Max>
struct Levels<Max, true> {
  B low, high;
};
template <int Max>
INLINE Levels<Max> prepared(B levels) {
  if constexpr (Max > 128) return {field<0, 15>(levels), field<4, 15>(levels)};
  else return {levels};
}

INLINE void add_pairs(I& sum, const B& levels, __m256i x, bool first) {
  const __m256i lo = _mm256_maddubs_epi16(levels.lo, x), hi = _mm256_maddubs_epi16(levels.hi, x);
  sum.lo = first ? lo : _mm256_add_epi16(sum.lo, lo);
  sum.hi = first ? hi : _mm256_add_epi16(sum.hi, hi);
}

template <int Max, bool Wide = (Max > 128)>
struct Dot {
  static constexpr int Raised = 0;
  static constexpr int Steps = 32767 / (2 * 127 * Max);  // that fit
  I total, narrow;
  INLINE void begin(I start) { total = start; }
  template <int Step>
  INLINE void add(const Levels<Max>& levels, const int8_t* x) {
    if (Step && Step % Steps == 0) widen(total, narrow);
    add_pairs(narrow, levels.bytes, four(x), Step % Steps == 0);
  }
  INLINE I value() const {
    I all = total, last = narrow;
    widen(all, last);
    return all;
  }
};

template <int Max>
struct Dot<Max, true> {
  static constexpr int Raised = 0;
  I total, low, high;  // eight steps of levels up to 15 fit
  INLINE void begin(I start) { total = start; }
  template <int Step>
  INLINE void add(const Levels<Max>& levels, const int8_t* x) {
    static_assert(Step < 8, "sums of 16 bits");
    const __m256i y = four(x);
    add_pairs(low, levels.low, y, Step == 0);
    add_pairs(high, levels.high, y, Step == 0);
  }
  INLINE I value() const {
    I all = total, last = low;
    widen(all, last);
    const __m256i sixteen = _mm256_set1_epi16(16);
    return {_mm256_add_epi32(all.lo, _mm256_madd_epi16(high.lo, sixteen)),
            _mm256_add_epi32(all.hi, _mm256_madd_epi16(high.hi, sixteen))};
  }
};

#endif

}  // namespace
}  // namespace edgespec
