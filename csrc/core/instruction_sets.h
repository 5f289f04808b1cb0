#pragma once

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
