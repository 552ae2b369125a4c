// GatedUnit: activation(gate) * up, of rows that hold gate and up side by side.
//
// Input: x [S, 2 N] float32. Output [S, N]. Attributes: `activation`, one of silu, gelu_tanh and
// clamped; `alpha` and `limit` of the last, gpt-oss's.
#include "kernels.h"
#include "op.h"
#include "weights.h"

namespace edgespec {
namespace {

class GatedUnit : public Operator {
 public:
  explicit GatedUnit(const Attributes& attributes) {
    const std::string name = attributes.text("activation");
    if (name == "silu") gate_.kind = Gate::Silu;
    else if (name == "gelu_tanh") gate_.kind = Gate::GeluTanh;
    else if (name == "clamped") gate_.kind = Gate::Clamped;
    else refuse("activation '%s' is not known", name.c_str());
    gate_.alpha = attributes.real("alpha", 1.0f);
    gate_.limit = attributes.real("limit", 0.0f);
  }

  void compute(const Call& call) override {
    const Tensor x = call.input(0);
    if (x.type != F32 || x.rank < 1 || x.dims[x.rank - 1] % 2)
      refuse("x must be float32 with an even last dimension");
    const int64_t size = x.dims[x.rank - 1] / 2, rows = rows_of(x);
    float* out = call.output(0, {rows, size});
    call.by_row(rows, size, [&](int64_t r) {
      const float* row = x.as<float>() + r * 2 * size;
      kernels().gate(gate_, row, row + size, out + r * size, size);
    });
  }

 private:
  Gate gate_;
};

}  // namespace

Definition& gated_unit() {
  static Definition definition(
      "GatedUnit", {{F32}},
      [](const Attributes& attributes) -> Operator* { return new GatedUnit(attributes); });
  return definition;
}

}  // namespace edgespec
