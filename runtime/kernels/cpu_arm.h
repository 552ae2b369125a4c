// What an ARM processor of 64 bits and its operating system offer, beyond NEON, which all have.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#endif

namespace edgespec {
namespace {

// Each system's number or name of a set. They are written out, because headers may be older.
#if defined(__linux__)
inline bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
inline bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
#elif defined(__APPLE__)
inline bool has(const char* name) {
  int found = 0;
  size_t size = sizeof found;
  return !sysctlbyname(name, &found, &size, nullptr, 0) && found;
}
inline bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
inline bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(_WIN32)
inline bool has_dotprod() { return IsProcessorFeaturePresent(43); }
inline bool has_i8mm() { return IsProcessorFeaturePresent(66); }
#else
inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }
#endif

}  // namespace
}  // namespace edgespec
