// What recurrent layers have in common: convolutions along paths.
#pragma once

#include "op.h"
#include "paths.h"

namespace edgespec {

// Over each channel of a row, its last size - 1 ancestors and itself.
struct Convolution {
  static constexpr int64_t MostSize = 16;
  const float* weight;  // [size, channels], that of the row itself last
  int64_t size, channels;
  const float* pool;  // rows of the slots
  int64_t width;      // of the pool's rows, whose first numbers are the channels

  // Sums are from the oldest row up, behind the bias [channels] (null: 0); ancestors that there are
  // not count as nothing.
  void apply(const Ancestry& ancestry, int64_t row, const float* bias, float* out) const {
    int64_t slots[MostSize];
    ancestry.trail(row, size, slots);
    for (int64_t c = 0; c < channels; ++c) out[c] = bias ? bias[c] : 0.0f;
    for (int64_t j = 0; j < size; ++j) {
      if (slots[j] < 0) continue;
      const float* from = pool + slots[j] * width;
      const float* by = weight + j * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] += by[c] * from[c];
    }
  }
};

inline Convolution convolution_of(const Tensor& weight, int64_t channels, const Tensor& pool,
                                  int64_t width) {
  weight.check("weight", F32, {-1, channels});
  pool.check("pool", F32, {-1, width});
  const int64_t size = weight.dims[0];
  if (size < 1 || size > Convolution::MostSize) refuse("a convolution of %lld rows", (long long)size);
  return {weight.as<float>(), size, channels, pool.as<float>(), width};
}

}  // namespace edgespec
