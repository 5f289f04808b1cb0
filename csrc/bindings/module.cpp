// The one place where Python and the native code meet: what concerns the whole module here, each kernel in its file.
#include "bindings.h"

#include "../core/instruction_sets.h"
#include "../core/pages.h"
#include "../core/parallel.h"

NB_MODULE(_native, module) {
  using namespace lavagna;
  module.doc() = "Native part of lavagna; read it through lavagna.native.";

  module.def("compiler", &compiler, "The compiler that built this module, with its version.");

  module.def(
      "instruction_sets",
      [] {
        nb::list usable;
        for (int i = 0; i < instruction_set_count(); ++i)
          if (instruction_set_usable(i)) usable.append(instruction_set_name(i));
        return usable;
      },
      nb::sig("def instruction_sets() -> list[str]"),
      "The instruction sets that can be used here, the widest last.");

  module.def(
      "instruction_set", [] { return instruction_set_name(instruction_set()); },
      "The instruction set that kernels run on.");

  module.def("choose_instruction_set", &choose_instruction_set, nb::arg("index"),
             "Run kernels on this one of instruction_sets().");

  module.def("bfloat16_products", &bfloat16_products,
             "Whether that set and the processor can make products of bfloat16 numbers.");

  module.def("set_openmp", &set_openmp, nb::arg("parallel"), nb::arg("thread_number"), nb::arg("thread_count"),
             "Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's OpenMP runtime.");

  module.def("use_one_thread", &use_one_thread, "Run kernels on the calling thread alone from now on.");

  module.def("gather_pages", &gather_pages, nb::arg("address"), nb::arg("bytes"), Unlocked(),
             "Ask the system to hold these bytes in large pages.");

  module.def("expect_pages", &expect_pages, nb::arg("address"), nb::arg("bytes"),
             "Ask the system for large pages behind these bytes, which nobody has touched yet.");

  bind_limits(module);
  bind_program(module);
  bind_elementwise(module);
  bind_rms_norm(module);
  bind_gated_delta(module);
  bind_gated_linear(module);
  bind_selective_scan(module);
  bind_short_conv(module);
  bind_skinny_linear(module);
}
