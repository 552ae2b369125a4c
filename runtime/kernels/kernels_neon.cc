#include "simd_neon.h"

#include "attention.h"
#include "delta.h"
#include "elementwise.h"
#include "products.h"

namespace edgespec {

extern const Kernels neon_kernels = {"neon", round_row, product, multiply_add, attend, gate,
                                     sigmoid_gate, norm, moments, softmax, decays, delta_step,
                                     delta_row, state_row};

}  // namespace edgespec
