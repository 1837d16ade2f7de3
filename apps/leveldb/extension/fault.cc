// Harm on request, for tests.
#include <cstdlib>
#include <cstring>

#include "job.h"
#include "orbit_leveldb.h"

namespace orbit_leveldb {
namespace {

volatile int sink;

__attribute__((noinline)) int RecurseForEver(int level) {
  volatile char frame[512];
  frame[level & 511] = static_cast<char>(level);
  if (sink == -1) return level;
  return RecurseForEver(level + 1) + frame[level & 511];
}

__attribute__((noinline)) void WriteToNull() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
}

__attribute__((noinline)) void AllocateForEver() {
  constexpr size_t kPiece = 1 << 20;
  for (;;) {
    void* piece = malloc(kPiece);
    if (piece == nullptr) abort();
    memset(piece, 1, kPiece);
    sink = *static_cast<char*>(piece);
  }
}

}  // namespace

void DoFault(uint64_t fault) {
  switch (fault) {
    case ORBIT_LEVELDB_NULL_WRITE:
      WriteToNull();
      break;
    case ORBIT_LEVELDB_ENDLESS_LOOP:
      for (;;) sink = 1;
    case ORBIT_LEVELDB_MEMORY:
      AllocateForEver();
      break;
    case ORBIT_LEVELDB_RECURSION:
      sink = RecurseForEver(0);
      break;
    default:
      break;
  }
}

}  // namespace orbit_leveldb
