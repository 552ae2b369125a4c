// Which instruction sets this processor has.
#include "kernels.h"

#include <cstdlib>
#include <cstring>

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

const Kernels* best(const char* wanted) {
  const Choice choices[] = {
#if defined(EDGESPEC_X86)
      {&avx512_kernels, has_avx512_vnni()},
      {&avxvnni_kernels, has_avx_vnni()},
      {&avx2_kernels, has_avx2()},
#elif defined(EDGESPEC_ARM)
      {&i8mm_kernels, has_i8mm()},
      {&dotprod_kernels, has_dotprod()},
#endif
      {&plain_kernels, true},
  };
  for (const Choice& each : choices)
    if (each.usable && (!wanted || !*wanted || !std::strcmp(wanted, each.kernels->name)))
      return each.kernels;
  return nullptr;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* chosen = best(std::getenv("EDGESPEC_KERNELS"));
  static const Kernels* found = chosen ? chosen : best(nullptr);
  return *found;
}

}  // namespace edgespec

#ifdef _WIN32
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

// The name of the kernels that are used; null: EDGESPEC_KERNELS names some that cannot be.
EXPORTED const char* edgespec_kernels() {
  using namespace edgespec;
  const Kernels* chosen = best(std::getenv("EDGESPEC_KERNELS"));
  return chosen ? chosen->name : nullptr;
}
