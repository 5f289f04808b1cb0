#pragma once

// X(name, ...) for each instruction set that kernels are compiled for (CMakeLists.txt), the narrowest first.
#if !defined(LAVAGNA_X86)
#define LAVAGNA_EACH_INSTRUCTION_SET(X, ...) X(baseline, __VA_ARGS__)
#elif defined(LAVAGNA_SANITIZE)
#define LAVAGNA_EACH_INSTRUCTION_SET(X, ...) X(baseline, __VA_ARGS__) X(avx512, __VA_ARGS__)
#else
#define LAVAGNA_EACH_INSTRUCTION_SET(X, ...) X(baseline, __VA_ARGS__) X(avx2, __VA_ARGS__) X(avx512, __VA_ARGS__)
#endif

namespace lavagna {

// The compiler and its version, for people.
const char* compiler();

// Number of the instruction sets that kernels were compiled for, and the name of each, the widest last.
int instruction_set_count();
const char* instruction_set_name(int index);

// Whether the processor and the system that we run on have it.
bool instruction_set_usable(int index);

// The one that kernels run on: the widest usable one, until another is chosen.
int instruction_set();
void choose_instruction_set(int index);

// Whether it has products of pairs of bfloat16 (core/factors.h), on a processor that has them.
bool bfloat16_products();

}  // namespace lavagna
