#pragma once

#include "instruction_sets.h"

// Declare the kernels of one recurrence: `Type` holds pointers to functions, every instruction set has a constant
// `name` of it, and lavagna::name() is the one for the set that kernels run on.
#define LAVAGNA_KERNELS(Type, name)                                                                  \
  LAVAGNA_EACH_INSTRUCTION_SET(LAVAGNA_TABLE, Type, name)                                            \
  namespace lavagna {                                                                                \
  [[maybe_unused]] static const Type& name() {                                                       \
    const Type* const tables[] = {LAVAGNA_EACH_INSTRUCTION_SET(LAVAGNA_TABLE_ADDRESS, Type, name)};  \
    return *tables[instruction_set()];                                                               \
  }                                                                                                  \
  }

#define LAVAGNA_TABLE(set, Type, name) namespace lavagna::set { extern const Type name; }
#define LAVAGNA_TABLE_ADDRESS(set, Type, name) &set::name,
