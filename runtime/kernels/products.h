// Products of rows with tiles of weights, one template for all formats and instruction sets.
// Included by each instruction set's file, behind its sixteen lanes.
#pragma once

#include <utility>

#include "elementwise.h"
#include "kernels.h"

namespace edgespec {
namespace {

template <class Function, int... Steps>
inline void unrolled(Function function, std::integer_sequence<int, Steps...>) {
  (function(std::integral_constant<int, Steps>()), ...);
}
// Calls function(0), function(1), ... with constants.
template <int Count, class Function>
inline void unrolled(Function function) {
  unrolled(function, std::make_integer_sequence<int, Count>());
}

// Planes of levels of a block of 32.
template <int Bits>
struct Planes;

template <>
struct Planes<8> {
  static constexpr int Bytes = 512, Max = 255;
  template <int Quad>
  static B quad(const uint8_t* p) { return load_bytes(p + 64 * Quad); }
};
template <>
struct Planes<4> {
  static constexpr int Bytes = 256, Max = 15;
  template <int Quad>
  static B quad(const uint8_t* p) {
    return field<Quad / 4 * 4, 15>(load_bytes(p + 64 * (Quad % 4)));
  }
};
template <>
struct Planes<2> {
  static constexpr int Bytes = 128, Max = 3;
  template <int Quad>
  static B quad(const uint8_t* p) {
    return field<Quad % 4 * 2, 3>(load_bytes(p + 64 * (Quad / 4)));
  }
};
template <>
struct Planes<1> {
  static constexpr int Bytes = 64, Max = 1;
  template <int Quad>
  static B quad(const uint8_t* p) { return field<Quad, 1>(load_bytes(p)); }
};
// Low bits in one plane and high bits in another behind it.
template <int Low, int High>
struct Joined {
  static constexpr int Bytes = Planes<Low>::Bytes + Planes<High>::Bytes;
  static constexpr int Max = (1 << (Low + High)) - 1;
  template <int Quad>
  static B quad(const uint8_t* p) {
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
template <const uint8_t* Table, int Largest>
struct Tabled {
  static constexpr int Bytes = Planes<4>::Bytes, Max = Largest;
  template <int Quad>
  static B quad(const uint8_t* p) { return look_up(Table, Planes<4>::quad<Quad>(p)); }
};

inline const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }
inline const int8_t* signed_bytes(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }

// A format is: `Levels` (its planes); `Blocks` of 32 in a unit; `Header` bytes before them; `Parts`
// of a block that have a scale of their own; `Zero`, the level of weight 0; `scale(unit, part)`; and
// where `Minimum`, `minimum(unit, part)`, which is added to each weight. Parts count from the unit's
// first on.
template <class Planes_, int Header_, int Zero_, bool Minimum_ = false>
struct Simple {
  using Levels = Planes_;
  static constexpr int Blocks = 1, Header = Header_, Parts = 1, Zero = Zero_;
  static constexpr bool Minimum = Minimum_;
  static F scale(const uint8_t* unit, int) { return load_f16(halves(unit)); }
  static F minimum(const uint8_t* unit, int) { return load_f16(halves(unit) + 16); }
};
// With a zero point for each block, whose product with the scale is subtracted.
template <class Planes_>
struct WithZeros : Simple<Planes_, 48, 0, true> {
  static F minimum(const uint8_t* unit, int) {
    return sub(set(0.0f), mul(load_f16(halves(unit)), load_u8(unit + 32)));
  }
};
struct Exponents : Simple<Tabled<float4, 24>, 16, FloatZero> {
  static F scale(const uint8_t* unit, int) {  // 2^(e - 128), since the table is doubled
    const F e = sub(load_u8(unit), set(128.0f));
    const F half = round(mul(e, set(0.5f)));  // in two steps: 2^-128 has no normal float
    return mul(power_of_two(half), power_of_two(sub(e, half)));
  }
};
template <int Bits, int Zero_>
struct SignedScales16 {  // Q3_K and Q6_K
  using Levels = Planes<Bits>;
  static constexpr int Blocks = 8, Header = 288, Parts = 2, Zero = Zero_;
  static constexpr bool Minimum = false;
  static F scale(const uint8_t* unit, int part) {
    return mul(load_f16(halves(unit)), load_i8(signed_bytes(unit) + 32 + 16 * part));
  }
  static F minimum(const uint8_t*, int) { return set(0.0f); }
};
struct NonLinear256 {  // IQ4_XS
  using Levels = Tabled<non_linear, 240>;
  static constexpr int Blocks = 8, Header = 160, Parts = 1, Zero = NonLinearZero;
  static constexpr bool Minimum = false;
  static F scale(const uint8_t* unit, int part) {
    return mul(load_f16(halves(unit)), load_i8(signed_bytes(unit) + 32 + 16 * part));
  }
  static F minimum(const uint8_t*, int) { return set(0.0f); }
};
template <int Bits>
struct ScalesAndMinimums {  // Q4_K and Q5_K
  using Levels = Planes<Bits>;
  static constexpr int Blocks = 8, Header = 320, Parts = 1, Zero = 0;
  static constexpr bool Minimum = true;
  static F scale(const uint8_t* unit, int part) {
    return mul(load_f16(halves(unit)), load_u8(unit + 64 + 16 * part));
  }
  static F minimum(const uint8_t* unit, int part) {
    const F least = mul(load_f16(halves(unit) + 16), load_u8(unit + 192 + 16 * part));
    return sub(set(0.0f), least);
  }
};
struct Nibbles16 {  // Q2_K
  using Levels = Planes<2>;
  static constexpr int Blocks = 8, Header = 320, Parts = 2, Zero = 0;
  static constexpr bool Minimum = true;
  static F scale(const uint8_t* unit, int part) {
    uint8_t low[16];
    for (int i = 0; i < 16; ++i) low[i] = unit[64 + 16 * part + i] & 15;
    return mul(load_f16(halves(unit)), load_u8(low));
  }
  static F minimum(const uint8_t* unit, int part) {
    uint8_t high[16];
    for (int i = 0; i < 16; ++i) high[i] = unit[64 + 16 * part + i] >> 4;
    return sub(set(0.0f), mul(load_f16(halves(unit) + 16), load_u8(high)));
  }
};

// Rows of one call of a kernel, by their numbers.
template <int Rows>
struct Chosen {
  int64_t source[Rows], target[Rows];
};

// Sixteen values of `from`, of which the last ones may lie outside and count as zero.
inline F load_some(const float* from, int64_t count) {
  float some[16] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = from[i];
  return load(some);
}

template <int Rows>
inline void finish(const Product& p, const F* sums, const Chosen<Rows>& chosen, int64_t tile) {
  const int64_t column = tile * 16, count = p.columns - column;
  for (int r = 0; r < Rows; ++r) {
    const int64_t place = chosen.target[r] * p.stride + column;
    F y = sums[r];
    if (p.bias) y = add(y, count < 16 ? load_some(p.bias + column, count) : load(p.bias + column));
    if (p.factor != 1.0f) y = mul(y, set(p.factor));
    if (p.soft_cap != 0.0f) y = mul(tanh_of(div(y, set(p.soft_cap))), set(p.soft_cap));
    if (p.residual)
      y = add(y, count < 16 ? load_some(p.residual + place, count) : load(p.residual + place));
    if (count < 16) {
      float some[16];
      store(some, y);
      for (int64_t i = 0; i < count; ++i) p.out[place + i] = some[i];
    } else {
      store(p.out + place, y);
    }
  }
}

template <class Format, int Rows>
inline void integer_tile(const Product& p, const Chosen<Rows>& chosen, int64_t tile) {
  using Levels = typename Format::Levels;
  constexpr int Max = Levels::Max, UnitBytes = Format::Header + Format::Blocks * Levels::Bytes;
  constexpr int Quads = 8 / Format::Parts;
  const uint8_t* unit = p.tiles + tile * p.units * UnitBytes;
  const int8_t* x[Rows];
  const float* scales[Rows];
  const int32_t* sums[Rows];
  F total[Rows];
  for (int r = 0; r < Rows; ++r) {
    x[r] = p.rounded.levels + chosen.source[r] * p.rounded.blocks * 32;
    scales[r] = p.rounded.scales + chosen.source[r] * p.rounded.blocks;
    sums[r] = p.rounded.sums + chosen.source[r] * p.rounded.blocks * 2;
    total[r] = set(0.0f);
  }
  for (int64_t u = 0, block = 0; u < p.units; ++u, unit += UnitBytes) {
    const uint8_t* planes = unit + Format::Header;
    for (int b = 0; b < Format::Blocks; ++b, ++block, planes += Levels::Bytes) {
      unrolled<Format::Parts>([&](auto part) {
        Dot<Max> dot[Rows];
        for (int r = 0; r < Rows; ++r) dot[r].clear();
        unrolled<Quads>([&](auto step) {
          constexpr int Quad = part * Quads + step;
          const auto levels = prepared<Max>(Levels::template quad<Quad>(planes));
          for (int r = 0; r < Rows; ++r)
            dot[r].template add<step>(levels, x[r] + block * 32 + 4 * Quad);
        });
        const F scale = Format::scale(unit, b * Format::Parts + part);
        for (int r = 0; r < Rows; ++r) {
          int32_t sum = sums[r][2 * block + part];
          if (Format::Parts == 1) sum += sums[r][2 * block + 1];
          const float row_scale = scales[r][block];
          const I exact = sub(dot[r].value(), set_int((Format::Zero - Dot<Max>::Shift) * sum));
          total[r] = fma(from_int(exact), mul(scale, set(row_scale)), total[r]);
          if constexpr (Format::Minimum)
            total[r] = fma(Format::minimum(unit, b * Format::Parts + part),
                           set(row_scale * float(sum)), total[r]);
        }
      });
    }
  }
  finish<Rows>(p, total, chosen, tile);
}

template <int Rows, class Load>
inline void float_tile(const Product& p, const Chosen<Rows>& chosen, int64_t tile, int bytes,
                       Load load_weights) {
  const uint8_t* w = p.tiles + tile * p.units * bytes;
  F total[Rows];
  for (int r = 0; r < Rows; ++r) total[r] = set(0.0f);
  for (int64_t k = 0; k < p.width; ++k, w += bytes) {
    const F weights = load_weights(w);
    for (int r = 0; r < Rows; ++r)
      total[r] = fma(weights, set(p.x[chosen.source[r] * p.width + k]), total[r]);
  }
  finish<Rows>(p, total, chosen, tile);
}

template <int Rows>
void tile_of_rows(const Product& p, int64_t first_row, int64_t tile) {
  Chosen<Rows> chosen;
  for (int r = 0; r < Rows; ++r) {
    chosen.target[r] = p.order ? p.order[first_row + r] : first_row + r;
    chosen.source[r] = chosen.target[r] / p.sources;
  }
  switch (p.format) {
    case Format::F32:
      return float_tile<Rows>(p, chosen, tile, 64, [](const uint8_t* w) {
        return load(reinterpret_cast<const float*>(w));
      });
    case Format::F16:
      return float_tile<Rows>(p, chosen, tile, 32,
                              [](const uint8_t* w) { return load_f16(halves(w)); });
    case Format::BF16:
      return float_tile<Rows>(p, chosen, tile, 32,
                              [](const uint8_t* w) { return load_bf16(halves(w)); });
    case Format::Q4_0: return integer_tile<Simple<Planes<4>, 32, 8>>(p, chosen, tile);
    case Format::Q4_1: return integer_tile<Simple<Planes<4>, 64, 0, true>>(p, chosen, tile);
    case Format::Q4_Z: return integer_tile<WithZeros<Planes<4>>>(p, chosen, tile);
    case Format::Q5_0: return integer_tile<Simple<Planes<5>, 32, 16>>(p, chosen, tile);
    case Format::Q5_1: return integer_tile<Simple<Planes<5>, 64, 0, true>>(p, chosen, tile);
    case Format::Q8_0: return integer_tile<Simple<Planes<8>, 32, 128>>(p, chosen, tile);
    case Format::Q8_Z: return integer_tile<WithZeros<Planes<8>>>(p, chosen, tile);
    case Format::IQ4_NL:
      return integer_tile<Simple<Tabled<non_linear, 240>, 32, NonLinearZero>>(p, chosen, tile);
    case Format::MXFP4: return integer_tile<Exponents>(p, chosen, tile);
    case Format::Q2_K: return integer_tile<Nibbles16>(p, chosen, tile);
    case Format::Q3_K: return integer_tile<SignedScales16<3, 4>>(p, chosen, tile);
    case Format::Q4_K: return integer_tile<ScalesAndMinimums<4>>(p, chosen, tile);
    case Format::Q5_K: return integer_tile<ScalesAndMinimums<5>>(p, chosen, tile);
    case Format::Q6_K: return integer_tile<SignedScales16<6, 32>>(p, chosen, tile);
    case Format::IQ4_XS: return integer_tile<NonLinear256>(p, chosen, tile);
  }
}

void product(const Product& p, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; ++tile) {
    int64_t row = 0;
    if constexpr (MaxRows > 4)
      for (; row + MaxRows <= p.rows; row += MaxRows) tile_of_rows<MaxRows>(p, row, tile);
    for (; row + 4 <= p.rows; row += 4) tile_of_rows<4>(p, row, tile);
    switch (p.rows - row) {
      case 3: tile_of_rows<3>(p, row, tile); break;
      case 2: tile_of_rows<2>(p, row, tile); break;
      case 1: tile_of_rows<1>(p, row, tile); break;
      default: break;
    }
  }
}

void round_row(const float* x, int64_t width, int8_t* levels, float* scales, int32_t* sums) {
  constexpr float Least = 1e-30f;  // whose reciprocal is finite
  for (int64_t k = 0; k < width; k += 32) {
    float padded[32];
    const float* block = x + k;
    if (k + 32 > width) {
      for (int64_t i = 0; i < 32; ++i) padded[i] = k + i < width ? x[k + i] : 0.0f;
      block = padded;
    }
    const F low = load(block), high = load(block + 16);
    const float largest = max_of(max(abs(low), abs(high)));
    const bool some = !(largest < Least);
    const F inverse = set(some ? 127.0f / largest : 0.0f);
    const I a = to_int(mul(low, inverse)), b = to_int(mul(high, inverse));
    store_bytes(levels + k, a);
    store_bytes(levels + k + 16, b);
    *scales++ = some ? largest / 127.0f : 0.0f;
    *sums++ = sum_of(a);
    *sums++ = sum_of(b);
  }
}

}  // namespace
}  // namespace edgespec
