#include "simd_avx2.h"

#include "attention.h"
#include "delta.h"
#include "elementwise.h"
#include "products.h"

namespace edgespec {

extern const Kernels avx2_kernels = {"avx2", round_row, product, multiply_add, attend, gate,
                                     sigmoid_gate, norm, moments, softmax, decays, delta_step,
                                     delta_row, state_row};

}  // namespace edgespec
