#include "instruction_sets.h"

#define LAVAGNA_STRING_(x) #x
#define LAVAGNA_STRING(x) LAVAGNA_STRING_(x)

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

bool has_baseline() { return true; }

#if defined(LAVAGNA_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct InstructionSet {
  const char* name;
  bool (*usable)();
};

#define LAVAGNA_ENTRY(set, ...) {#set, has_##set},
constexpr InstructionSet instruction_sets[] = {LAVAGNA_EACH_INSTRUCTION_SET(LAVAGNA_ENTRY, )};

constexpr int count = sizeof(instruction_sets) / sizeof(instruction_sets[0]);
int chosen = -1;

}  // namespace

int instruction_set_count() { return count; }

const char* instruction_set_name(int index) { return instruction_sets[index].name; }

bool instruction_set_usable(int index) { return instruction_sets[index].usable(); }

int instruction_set() {
  if (chosen < 0)
    for (chosen = count - 1; !instruction_set_usable(chosen);) --chosen;
  return chosen;
}

void choose_instruction_set(int index) { chosen = index; }

bool bfloat16_products() {
#if defined(LAVAGNA_PAIRS)
  return instruction_sets[instruction_set()].usable == has_avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace lavagna
