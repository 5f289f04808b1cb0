#pragma once

#include "instruction_sets.h"

// Declare the kernels of one recurrence: `Type` holds pointers to functions, every instruction set has a constant
// `name` of it, and lavagna::name() is the one for the set that kernels run on.
#if defined(LAVAGNA_X86)
#define LAVAGNA_KERNELS(Type, name)                                                            \
  namespace lavagna::baseline { extern const Type name; }                                      \
  namespace lavagna::avx2 { extern const Type name; }                                          \
  namespace lavagna::avx512 { extern const Type name; }                                        \
  namespace lavagna {                                                                          \
  [[maybe_unused]] static const Type& name() {                                                 \
    const Type* const tables[] = {&baseline::name, &avx2::name, &avx512::name};                \
    return *tables[instruction_set()];                                                         \
  }                                                                                            \
  }
#else
#define LAVAGNA_KERNELS(Type, name)                                                            \
  namespace lavagna::baseline { extern const Type name; }                                      \
  namespace lavagna {                                                                          \
  [[maybe_unused]] static const Type& name() { return baseline::name; }                        \
  }
#endif
