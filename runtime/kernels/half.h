// Half precision and bfloat16 to float and back, where no instruction does it.
#pragma once

#include <cstdint>
#include <cstring>

namespace edgespec {
namespace {

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float from_bfloat(uint16_t h) { return float_of_bits(uint32_t(h) << 16); }

inline float from_half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, rest = h & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | (rest << 13) | (rest ? 1 << 22 : 0));
  if (exponent) return float_of_bits(sign | ((exponent + 112) << 23) | (rest << 13));
  const float x = float(rest) * 5.9604644775390625e-8f;  // subnormal: rest * 2^-24, exact
  return sign ? -x : x;
}

// To nearest, ties to even; what is too large becomes infinity.
inline uint16_t to_half(float x) {
  const uint32_t bits = bits_of_float(x), sign = (bits >> 16) & 0x8000, all = bits & 0x7fffffff;
  if (all > 0x7f800000) return uint16_t(sign | 0x7e00 | ((all >> 13) & 0x3ff));
  if (all >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (all >= 0x38800000) {
    const uint32_t shifted = all - 0x38000000;
    return uint16_t(sign | ((shifted + 0xfff + ((shifted >> 13) & 1)) >> 13));
  }
  // Adding 0.5 rounds to multiples of 2^-24 in the float's last bits.
  return uint16_t(sign | (bits_of_float(float_of_bits(all) + 0.5f) - 0x3f000000));
}

}  // namespace
}  // namespace edgespec
