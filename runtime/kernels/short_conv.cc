// ShortConv: a gated convolution of each channel over a row's last positions, along its path.
//
// Inputs, with S rows, B sequences and a pool of C slots:
//   0 x [S, 3 * channels] float32: three parts b, c and v
//   1 weight [size, channels] float32, that of the row itself last
//   2 pool [C, channels] float32: written in place
//   3 write, 4 parent, 5 sequence, 6 recent, 7 starts: int32, like TreeAttention's, with slots of
//     this pool. Of a sequence's committed rows, `recent` needs the last size - 1 alone, all if the
//     sequence has fewer, and may have more.
// Output [S, channels]: c * convolution(b * v). A row's b * v is written to its slot.
//
// Who accepts a row adds its slot to its sequence's list; who rejects it frees the slot. A sequence
// may be cut to where size - 1 slots before the cut are still held, and slots may be shared.
#include "recurrent.h"

namespace edgespec {
namespace {

class ShortConv : public Operator {
 public:
  void compute(const Call& call) override {
    const Tensor x = call.input(0), pool = call.input(2);
    x.check("x", F32, {-1, -1});
    const int64_t rows = x.dims[0], channels = x.dims[1] / 3;
    if (channels < 1 || x.dims[1] % 3) refuse("x has rows of %lld", (long long)x.dims[1]);
    const Convolution convolution = convolution_of(call.input(1), channels, pool, channels);
    const Ancestry ancestry = ancestry_of(call, 3, rows, pool.dims[0]);
    float* out = call.output(0, {rows, channels});
    if (!rows) return;
    call.each(rows, [&](int64_t r) {
      const float* own = x.as<float>() + r * 3 * channels;
      float* slot = pool.as<float>() + ancestry.write[r] * channels;
      for (int64_t c = 0; c < channels; ++c) slot[c] = own[c] * own[2 * channels + c];
    });
    call.each(rows, [&](int64_t r) {
      const float* after = x.as<float>() + (3 * r + 1) * channels;
      convolution.apply(ancestry, r, nullptr, out + r * channels);
      for (int64_t c = 0; c < channels; ++c) out[r * channels + c] *= after[c];
    });
  }
};

}  // namespace

Definition& short_conv() {
  static Definition definition("ShortConv", {{F32}, {F32}, {F32}, {I32}, {I32}, {I32}, {I32}, {I32}},
                               [](const Attributes&) -> Operator* { return new ShortConv; });
  return definition;
}

}  // namespace edgespec
