// BlockEmbedding: rows of a matrix, which may be the tiles of an output projection.
//
// Inputs: ids [S] int64; tiles uint8. Output [S, K] float32. Attributes: `format`, `columns` (the
// rows of the matrix) and `width` (K).
#include "kernels.h"
#include "op.h"
#include "weights.h"
#include "half.h"

namespace edgespec {
namespace {

// Level k of lane c in the planes of a block, with so many bits a level.
int level_at(const uint8_t* planes, int bits, int c, int k) {
  const int quad = k / 4, byte = 4 * c + k % 4;
  switch (bits) {
    case 8: return planes[64 * quad + byte];
    case 4: return planes[64 * (quad % 4) + byte] >> (quad / 4 * 4) & 15;
    case 2: return planes[64 * (quad / 4) + byte] >> (quad % 4 * 2) & 3;
    case 1: return planes[byte] >> quad & 1;
    case 3: return level_at(planes, 2, c, k) | (planes[128 + byte] >> quad & 1) << 2;
    case 5: return level_at(planes, 4, c, k) | (planes[256 + byte] >> quad & 1) << 4;
    default: return level_at(planes, 4, c, k) | level_at(planes + 256, 2, c, k) << 4;
  }
}

float half_at(const uint8_t* unit, int index) {
  uint16_t h;
  std::memcpy(&h, unit + 2 * index, 2);
  return from_half(h);
}

float float_at(const uint8_t* unit, int index) {
  float x;
  std::memcpy(&x, unit + 4 * index, 4);
  return x;
}

float value_at(Format format, const uint8_t* unit, int c, int k) {
  const int block = k / 32, part = k / 16;
  const auto level = [&](int header, int bits, int bytes) {
    return level_at(unit + header + block * bytes, bits, c, k % 32);
  };
  const auto scale = [&](int index) { return half_at(unit, c) * float(int8_t(unit[32 + 16 * index + c])); };
  const auto half_byte = [&](int index) { return unit[32 + index / 2 * 16 + c] >> index % 2 * 4 & 15; };
  const auto grid_scale = [&](int index, float times) {
    return half_at(unit, c) / times * float(2 * half_byte(index) + 1);
  };
  switch (format) {
    case Format::F32: return float_at(unit, c);
    case Format::F16: return half_at(unit, c);
    case Format::BF16: {
      uint16_t h;
      std::memcpy(&h, unit + 2 * c, 2);
      return from_bfloat(h);
    }
    case Format::Q4_0: return half_at(unit, c) * float(level(32, 4, 0) - 8);
    case Format::Q4_1: return half_at(unit, c) * float(level(64, 4, 0)) + half_at(unit, 16 + c);
    case Format::Q4_Z: return half_at(unit, c) * float(level(48, 4, 0) - unit[32 + c]);
    case Format::Q5_0: return half_at(unit, c) * float(level(32, 5, 0) - 16);
    case Format::Q5_1: return half_at(unit, c) * float(level(64, 5, 0)) + half_at(unit, 16 + c);
    case Format::Q8_0: return half_at(unit, c) * float(level(32, 8, 0) - 128);
    case Format::Q8_Z: return half_at(unit, c) * float(level(48, 8, 0) - unit[32 + c]);
    case Format::IQ4_NL:
      return half_at(unit, c) * float(non_linear[level(32, 4, 0)] - NonLinearZero);
    case Format::MXFP4: {
      const int e = unit[c];
      const float power = float_of_bits(e < 2 ? 0x200000u << e : uint32_t(e - 1) << 23);
      return power * float(float4[level(16, 4, 0)] - FloatZero);
    }
    case Format::Q2_K: {
      const int both = unit[64 + 16 * part + c];
      return half_at(unit, c) * float(both & 15) * float(level(320, 2, 128)) -
             half_at(unit, 16 + c) * float(both >> 4);
    }
    case Format::Q3_K: return scale(part) * float(level(288, 3, 192) - 4);
    case Format::Q4_K:
      return half_at(unit, c) * float(unit[64 + 16 * block + c]) * float(level(320, 4, 256)) -
             half_at(unit, 16 + c) * float(unit[192 + 16 * block + c]);
    case Format::Q5_K:
      return half_at(unit, c) * float(unit[64 + 16 * block + c]) * float(level(320, 5, 320)) -
             half_at(unit, 16 + c) * float(unit[192 + 16 * block + c]);
    case Format::Q6_K: return scale(part) * float(level(288, 6, 384) - 32);
    case Format::IQ4_XS:
      return scale(block) * float(non_linear[level(160, 4, 256)] - NonLinearZero);
    case Format::Q1_0: return half_at(unit, c) * float(2 * level(32, 1, 64) - 1);
    case Format::TQ2_0: return half_at(unit, c) * float(level(32, 2, 128) - 1);
    case Format::IQ1_S: {
      const int number = half_byte(block);
      const float scale = half_at(unit, c) * float(2 * (number & 7) + 1);
      return scale * (float(level(96, 2, 128) - 1) + (number & 8 ? -0.125f : 0.125f));
    }
    case Format::IQ1_M: {
      uint16_t shifted;
      std::memcpy(&shifted, unit + 160 + block * 136 + 128 + k % 32 / 8 * 2, 2);
      const int index = level(160, 2, 136) | (shifted >> c & 1) << 2;
      return grid_scale(part, 8) * float(grid1[index] - Grid1Zero);
    }
    case Format::IQ2_XXS: return grid_scale(block, 8) * float(grid2[level(96, 3, 192)] - Grid2Zero);
    case Format::IQ2_S: return grid_scale(part, 8) * float(grid2[level(160, 3, 192)] - Grid2Zero);
    case Format::IQ3_XXS:
      return grid_scale(block, 2) * float(grid3_xxs[level(96, 4, 256)] - Grid3XxsZero);
    case Format::IQ3_S: return grid_scale(block, 1) * float(grid3[level(96, 4, 256)] - Grid3Zero);
    case Format::NVFP4: {
      const float scale = from_half(uint16_t((unit[64 + 16 * part + c] & 127) << 7));
      return float_at(unit, c) * scale * float(float4[level(128, 4, 256)] - FloatZero);
    }
  }
  return 0.0f;
}

class BlockEmbedding : public Operator {
 public:
  explicit BlockEmbedding(const Attributes& attributes)
      : format_(format_named(attributes.text("format"))),
        columns_(attributes.integer("columns", 0)),
        width_(attributes.integer("width", 0)) {
    if (columns_ < 1 || columns_ > MostColumns) refuse("columns is %lld", (long long)columns_);
    if (width_ < 1 || width_ > MostWidth) refuse("width is %lld", (long long)width_);
  }

  void compute(const Call& call) override {
    const Tensor ids = call.input(0), tiles = call.input(1);
    ids.check("ids", I64, {-1});
    check_tiles(tiles, format_, columns_, width_);
    float* out = call.output(0, {ids.dims[0], width_});
    for (int64_t i = 0; i < ids.dims[0]; ++i) {
      const int64_t id = ids.as<int64_t>()[i];
      if (id < 0 || id >= columns_)
        refuse("token %lld is not one of %lld", (long long)id, (long long)columns_);
      read_column(format_, tiles.as<uint8_t>(), width_, id, out + i * width_);
    }
  }

 private:
  Format format_;
  int64_t columns_, width_;
};

}  // namespace

void read_column(Format format, const uint8_t* tiles, int64_t width, int64_t column, float* out) {
  const Layout& layout = layout_of(format);
  const uint8_t* unit = tiles + column / 16 * units_of(format, width) * layout.unit_bytes;
  for (int64_t k = 0; k < width; k += layout.unit, unit += layout.unit_bytes)
    for (int64_t i = 0; i < layout.unit && k + i < width; ++i)
      out[k + i] = value_at(format, unit, int(column % 16), int(i));
}

Definition& block_embedding() {
  static Definition definition(
      "BlockEmbedding", {{I64}, {U8}},
      [](const Attributes& attributes) -> Operator* { return new BlockEmbedding(attributes); });
  return definition;
}

}  // namespace edgespec
