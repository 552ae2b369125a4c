// Functions of rows x [..., N] float32. A row's result has the same bits beside whatever others and
// on every processor, as that of ONNX Runtime's own operators has not.
//
//   Norm     x / sqrt(mean(x^2) + epsilon) * weight, ONNX's RMSNormalization. With a bias, of x less
//            its mean, and the bias is added: LayerNormalization.
//            Inputs: x, weight [N], and optionally bias [N]. Attribute: epsilon.
//   Moments  mean(x) and sqrt(variance(x) + epsilon), [..., 2]. Attribute: epsilon.
//   Softmax  of a row's numbers.
//   Sigmoid  of each number.
#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "op.h"
#include "weights.h"

namespace edgespec {
namespace {

Tensor rows_given(const Call& call) {
  const Tensor x = call.input(0);
  if (x.type != F32 || x.rank < 1 || x.dims[x.rank - 1] < 1)
    refuse("x must be float32 with rows of some numbers");
  return x;
}

int64_t width_of(const Tensor& x) { return x.dims[x.rank - 1]; }

// Runs function(row, out) for each row of x, which gives so many results.
template <class Function>
void each_row(const Call& call, const Tensor& x, int64_t results, const Function& function) {
  const int64_t width = width_of(x);
  Tensor like = x;
  like.dims[x.rank - 1] = results;
  float* out = call.output(0, like.dims, like.rank);
  call.by_row(rows_of(x), width, [&](int64_t r) {
    function(x.as<float>() + r * width, out + r * results);
  });
}

class Norm : public Operator {
 public:
  explicit Norm(const Attributes& attributes) : epsilon_(attributes.real("epsilon", 0.0f)) {}

  void compute(const Call& call) override {
    const Tensor x = rows_given(call), weight = call.input(1), bias = call.input(2);
    const int64_t width = width_of(x);
    weight.check("weight", F32, {width});
    if (bias) bias.check("bias", F32, {width});
    each_row(call, x, width, [&](const float* row, float* out) {
      if (bias) centred(row, weight.as<float>(), bias.as<float>(), out, width);
      else kernels().norm(row, weight.as<float>(), epsilon_, out, width);
    });
  }

 private:
  void centred(const float* x, const float* weight, const float* bias, float* out,
               int64_t width) const {
    float mean, variance;
    kernels().moments(x, width, &mean, &variance);
    const float inverse = 1.0f / std::sqrt(variance + epsilon_);
    for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
  }

  float epsilon_;
};

class Moments : public Operator {
 public:
  explicit Moments(const Attributes& attributes) : epsilon_(attributes.real("epsilon", 0.0f)) {}

  void compute(const Call& call) override {
    const Tensor x = rows_given(call);
    each_row(call, x, 2, [&](const float* row, float* out) {
      float variance;
      kernels().moments(row, width_of(x), out, &variance);
      out[1] = std::sqrt(variance + epsilon_);
    });
  }

 private:
  float epsilon_;
};

class SoftmaxOfRows : public Operator {
 public:
  void compute(const Call& call) override {
    const Tensor x = rows_given(call);
    each_row(call, x, width_of(x), [&](const float* row, float* out) {
      kernels().softmax(row, out, width_of(x));
    });
  }
};

class Sigmoid : public Operator {
 public:
  void compute(const Call& call) override {
    const Tensor x = rows_given(call);
    each_row(call, x, width_of(x), [&](const float* row, float* out) {
      std::fill_n(out, width_of(x), 1.0f);
      kernels().sigmoid_gate(row, out, width_of(x));
    });
  }
};

}  // namespace

Definition& norm() {
  static Definition definition(
      "Norm", {{F32}, {F32}, {F32, Optional}},
      [](const Attributes& attributes) -> Operator* { return new Norm(attributes); });
  return definition;
}

Definition& moments() {
  static Definition definition(
      "Moments", {{F32}},
      [](const Attributes& attributes) -> Operator* { return new Moments(attributes); });
  return definition;
}

Definition& softmax() {
  static Definition definition("Softmax", {{F32}},
                               [](const Attributes&) -> Operator* { return new SoftmaxOfRows; });
  return definition;
}

Definition& sigmoid() {
  static Definition definition("Sigmoid", {{F32}},
                               [](const Attributes&) -> Operator* { return new Sigmoid; });
  return definition;
}

}  // namespace edgespec
