// What units of tiles hold, by format: planes of levels, scales and minimums (see formats.h).
// Included behind sixteen lanes.
#pragma once

#include <cstring>

#include "formats.h"
#include "inlined.h"

namespace edgespec {
namespace {

// Planes of levels of a block of 32.
template <int Bits>
struct Planes;

template <>
struct Planes<8> {
  static constexpr int Bytes = 512, Max = 255;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) { return load_bytes(p + 64 * Quad); }
};
template <>
struct Planes<4> {
  static constexpr int Bytes = 256, Max = 15;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) {
    return field<Quad / 4 * 4, 15>(load_bytes(p + 64 * (Quad % 4)));
  }
};
template <>
struct Planes<2> {
  static constexpr int Bytes = 128, Max = 3;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) {
    return field<Quad % 4 * 2, 3>(load_bytes(p + 64 * (Quad / 4)));
  }
};
template <>
struct Planes<1> {
  static constexpr int Bytes = 64, Max = 1;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) { return field<Quad, 1>(load_bytes(p)); }
};
// Low bits in one plane and high bits in another behind it.
template <int Low, int High>
struct Joined {
  static constexpr int Bytes = Planes<Low>::Bytes + Planes<High>::Bytes;
  static constexpr int Max = (1 << (Low + High)) - 1;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) {
    return either(Planes<Low>::template quad<Quad>(p),
                  up<Low>(Planes<High>::template quad<Quad>(p + Planes<Low>::Bytes)));
  }
};
template <>
struct Planes<3> : Joined<2, 1> {};
template <>
struct Planes<5> : Joined<4, 1> {};
template <>
struct Planes<6> : Joined<4, 2> {};
// Levels that number the values of a table.
template <int Bits, const uint8_t* Table, int Largest>
struct Tabled {
  static constexpr int Bytes = Planes<Bits>::Bytes, Max = Largest;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) {
    return look_up(Table, Planes<Bits>::template quad<Quad>(p));
  }
};
using NonLinear = Tabled<4, non_linear, 241>;
using Float4 = Tabled<4, float4, 28>;
using Signs = Tabled<1, signs, 2>;
using Grid2 = Tabled<3, grid2, 107>;
using Grid3Xxs = Tabled<4, grid3_xxs, 63>;
using Grid3 = Tabled<4, grid3, 31>;

// IQ1_M's, of which those of two quads are shifted alike: by a bit of each lane, behind the planes.
struct ShiftedQuads {
  static constexpr int Bytes = Planes<2>::Bytes + 8, Max = 25;
  template <int Quad>
  static INLINE B quad(const uint8_t* p) {
    uint16_t lanes;
    std::memcpy(&lanes, p + Planes<2>::Bytes + Quad / 2 * 2, 2);
    return look_up(grid1, either(Planes<2>::quad<Quad>(p), where<4>(lanes)));
  }
};

INLINE const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }
INLINE const int8_t* signed_bytes(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }

// A format is: `Levels` (its planes); `Blocks` of 32 in a unit; `Header` bytes before them; `Parts`
// of a block that have a scale of their own; `Zero`, the level of weight 0; `scale(unit, part)`; and
// where `Minimum`, `minimum(unit, part)`, which is added to each weight. Parts count from the unit's
// first on.
template <class Planes_, int Header_, int Zero_, bool Minimum_ = false>
struct Simple {
  using Levels = Planes_;
  static constexpr int Blocks = 1, Header = Header_, Parts = 1, Zero = Zero_;
  static constexpr bool Minimum = Minimum_;
  static INLINE F scale(const uint8_t* unit, int) { return load_f16(halves(unit)); }
  static INLINE F minimum(const uint8_t* unit, int) { return load_f16(halves(unit) + 16); }
};
template <class Levels_, int Blocks_>
struct Ternary : Simple<Levels_, 32, 1> {  // -1, 0 and 1, or two of these
  static constexpr int Blocks = Blocks_;
};
// With a zero point for each block, whose product with the scale is subtracted.
template <class Planes_>
struct WithZeros : Simple<Planes_, 48, 0, true> {
  static INLINE F minimum(const uint8_t* unit, int) {
    return sub(set(0.0f), mul(load_f16(halves(unit)), load_u8(unit + 32)));
  }
};
struct Exponents : Simple<Float4, 16, FloatZero> {
  static INLINE F scale(const uint8_t* unit, int) {  // 2^(e - 128), since the table is doubled
    const F e = sub(load_u8(unit), set(128.0f));
    const F half = round(mul(e, set(0.5f)));  // in two steps: 2^-128 has no normal float
    return mul(power_of_two(half), power_of_two(sub(e, half)));
  }
};
template <class Levels_, int Parts_, int Zero_>
struct SignedScales {  // Q3_K, Q6_K and IQ4_XS
  using Levels = Levels_;
  static constexpr int Blocks = 8, Header = 32 + 128 * Parts_, Parts = Parts_, Zero = Zero_;
  static constexpr bool Minimum = false;
  static INLINE F scale(const uint8_t* unit, int part) {
    return mul(load_f16(halves(unit)), load_i8(signed_bytes(unit) + 32 + 16 * part));
  }
};
// Some bits of the numbers of a part; a byte has those of two, the first one's in its low half.
template <int Mask>
INLINE F load_half_bytes(const uint8_t* p, int part) {
  return load_bits<Mask>(p + part / 2 * 16, part % 2 * 4);
}
// IQ1 to IQ3, whose scales are odd. A grid's values were multiplied by `Times`.
template <class Levels_, int Parts_, int Zero_, int Times>
struct Grid {
  using Levels = Levels_;
  static constexpr int Blocks = 8, Header = 32 + 64 * Parts_, Parts = Parts_, Zero = Zero_;
  static constexpr bool Minimum = false;
  static INLINE F scale(const uint8_t* unit, int part) {
    const F twice = mul(load_f16(halves(unit)), set(2.0f / Times));
    return mul(twice, add(load_half_bytes<15>(unit + 32, part), set(0.5f)));
  }
};
struct Shifted : Grid<Planes<2>, 1, 1, 1> {  // IQ1_S, whose blocks are shifted by an eighth
  static constexpr bool Minimum = true;
  static INLINE F scale(const uint8_t* unit, int part) {
    const F twice = mul(load_f16(halves(unit)), set(2.0f));
    return mul(twice, add(load_half_bytes<7>(unit + 32, part), set(0.5f)));
  }
  static INLINE F minimum(const uint8_t* unit, int part) {
    const F down = mul(load_half_bytes<8>(unit + 32, part), set(1.0f / 32));
    return mul(scale(unit, part), sub(set(0.125f), down));
  }
};
struct Float8Scales {  // NVFP4; a scale's bits are those of half precision times 2^8
  using Levels = Float4;
  static constexpr int Blocks = 2, Header = 128, Parts = 2, Zero = FloatZero;
  static constexpr bool Minimum = false;
  static INLINE F scale(const uint8_t* unit, int part) {
    uint16_t scales[16];
    for (int i = 0; i < 16; ++i) scales[i] = uint16_t((unit[64 + 16 * part + i] & 127) << 7);
    return mul(load(reinterpret_cast<const float*>(unit)), load_f16(scales));
  }
};
template <int Bits>
struct ScalesAndMinimums {  // Q4_K and Q5_K
  using Levels = Planes<Bits>;
  static constexpr int Blocks = 8, Header = 320, Parts = 1, Zero = 0;
  static constexpr bool Minimum = true;
  static INLINE F scale(const uint8_t* unit, int part) {
    return mul(load_f16(halves(unit)), load_u8(unit + 64 + 16 * part));
  }
  static INLINE F minimum(const uint8_t* unit, int part) {
    const F least = mul(load_f16(halves(unit) + 16), load_u8(unit + 192 + 16 * part));
    return sub(set(0.0f), least);
  }
};
struct Nibbles16 {  // Q2_K
  using Levels = Planes<2>;
  static constexpr int Blocks = 8, Header = 320, Parts = 2, Zero = 0;
  static constexpr bool Minimum = true;
  static INLINE F scale(const uint8_t* unit, int part) {
    uint8_t low[16];
    for (int i = 0; i < 16; ++i) low[i] = unit[64 + 16 * part + i] & 15;
    return mul(load_f16(halves(unit)), load_u8(low));
  }
  static INLINE F minimum(const uint8_t* unit, int part) {
    uint8_t high[16];
    for (int i = 0; i < 16; ++i) high[i] = unit[64 + 16 * part + i] >> 4;
    return sub(set(0.0f), mul(load_f16(halves(unit) + 16), load_u8(high)));
  }
};

}  // namespace
}  // namespace edgespec
