// A minor compaction, in LevelDB: has the orbit write a memtable to a table, checks the table, and records it. After some failed tries
// LevelDB writes it in its own way.
//
// Memtables lie in an area: the blocks that LevelDB's arenas are made of come from there. So a call shows the orbit the memtable as it
// is, and the orbit walks it in place. It has an orbit of its own: memtables are written out while another compacts.
//
// Runs in the background thread, and in whatever thread opens a database.
#include <orbit.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "db/db_impl.h"
#include "db/memtable.h"
#include "db/version_set.h"
#include "job.h"
#include "leveldb/env.h"
#include "orbit_leveldb.h"

using leveldb::DBImpl;
using leveldb::MemTable;
using leveldb::Slice;
using leveldb::Status;
using leveldb::Version;
using leveldb::VersionEdit;

// LevelDB's own function, under the name that the Makefile gives it.
Status LevelDbOwnMinor(DBImpl* db, MemTable* mem, VersionEdit* edit, Version* base) __asm__("orbit_leveldb_own_minor");

namespace orbit_leveldb {
namespace {

// Memory of all memtables of the process; what is beyond lies in the heap, and is written in LevelDB's own way.
constexpr uint64_t kMaxMemtables = uint64_t{4} << 30;
constexpr uint64_t kBaseDeadlineUs = 10 * 1000 * 1000;
constexpr uint64_t kBytesPerSecond = 1 << 20;

std::mutex set_up;
std::atomic<orbit*> the_orbit{nullptr};
std::atomic<orbit_area*> area{nullptr};
std::atomic<char*> begin{nullptr}, end{nullptr};
std::atomic<pid_t> made_by{0};
std::atomic<uint64_t> done{0}, failures{0}, own{0};
std::atomic<bool> is_running{false};

// NULL: no area; heap it is.
orbit_area* TheArea() {
  if (area.load(std::memory_order_acquire) != nullptr) return area.load();
  std::lock_guard<std::mutex> lock(set_up);
  if (area.load() != nullptr || orbit_is_orbit()) return area.load();
  orbit_area_options options = ORBIT_AREA_OPTIONS_INIT;
  options.name = "leveldb-memtables";
  options.limit = kMaxMemtables;
  orbit_area* made = orbit_area_create_with(&options);
  orbit_area_info info;
  if (made == nullptr || orbit_area_get_info(made, &info) != 0) return nullptr;
  begin = static_cast<char*>(info.base);
  end = begin.load() + info.limit;
  made_by = getpid();
  area.store(made, std::memory_order_release);
  return made;
}

bool IsInArea(const char* block) { return block >= begin.load() && block < end.load(); }

// NULL, with a sentence in orbit_last_error().
orbit* TheOrbit() {
  std::lock_guard<std::mutex> lock(set_up);
  if (the_orbit.load() != nullptr) return the_orbit.load();
  orbit_limits limits = ORBIT_LIMITS_INIT;
  limits.memory = MemoryLimit();
  orbit_options options = ORBIT_OPTIONS_INIT;
  options.name = "leveldb-minor";
  options.entry = RunMinorTask;
  options.limits = &limits;
  options.flags = ORBIT_DATA_ONLY;
  the_orbit = orbit_create_with(&options);
  return the_orbit.load();
}

// With the mutex held. Gives why the orbit cannot do this one, or NULL.
const char* MakeJob(DBImpl* db, MemTable* mem, Job* job) {
  if (made_by.load() != getpid()) return "the memtable is of the process that this one was forked from";
  for (const char* block : mem->arena_.blocks_)
    if (!IsInArea(block)) return "the memtable is not in the area";
  return DescribeTables(db, job);
}

// Without the mutex. Gives what went wrong; empty: nothing.
std::string RunInOrbit(MemTable* mem, const Job& job, Output* output) {
  orbit* orbit = TheOrbit();
  if (orbit == nullptr) return orbit_last_error();
  const std::string encoded = Encode(job);
  std::string arguments(sizeof(MinorArguments), 0);
  const MinorArguments fixed = {mem->table_.head_, mem->table_.GetMaxHeight(), encoded.size()};
  memcpy(&arguments[0], &fixed, sizeof fixed);
  arguments += encoded;
  orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
  options.deadline_us = kBaseDeadlineUs + mem->ApproximateMemoryUsage() / kBytesPerSecond * 1000 * 1000;
  if (DeadlineUs() != 0) options.deadline_us = DeadlineUs();
  orbit_area* areas[] = {TheArea()};
  orbit_outcome outcome;
  is_running = true;
  orbit_future* future = orbit_call_async_with(orbit, 1, areas, arguments.data(), arguments.size(), &options);
  std::string bytes;
  const int error = future == nullptr ? -1 : orbit_future_wait(future, &outcome);
  is_running = false;
  if (future == nullptr) return orbit_last_error();
  TakeData(future, &bytes);
  orbit_future_free(future);
  if (error < 0) return outcome.text;
  if (outcome.value != kDone) return "the task gave up: " + bytes.substr(0, 200);
  std::vector<Output> outputs;
  if (!Decode(bytes.data(), bytes.size(), &outputs) || outputs.size() != 1) return "the task's result cannot be read";
  *output = outputs[0];
  return "";
}

// The table has the memtable's first and last key, and is what was reported.
std::string Check(DBImpl* db, MemTable* mem, const Job& job, const Output& output) {
  std::unique_ptr<leveldb::Iterator> entries(mem->NewIterator());
  entries->SeekToFirst();
  if (!entries->Valid() || entries->key() != Slice(output.smallest)) return "the first key is another one";
  entries->SeekToLast();
  if (!entries->Valid() || entries->key() != Slice(output.largest)) return "the last key is another one";
  return CheckTable(db, job.numbers[0], output);
}

// With the mutex held, which is released meanwhile. False: not done by the orbit.
bool Try(DBImpl* db, MemTable* mem, uint64_t number, Output* output) {
  Job job;
  if (const char* why = MakeJob(db, mem, &job)) {
    leveldb::Log(db->options_.info_log, "orbit: memtable not for the orbit: %s", why);
    return false;
  }
  job.numbers.push_back(db->versions_->NewFileNumber());
  job.max_output_size = UINT64_MAX;
  job.fault = NextMinorFault();
  db->pending_outputs_.insert(job.numbers[0]);
  db->mutex_.Unlock();
  std::string wrong = RunInOrbit(mem, job, output);
  if (wrong.empty()) wrong = Check(db, mem, job, *output);
  if (!wrong.empty()) {
    failures++;
    leveldb::Log(db->options_.info_log, "orbit: memtable, try %llu of %llu: %s", static_cast<unsigned long long>(number),
                 static_cast<unsigned long long>(Tries()), wrong.c_str());
  }
  db->mutex_.Lock();
  db->pending_outputs_.erase(job.numbers[0]);
  return wrong.empty();
}

}  // namespace

char* NewBlock(size_t bytes) {
  orbit_area* blocks = TheArea();
  void* block = blocks != nullptr && made_by.load() == getpid() ? orbit_alloc(blocks, bytes) : nullptr;
  return block != nullptr ? static_cast<char*>(block) : new char[bytes];
}

void FreeBlock(char* block) {
  if (IsInArea(block))
    orbit_free(block);
  else
    delete[] block;
}

void CountMinor(orbit_leveldb_counters* counters) {
  orbit_counters of_orbit = {};
  orbit* orbit = the_orbit.load();
  const bool is_known = orbit != nullptr && orbit_stats(orbit, &of_orbit) == 0;
  counters->minor = done.load();
  counters->minor_failures = failures.load();
  counters->minor_own = own.load();
  counters->minor_pages = is_known ? of_orbit.pages : 0;
  counters->minor_pid = is_known ? of_orbit.pid : 0;
  counters->is_minor_running = is_running.load();
}

}  // namespace orbit_leveldb

// Takes the place of LevelDB's: a block of a memtable.
char* leveldb::Arena::AllocateNewBlock(size_t block_bytes) {
  char* block = orbit_leveldb::NewBlock(block_bytes);
  blocks_.push_back(block);
  memory_usage_.fetch_add(block_bytes + sizeof(char*), std::memory_order_relaxed);
  return block;
}

leveldb::Arena::~Arena() {
  for (char* block : blocks_) orbit_leveldb::FreeBlock(block);
}

// Takes the place of LevelDB's, with its contract: the mutex is held, and again when it returns.
Status DBImpl::WriteLevel0Table(MemTable* mem, VersionEdit* edit, Version* base) {
  const uint64_t began = env_->NowMicros();
  orbit_leveldb::Output output;
  bool is_done = false;
  // The thread that opens a database holds nothing that an orbit could need; there is nothing to write of an empty one.
  for (uint64_t number = 1; !is_done && number <= orbit_leveldb::Tries() && mem->table_.head_->Next(0) != nullptr; number++)
    is_done = orbit_leveldb::Try(this, mem, number, &output);
  if (!is_done) {
    orbit_leveldb::own++;
    return LevelDbOwnMinor(this, mem, edit, base);
  }
  leveldb::InternalKey smallest, largest;
  smallest.DecodeFrom(output.smallest);
  largest.DecodeFrom(output.largest);
  const int level = base == nullptr ? 0 : base->PickLevelForMemTableOutput(smallest.user_key(), largest.user_key());
  edit->AddFile(level, output.number, output.size, smallest, largest);
  CompactionStats stats;
  stats.micros = static_cast<int64_t>(env_->NowMicros() - began);
  stats.bytes_written = static_cast<int64_t>(output.size);
  stats_[level].Add(stats);
  Log(options_.info_log, "Level-%d table #%llu: %llu bytes, by the orbit", level,
      static_cast<unsigned long long>(output.number), static_cast<unsigned long long>(output.size));
  orbit_leveldb::done++;
  return Status::OK();
}
