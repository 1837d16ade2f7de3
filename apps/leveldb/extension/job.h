// What crosses between LevelDB and the orbit, as bytes: a job there, results back. The parts of the
// port:
//
// job.cc       encodes and decodes both
// task.cc      in the orbit: merges the inputs into outputs
// minor.cc     in LevelDB: DBImpl::WriteLevel0Table, and the memory of memtables
// compact.cc   in LevelDB: DBImpl::DoCompactionWork, which makes the job, waits, checks the results and installs them
// fault.cc     harm on request, for tests
#ifndef ORBIT_LEVELDB_JOB_H
#define ORBIT_LEVELDB_JOB_H

#include <cstdint>
#include <string>
#include <vector>

struct orbit_future;
struct orbit_leveldb_counters;
namespace leveldb {
class DBImpl;
}

namespace orbit_leveldb {

// An input: a table of the database.
struct Input {
  uint64_t number;
  uint64_t size;
};

// A table of a deeper level, by its first and last internal key.
struct Range {
  uint64_t size;
  std::string smallest, largest;
};

// All that a compaction needs to know. Nothing in it is a pointer.
struct Job {
  std::string directory;
  // Each source is sorted: its tables follow one another without overlap.
  std::vector<std::vector<Input>> sources;
  // Level + 2, whose overlap with an output is bounded; then the deeper ones. Each is sorted.
  std::vector<std::vector<Range>> deeper;
  // Numbers that outputs take, in order. When only one is left, that output takes the rest whatever
  // its size.
  std::vector<uint64_t> numbers;
  uint64_t smallest_snapshot = 0;
  uint64_t max_output_size = 0;
  uint64_t max_overlap = 0;
  uint64_t block_size = 0, restart_interval = 0, compression = 0, bloom_bits = 0, is_paranoid = 0;
  uint64_t fault = 0;
};

// A table that the orbit wrote.
struct Output {
  uint64_t number = 0, size = 0, entries = 0;
  std::string smallest, largest;
};

std::string Encode(const Job& job);
std::string Encode(const std::vector<Output>& outputs);
// False: these bytes are no such thing. They may come from a process that is not trusted.
bool Decode(const char* bytes, size_t size, Job* job);
bool Decode(const char* bytes, size_t size, std::vector<Output>* outputs);

// What the orbit's entry is given: where the job lies, in an area.
struct Arguments {
  const char* job;
  uint64_t size;
};
// The same for a memtable, which lies in an area: where its skip list begins. The job follows.
struct MinorArguments {
  const void* head;
  int64_t height;
  uint64_t size;
};
// Values that the entry returns.
enum Result : long { kDone = 0, kBadJob = 1, kInputOutput = 2 };
long RunTask(void* store, void* arguments);
long RunMinorTask(void* store, void* arguments);

// Does the harm, if it is one of those that happen while it works.
void DoFault(uint64_t fault);

// ---- what both compactions share in LevelDB (compact.cc) ----

uint64_t MemoryLimit();
uint64_t DeadlineUs();
uint64_t Tries();
uint64_t NextMinorFault();
// Directory and options for tables, with the mutex held. Gives why the orbit cannot write tables of
// this database, or NULL.
const char* DescribeTables(leveldb::DBImpl* db, Job* job);
// What the task of this call pushed first.
void TakeData(orbit_future* future, std::string* bytes);
// That a table is what was reported. Gives what is wrong.
std::string CheckTable(leveldb::DBImpl* db, uint64_t number, const Output& output);
// Fills in what minor.cc counts.
void CountMinor(orbit_leveldb_counters* counters);

}  // namespace orbit_leveldb

#endif
