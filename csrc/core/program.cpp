#include "program.h"

namespace lavagna {
namespace {

thread_local Program* current = nullptr;

}  // namespace

Program* Program::recorded() { return current; }

void Program::record(Program* program) { current = program; }

}  // namespace lavagna
