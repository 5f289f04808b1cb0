// The one place where Python and the native code meet.
#include <nanobind/nanobind.h>

#include "cpu_info.h"

namespace nb = nanobind;

NB_MODULE(_native, module) {
  module.doc() = "Native part of lavagna; read it through lavagna.native.";

  module.def("compiler", &lavagna::compiler, "The compiler that built this module, with its version.");

  module.def(
      "instruction_sets",
      [] {
        nb::list usable;
        for (int i = 0; i < lavagna::instruction_set_count(); ++i)
          if (lavagna::instruction_set_usable(i)) usable.append(lavagna::instruction_set_name(i));
        return usable;
      },
      nb::sig("def instruction_sets() -> list[str]"),
      "The instruction sets that can be used here, the widest last.");
}
