#include "cpu_info.h"

#define LAVAGNA_STRING_(x) #x
#define LAVAGNA_STRING(x) LAVAGNA_STRING_(x)

#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define LAVAGNA_X86 1
#endif

namespace lavagna {

const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#elif defined(_MSC_VER)
  return "msvc " LAVAGNA_STRING(_MSC_VER);
#else
  return "unknown";
#endif
}

namespace {

bool always() { return true; }

#if defined(LAVAGNA_X86)
bool avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool avx512() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct InstructionSet {
  const char* name;
  bool (*usable)();
};

constexpr InstructionSet instruction_sets[] = {
    {"baseline", always},
#if defined(LAVAGNA_X86)
    {"avx2", avx2},
    {"avx512", avx512},
#elif defined(__aarch64__)
    {"neon", always},
#endif
};

}  // namespace

int instruction_set_count() { return sizeof(instruction_sets) / sizeof(instruction_sets[0]); }

const char* instruction_set_name(int index) { return instruction_sets[index].name; }

bool instruction_set_usable(int index) { return instruction_sets[index].usable(); }

}  // namespace lavagna
