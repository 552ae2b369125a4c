// Which instruction sets this processor has.
#include "kernels.h"

#include "exported.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace edgespec {

extern const Kernels plain_kernels;
#ifdef EDGESPEC_X86
extern const Kernels avx2_kernels, avxvnni_kernels, avx512_kernels;
#endif
#ifdef EDGESPEC_ARM
extern const Kernels neon_kernels, dotprod_kernels, i8mm_kernels;
#endif

}  // namespace edgespec

#if defined(EDGESPEC_X86)
#include "cpu_x86.h"
#elif defined(EDGESPEC_ARM)
#include "cpu_arm.h"
#endif

namespace edgespec {
namespace {

struct Choice {
  const Kernels* kernels;
  bool usable;
};

// Those that were compiled, the best first.
const std::vector<Choice>& choices() {
  static const std::vector<Choice> found = {
#if defined(EDGESPEC_X86)
#ifndef EDGESPEC_WITHOUT_AVX512
      {&avx512_kernels, has_avx512_vnni()},
#endif
#ifndef EDGESPEC_WITHOUT_AVXVNNI
      {&avxvnni_kernels, has_avx_vnni()},
#endif
#ifndef EDGESPEC_WITHOUT_AVX2
      {&avx2_kernels, has_avx2()},
#endif
#elif defined(EDGESPEC_ARM)
#ifndef EDGESPEC_WITHOUT_I8MM
      {&i8mm_kernels, has_i8mm()},
#endif
#ifndef EDGESPEC_WITHOUT_DOTPROD
      {&dotprod_kernels, has_dotprod()},
#endif
#ifndef EDGESPEC_WITHOUT_NEON
      {&neon_kernels, true},
#endif
#endif
      {&plain_kernels, true},
  };
  return found;
}

// Null: the variable names none that can be used.
const Kernels* chosen() {
  const char* wanted = std::getenv("EDGESPEC_KERNELS");
  for (const Choice& each : choices())
    if (each.usable && (!wanted || !*wanted || !std::strcmp(wanted, each.kernels->name)))
      return each.kernels;
  return nullptr;
}

}  // namespace

const Kernels* kernels_or_none() {
  static const Kernels* found = chosen();
  return found;
}

const Kernels& kernels() { return *kernels_or_none(); }

const char* names_of_kernels() {
  static const std::string names = [] {
    std::string all;
    for (const Choice& each : choices())
      if (each.usable) all += std::string(all.empty() ? "" : ", ") + each.kernels->name;
    return all;
  }();
  return names.c_str();
}

}  // namespace edgespec

// The name of the kernels that are used; null: EDGESPEC_KERNELS names some that cannot be.
EXPORTED const char* edgespec_kernels() {
  const edgespec::Kernels* found = edgespec::kernels_or_none();
  return found ? found->name : nullptr;
}

// The names of those that can be used.
EXPORTED const char* edgespec_usable_kernels() { return edgespec::names_of_kernels(); }

// Multiplies and adds integers of 8 bits for so many blocks of a product, 2^20 at most; returns how
// many pairs that were.
EXPORTED int64_t edgespec_multiply_add(int64_t blocks) {
  uint8_t planes[256];
  int8_t x[edgespec::MultipliedBlocks * 8 * 32];
  std::memset(planes, 0x11, sizeof planes);
  std::memset(x, 1, sizeof x);
  return edgespec::kernels().multiply_add(planes, x, blocks);  // all levels are 1: the sum counts
}
