// Products of rows with tiles of weights, one template for all formats and instruction sets.
// Included by each instruction set's file, behind its sixteen lanes.
#pragma once

#include "elementwise.h"
#include "inlined.h"
#include "kernels.h"
#include "tile_units.h"

namespace edgespec {
namespace {

// Sixteen values of `from`, of which the last ones may lie outside and count as zero.
inline F load_some(const float* from, int64_t count) {
  float some[16] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = from[i];
  return load(some);
}

template <int Rows>
inline void finish(const Product& p, const F* sums, int64_t row, int64_t tile) {
  const int64_t column = tile * 16, count = p.columns - column;
  for (int r = 0; r < Rows; ++r) {
    const int64_t target = p.targets ? p.targets[row + r] : row + r;
    const int64_t place = target * p.stride + column;
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

constexpr int Ahead = 4096;  // bytes: weights are read faster than processors foresee

constexpr int log2_of(int x) { return x <= 1 ? 0 : 1 + log2_of(x / 2); }

// Rows are counted by constants, and what `finish` reads is a copy: else compilers keep sums in
// memory, and store them at each block.
template <class Format, int Rows>
NOINLINE void integer_tile(const Product& p, int64_t row, int64_t tile) {
  using Levels = typename Format::Levels;
  constexpr int Max = Levels::Max, UnitBytes = Format::Header + Format::Blocks * Levels::Bytes;
  constexpr int Share = (UnitBytes + Format::Blocks - 1) / Format::Blocks;  // to prefetch a block
  constexpr int Parts = Format::Parts, Quads = 8 / Parts;
  // What sums of levels lack, in sums of activations: zero points, unless levels were lowered.
  constexpr int Zero = Format::Zero - Dot<Max>::Raised, Size = Zero < 0 ? -Zero : Zero;
  static_assert((Size & (Size - 1)) == 0, "zeros are powers of two");
  const Rounded& rounded = p.rounded;
  const int64_t rows = rounded.rows;
  const uint8_t* unit = p.tiles + tile * p.units * UnitBytes;
  const int8_t* x = rounded.levels + row * 32;
  const float* scales = rounded.scales + row;
  const int32_t* negated = rounded.negated + row;
  const float* weighted = rounded.weighted + row;
  F total[Rows];
  unrolled<Rows>([&](auto r) INLINED { total[r] = set(0.0f); });
  for (int64_t u = 0; u < p.units; ++u, unit += UnitBytes) {
    const uint8_t* planes = unit + Format::Header;
    for (int b = 0; b < Format::Blocks; ++b) {
      for (int i = 0; i < Share; i += 64) prefetch(unit + Ahead + b * Share + i);
      unrolled<Parts>([&](auto part) INLINED {
        constexpr int Sum = Parts == 1 ? 2 : int(part);
        Dot<Max> dot[Rows];
        unrolled<Rows>([&](auto r) INLINED {
          const int32_t lack = Zero ? negated[Sum * rows + r] : 0;
          dot[r].begin(set_int<log2_of(Size)>(Zero < 0 ? -lack : lack));
        });
        unrolled<Quads>([&](auto step) INLINED {
          constexpr int Quad = part * Quads + step;
          const auto levels = prepared<Max>(Levels::template quad<Quad>(planes));
          unrolled<Rows>([&](auto r) INLINED {
            dot[r].template add<step>(levels, x + 32 * r + 4 * Quad);
          });
        });
        const F scale = Format::scale(unit, b * Parts + part);
        unrolled<Rows>([&](auto r) INLINED {
          total[r] = fma(from_int(dot[r].value()), mul(scale, set(scales[r])), total[r]);
        });
        if constexpr (Format::Minimum) {
          const F least = Format::minimum(unit, b * Parts + part);
          unrolled<Rows>([&](auto r) INLINED {
            total[r] = fma(least, set(weighted[Sum * rows + r]), total[r]);
          });
        }
      });
      planes += Levels::Bytes;
      x += rows * 32;
      scales += rows;
      negated += Sums * rows;
      weighted += Sums * rows;
    }
  }
  F sums[Rows];
  unrolled<Rows>([&](auto r) INLINED { sums[r] = total[r]; });
  finish<Rows>(p, sums, row, tile);
}

template <int Rows, class Load>
NOINLINE void float_tile(const Product& p, int64_t row, int64_t tile, int bytes, Load load_weights) {
  const uint8_t* w = p.tiles + tile * p.units * bytes;
  const float* x = p.x + row * p.width;
  F total[Rows];
  for (int r = 0; r < Rows; ++r) total[r] = set(0.0f);
  for (int64_t k = 0; k < p.width; ++k, w += bytes) {
    const F weights = load_weights(w);
    for (int r = 0; r < Rows; ++r) total[r] = fma(weights, set(x[r * p.width + k]), total[r]);
  }
  finish<Rows>(p, total, row, tile);
}

constexpr int64_t Near = 64;  // rows whose levels stay in a cache while tiles are gone through

// Calls `of` for rows, as many at a time as registers hold, and once for those that are left.
template <int Most, class Tile>
inline void by_rows(const Product& p, int64_t first, int64_t last, const Tile& of) {
  for (int64_t begin = 0; begin < p.rows; begin += Near) {
    const int64_t end = p.rows < begin + Near ? p.rows : begin + Near;
    for (int64_t tile = first; tile < last; ++tile)
      for (int64_t row = begin; row < end; row += Most)
        at_most<Most>(end - row, [&](auto rows) INLINED { of(rows, row, tile); });
  }
}

template <class Format>
void integers(const Product& p, int64_t first, int64_t last) {
  constexpr int Most = most_rows(Format::Levels::Max, Format::Parts);
  by_rows<Most>(p, first, last, [&](auto rows, int64_t row, int64_t tile) {
    integer_tile<Format, rows>(p, row, tile);
  });
}

template <class Load>
void floats(const Product& p, int64_t first, int64_t last, int bytes, Load load_weights) {
  by_rows<4>(p, first, last, [&](auto rows, int64_t row, int64_t tile) {
    float_tile<rows>(p, row, tile, bytes, load_weights);
  });
}

void product(const Product& p, int64_t first, int64_t last) {
  switch (p.format) {
    case Format::F32:
      return floats(p, first, last, 64, [](const uint8_t* w) {
        return load(reinterpret_cast<const float*>(w));
      });
    case Format::F16:
      return floats(p, first, last, 32, [](const uint8_t* w) { return load_f16(halves(w)); });
    case Format::BF16:
      return floats(p, first, last, 32, [](const uint8_t* w) { return load_bf16(halves(w)); });
    case Format::Q4_0: return integers<Simple<Planes<4>, 32, 8>>(p, first, last);
    case Format::Q4_1: return integers<Simple<Planes<4>, 64, 0, true>>(p, first, last);
    case Format::Q4_Z: return integers<WithZeros<Planes<4>>>(p, first, last);
    case Format::Q5_0: return integers<Simple<Planes<5>, 32, 16>>(p, first, last);
    case Format::Q5_1: return integers<Simple<Planes<5>, 64, 0, true>>(p, first, last);
    case Format::Q8_0: return integers<Simple<Planes<8>, 32, 128>>(p, first, last);
    case Format::Q8_Z: return integers<WithZeros<Planes<8>>>(p, first, last);
    case Format::IQ4_NL: return integers<Simple<NonLinear, 32, NonLinearZero>>(p, first, last);
    case Format::MXFP4: return integers<Exponents>(p, first, last);
    case Format::Q2_K: return integers<Nibbles16>(p, first, last);
    case Format::Q3_K: return integers<SignedScales<Planes<3>, 2, 4>>(p, first, last);
    case Format::Q4_K: return integers<ScalesAndMinimums<4>>(p, first, last);
    case Format::Q5_K: return integers<ScalesAndMinimums<5>>(p, first, last);
    case Format::Q6_K: return integers<SignedScales<Planes<6>, 2, 32>>(p, first, last);
    case Format::IQ4_XS: return integers<SignedScales<NonLinear, 1, NonLinearZero>>(p, first, last);
    case Format::Q1_0: return integers<Ternary<Signs, 4>>(p, first, last);
    case Format::TQ2_0: return integers<Ternary<Planes<2>, 8>>(p, first, last);
    case Format::IQ1_S: return integers<Shifted>(p, first, last);
    case Format::IQ1_M: return integers<Grid<ShiftedQuads, 2, Grid1Zero, 8>>(p, first, last);
    case Format::IQ2_XXS: return integers<Grid<Grid2, 1, Grid2Zero, 8>>(p, first, last);
    case Format::IQ2_S: return integers<Grid<Grid2, 2, Grid2Zero, 8>>(p, first, last);
    case Format::IQ3_XXS: return integers<Grid<Grid3Xxs, 1, Grid3XxsZero, 2>>(p, first, last);
    case Format::IQ3_S: return integers<Grid<Grid3, 1, Grid3Zero, 1>>(p, first, last);
    case Format::NVFP4: return integers<Float8Scales>(p, first, last);
  }
}

void round_row(const float* x, int64_t width, const Rounded& rounded, int64_t row) {
  constexpr float Least = 1e-30f;  // whose reciprocal is finite
  const int64_t rows = rounded.rows;
  for (int64_t block = 0; block < rounded.blocks; ++block) {
    float padded[32];
    const int64_t k = block * 32;
    const float* own = x + k;
    if (k + 32 > width) {
      for (int64_t i = 0; i < 32; ++i) padded[i] = k + i < width ? x[k + i] : 0.0f;
      own = padded;
    }
    const F low = load(own), high = load(own + 16);
    const float largest = max_of(max(abs(low), abs(high)));
    const bool some = !(largest < Least);
    const float scale = some ? largest / 127.0f : 0.0f;
    const F inverse = set(some ? 127.0f / largest : 0.0f);
    // What is no number becomes one, so that no sum overflows.
    const auto level = [&](F y) { return to_int(min(max(mul(y, inverse), set(-127.0f)), set(127.0f))); };
    const I a = level(low), b = level(high);
    int8_t* levels = rounded.levels + (block * rows + row) * 32;
    store_bytes(levels, a);
    store_bytes(levels + 16, b);
    rounded.scales[block * rows + row] = scale;
    const int32_t first = sum_of(a), second = sum_of(b), sums[Sums] = {first, second, first + second};
    for (int i = 0; i < Sums; ++i) {
      rounded.negated[(block * Sums + i) * rows + row] = -sums[i];
      rounded.weighted[(block * Sums + i) * rows + row] = scale * float(sums[i]);
    }
  }
}

int64_t multiply_add(const uint8_t* planes, const int8_t* x, int64_t blocks) {
  constexpr int Rows = most_rows(15, 1);
  const auto levels = prepared<15>(Planes<4>::quad<0>(planes));
  I total[Rows];
  unrolled<Rows>([&](auto r) INLINED { total[r] = set_int<0>(0); });
  for (int64_t i = 0; i < blocks; ++i) {
    const int8_t* own = x + i % MultipliedBlocks * Rows * 32;  // else all are found to be the same
    unrolled<Rows>([&](auto r) INLINED {
      Dot<15> dot;
      dot.begin(total[r]);
      unrolled<8>([&](auto step) INLINED { dot.template add<step>(levels, own + 32 * r + 4 * step); });
      total[r] = dot.value();
    });
  }
  int64_t sum = 0;
  unrolled<Rows>([&](auto r) INLINED { sum += sum_of(total[r]); });
  return sum;
}

}  // namespace
}  // namespace edgespec
