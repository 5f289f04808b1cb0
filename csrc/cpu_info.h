#pragma once

namespace lavagna {

// The compiler and its version, for people.
const char* compiler();

// Number of the instruction sets below, and the name of each.
int instruction_set_count();
const char* instruction_set_name(int index);

// Whether the processor and the system that we run on have it.
bool instruction_set_usable(int index);

}  // namespace lavagna
