// How weights lie in memory. A tile has 16 output columns (lanes); a unit is some consecutive k of
// a tile: scales first, then planes of levels. export/formats/tiles.py writes this layout.
//
// A block of 32 k has quads j = 0..7 of k = 4j..4j+3; byte 4c + i of a row of 64 bytes is lane c,
// k = 4j + i. 8 bits: row j is quad j. 4 bits: row j has quad j in low halves and quad j + 4 in high
// ones. 2 bits: row p has quads 4p..4p+3 from the lowest bits up. 1 bit: bit j is quad j. IQ1_M has a
// bit for each lane and two quads behind the 2 bits of a block: bit c of 16 is lane c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace edgespec {

enum class Format : int {
  F32, F16, BF16,
  Q4_0, Q4_1, Q4_Z, Q5_0, Q5_1, Q8_0, Q8_Z, IQ4_NL, MXFP4,
  Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,
  Q1_0, TQ2_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_S, IQ3_XXS, IQ3_S, NVFP4,
};
constexpr int Formats = 27;

struct Layout {
  const char* name;
  int unit;        // k
  int unit_bytes;  // of 16 lanes
};

constexpr Layout layouts[Formats] = {
    {"f32", 1, 64},       {"f16", 1, 32},       {"bf16", 1, 32},     {"q4_0", 32, 288},
    {"q4_1", 32, 320},    {"q4_z", 32, 304},    {"q5_0", 32, 352},   {"q5_1", 32, 384},
    {"q8_0", 32, 544},    {"q8_z", 32, 560},    {"iq4_nl", 32, 288}, {"mxfp4", 32, 272},
    {"q2_k", 256, 1344},  {"q3_k", 256, 1824},  {"q4_k", 256, 2368}, {"q5_k", 256, 2880},
    {"q6_k", 256, 3360},  {"iq4_xs", 256, 2208}, {"q1_0", 128, 288},  {"tq2_0", 256, 1056},  {"iq1_s", 256, 1120},
    {"iq1_m", 256, 1248}, {"iq2_xxs", 256, 1632}, {"iq2_s", 256, 1696}, {"iq3_xxs", 256, 2144},
    {"iq3_s", 256, 2144},   {"nvfp4", 64, 640},
};

inline bool is_float(Format format) { return int(format) <= int(Format::BF16); }

inline const Layout& layout_of(Format format) { return layouts[int(format)]; }

inline int64_t units_of(Format format, int64_t width) {
  const int unit = layout_of(format).unit;
  return (width + unit - 1) / unit;
}

// Values of IQ4_NL's and IQ4_XS's levels, of MXFP4's and NVFP4's times two, of Q1_0's, and those of the points of grids:
// IQ1_M's times eight, IQ3_XXS's halved. As levels they are raised by a power of two so that none is
// negative. Tables of eight end with values that no file has.
constexpr int NonLinearZero = 128, FloatZero = 16;
constexpr int Grid1Zero = 16, Grid2Zero = 64, Grid3XxsZero = 32, Grid3Zero = 16;
alignas(16) constexpr uint8_t non_linear[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t float4[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                            16, 15, 14, 13, 12, 10, 8,  4};
alignas(16) constexpr uint8_t signs[16] = {0, 2};
alignas(16) constexpr uint8_t grid1[16] = {9, 17, 25, 25, 7, 15, 23, 23};
alignas(16) constexpr uint8_t grid2[16] = {21, 21, 39, 56, 72, 89, 107, 107};
alignas(16) constexpr uint8_t grid3_xxs[16] = {1,  6,  10, 14, 18, 22, 26, 30,
                                               34, 38, 42, 46, 50, 54, 58, 63};
alignas(16) constexpr uint8_t grid3[16] = {1,  3,  5,  7,  9,  11, 13, 15,
                                           17, 19, 21, 23, 25, 27, 29, 31};

}  // namespace edgespec
