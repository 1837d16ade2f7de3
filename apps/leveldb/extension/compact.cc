// A major compaction, in LevelDB: hands the job to the orbit, writes out memtables while it waits, checks what came back, and
// installs it. After some failed tries LevelDB compacts in its own way.
//
// Runs in the one thread of Env::Default() that compacts all databases of a process, so nothing here runs twice at a time;
// only the counters and limits are read by others.
#include <orbit.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <set>

#include "db/db_impl.h"
#include "db/filename.h"
#include "db/table_cache.h"
#include "db/version_set.h"
#include "job.h"
#include "leveldb/env.h"
#include "leveldb/filter_policy.h"
#include "orbit_leveldb.h"
#include "util/mutexlock.h"

static_assert(leveldb::kMajorVersion == 1 && leveldb::kMinorVersion == 23, "the port knows LevelDB 1.23");

namespace leveldb {

// As LevelDB 1.23 allocates it. Private to its db_impl.cc: IsPristine checks what it can.
struct DBImpl::CompactionState {
  struct Output {
    uint64_t number, file_size;
    InternalKey smallest, largest;
  };
  Compaction* const compaction;
  SequenceNumber smallest_snapshot;
  std::vector<Output> outputs;
  WritableFile* outfile;
  TableBuilder* builder;
  uint64_t total_bytes;
};

}  // namespace leveldb

using leveldb::Compaction;
using leveldb::DBImpl;
using leveldb::FileMetaData;
using leveldb::Slice;
using leveldb::Status;
using State = DBImpl::CompactionState;

// LevelDB's own function, under the name that the Makefile gives it.
Status LevelDbOwnWay(DBImpl* db, State* state) __asm__("orbit_leveldb_own_way");

namespace orbit_leveldb {
namespace {

// How often main checks, while it waits, whether a memtable is to be written out.
constexpr uint64_t kCheckUs = 2000;
constexpr uint64_t kBaseDeadlineUs = 30 * 1000 * 1000;
constexpr uint64_t kBytesPerSecond = 4 << 20;
// As LevelDB bounds the bytes of level + 2 that an output may overlap.
constexpr uint64_t kOverlapFactor = 10;
constexpr int kProbeKeys = 1000;

std::atomic<uint64_t> memory_limit{512 << 20}, deadline_us{0}, tries{3};
std::atomic<uint64_t> compactions{0}, failures{0}, own{0}, memtables{0};
std::atomic<int> fault{ORBIT_LEVELDB_GOOD};
std::atomic<uint32_t> fault_count{0};
std::atomic<bool> is_running{false};
std::atomic<orbit*> the_orbit{nullptr};
orbit_area* area;
pid_t made_by;

// Before main(): one thread, little memory. Where it fails, the first compaction tries again and reports it.
__attribute__((constructor)) void SetUpEarly() { orbit_init(); }

// NULL, with a sentence in orbit_last_error().
orbit* TheOrbit() {
  // A child that was forked has none of its parent's orbits.
  if (the_orbit.load() != nullptr && made_by == getpid()) return the_orbit.load();
  orbit_limits limits = ORBIT_LIMITS_INIT;
  limits.memory = memory_limit.load();
  orbit_options options = ORBIT_OPTIONS_INIT;
  options.name = "leveldb-compact";
  options.entry = RunTask;
  options.limits = &limits;
  options.flags = ORBIT_DATA_ONLY;
  orbit_area_options area_options = ORBIT_AREA_OPTIONS_INIT;
  area_options.name = "leveldb-job";
  area = orbit_area_create_with(&area_options);
  made_by = getpid();
  the_orbit = area == nullptr ? nullptr : orbit_create_with(&options);
  return the_orbit.load();
}

// That what LevelDB was built with lays its objects out as the headers say.
bool IsPristine(const DBImpl* db, const State* state) {
  return db->versions_ != nullptr && db->versions_->dbname_ == db->dbname_ &&
         db->versions_->table_cache_ == db->table_cache_ && db->background_compaction_scheduled_ &&
         state->compaction->input_version_->vset_ == db->versions_ && state->smallest_snapshot == 0 && state->outputs.empty() && state->outfile == nullptr &&
         state->builder == nullptr && state->total_bytes == 0;
}

// Bits a key of LevelDB's Bloom filter, from the size of a filter of 1000 keys: 125 bytes for each, and one.
bool FindBloomBits(const leveldb::FilterPolicy* policy, uint64_t* bits) {
  *bits = 0;
  if (policy == nullptr) return true;
  if (strcmp(policy->Name(), "leveldb.BuiltinBloomFilter2") != 0) return false;
  std::vector<Slice> keys(kProbeKeys, Slice("key"));
  std::string filter;
  policy->CreateFilter(keys.data(), kProbeKeys, &filter);
  *bits = (filter.size() - 1) / (kProbeKeys / 8);
  return true;
}

}  // namespace

const char* DescribeTables(DBImpl* db, Job* job) {
  if (db->env_ != leveldb::Env::Default()) return "the database has an Env of its own";
  if (db->user_comparator() != leveldb::BytewiseComparator()) return "the database has a comparator of its own";
  const leveldb::FilterPolicy* policy =
      db->options_.filter_policy == nullptr ? nullptr : db->internal_filter_policy_.user_policy_;
  if (!FindBloomBits(policy, &job->bloom_bits)) return "the database has a filter policy of its own";
  char directory[PATH_MAX];
  if (realpath(db->dbname_.c_str(), directory) == nullptr) return "the database's directory has no absolute name";
  job->directory = directory;
  job->block_size = db->options_.block_size;
  job->restart_interval = static_cast<uint64_t>(db->options_.block_restart_interval);
  job->compression = db->options_.compression;
  job->is_paranoid = db->options_.paranoid_checks;
  return nullptr;
}

namespace {

std::vector<Input> InputsOf(const std::vector<FileMetaData*>& files) {
  std::vector<Input> inputs;
  for (const FileMetaData* file : files) inputs.push_back({file->number, file->file_size});
  return inputs;
}

// With the mutex held. Gives why the orbit cannot do this one, or NULL.
const char* MakeJob(DBImpl* db, State* state, Job* job) {
  Compaction* compaction = state->compaction;
  if (!IsPristine(db, state)) return "the objects of the database are not those of LevelDB 1.23";
  if (const char* why = DescribeTables(db, job)) return why;
  uint64_t bytes = 0;
  for (const auto& files : compaction->inputs_) {
    for (const FileMetaData* file : files) bytes += file->file_size;
    if (compaction->level() == 0 && &files == compaction->inputs_) {
      for (const FileMetaData* file : files) job->sources.push_back({{file->number, file->file_size}});
    } else if (!files.empty()) {
      job->sources.push_back(InputsOf(files));
    }
  }
  for (int level = compaction->level() + 2; level < leveldb::config::kNumLevels; level++) {
    job->deeper.emplace_back();
    for (const FileMetaData* file : compaction->input_version_->files_[level])
      job->deeper.back().push_back(
          {file->file_size, file->smallest.Encode().ToString(), file->largest.Encode().ToString()});
  }
  job->smallest_snapshot = state->smallest_snapshot = db->snapshots_.empty()
                                                          ? db->versions_->LastSequence()
                                                          : db->snapshots_.oldest()->sequence_number();
  job->max_output_size = compaction->MaxOutputFileSize();
  job->max_overlap = kOverlapFactor * db->options_.max_file_size;
  // Twice as many as bytes of input need, since outputs may be compressed less; where they are too few, the last is larger.
  const uint64_t count = 8 + 2 * bytes / job->max_output_size + compaction->grandparents_.size();
  for (uint64_t i = 0; i < count; i++) {
    job->numbers.push_back(db->versions_->NewFileNumber());
    db->pending_outputs_.insert(job->numbers.back());
  }
  return nullptr;
}

// With the mutex held: files of these numbers are obsolete, but for the outputs that are installed.
void LetGo(DBImpl* db, const State* state, const Job& job) {
  std::set<uint64_t> used;
  for (const auto& output : state->outputs) used.insert(output.number);
  for (uint64_t number : job.numbers)
    if (used.count(number) == 0) db->pending_outputs_.erase(number);
}

uint64_t BytesRead(const Compaction* compaction) {
  uint64_t bytes = 0;
  for (const auto& files : compaction->inputs_)
    for (const FileMetaData* file : files) bytes += file->file_size;
  return bytes;
}

}  // namespace

void TakeData(orbit_future* future, std::string* bytes) {
  orbit_update* update = nullptr;
  if (pull_orbit(future, &update) == 1) {
    const orbit_item* item = orbit_update_first(update);
    if (item != nullptr && item->kind == ORBIT_ITEM_DATA)
      bytes->assign(static_cast<const char*>(item->data), item->size);
    orbit_update_free(update);
  }
}

namespace {

// What waits while the orbit works: memtables, as LevelDB writes them out between two entries.
void WriteOutMemtable(DBImpl* db) {
  if (!db->has_imm_.load(std::memory_order_relaxed)) return;
  leveldb::MutexLock lock(&db->mutex_);
  if (db->imm_ == nullptr) return;
  db->CompactMemTable();
  db->background_work_finished_signal_.SignalAll();
  memtables++;
}

// Waits for the end. What the task pushed is in *bytes. 0 or -errno.
int Await(DBImpl* db, orbit* orbit, orbit_future* future, orbit_outcome* outcome, std::string* bytes) {
  int error;
  bool is_killed = false;
  while ((error = orbit_future_wait_timeout(future, kCheckUs, outcome)) == -ETIMEDOUT &&
         outcome->kind == ORBIT_PENDING) {
    if (db->shutting_down_.load(std::memory_order_acquire)) {
      if (!is_killed) orbit_kill(orbit);
      is_killed = true;
    } else {
      WriteOutMemtable(db);
    }
  }
  TakeData(future, bytes);
  return error;
}

// One try, without the mutex. Gives what went wrong; empty: nothing.
std::string RunInOrbit(DBImpl* db, const Compaction* compaction, const Job& job, std::vector<Output>* outputs) {
  orbit* orbit = TheOrbit();
  if (orbit == nullptr) return orbit_last_error();
  const std::string encoded = Encode(job);
  char* place = static_cast<char*>(orbit_alloc(area, encoded.size()));
  if (place == nullptr) return orbit_last_error();
  memcpy(place, encoded.data(), encoded.size());
  const Arguments arguments{place, encoded.size()};
  orbit_call_options options = ORBIT_CALL_OPTIONS_INIT;
  options.deadline_us = deadline_us.load();
  if (options.deadline_us == 0)
    options.deadline_us = kBaseDeadlineUs + BytesRead(compaction) / kBytesPerSecond * 1000 * 1000;
  orbit_future* future = orbit_call_async_with(orbit, 1, &area, &arguments, sizeof arguments, &options);
  orbit_free(place);
  if (future == nullptr) return orbit_last_error();
  is_running = true;
  orbit_outcome outcome;
  std::string bytes;
  const int error = Await(db, orbit, future, &outcome, &bytes);
  is_running = false;
  orbit_future_free(future);
  if (error < 0) return outcome.text;
  if (outcome.value != kDone) return "the task gave up: " + Slice(bytes.data(), std::min<size_t>(bytes.size(), 200)).ToString();
  return Decode(bytes.data(), bytes.size(), outputs) ? "" : "the task's results cannot be read";
}

bool IsTheTable(DBImpl* db, const Output& output) {
  leveldb::ReadOptions read;
  read.verify_checksums = true;
  std::unique_ptr<leveldb::Iterator> entries(db->table_cache_->NewIterator(read, output.number, output.size));
  entries->SeekToFirst();
  if (!entries->Valid() || entries->key() != Slice(output.smallest)) return false;
  entries->SeekToLast();
  return entries->Valid() && entries->key() == Slice(output.largest) && entries->status().ok();
}

}  // namespace

std::string CheckTable(DBImpl* db, uint64_t number, const Output& output) {
  const std::string name = "output " + std::to_string(number) + ": ";
  uint64_t size = 0;
  if (output.number != number) return name + "has another number";
  if (!db->env_->GetFileSize(leveldb::TableFileName(db->dbname_, output.number), &size).ok() || size != output.size)
    return name + "the file has another size";
  return IsTheTable(db, output) ? "" : name + "the table is not what was reported";
}

namespace {

// Main trusts no result: numbers, sizes, order and bounds of keys are checked, and the tables themselves. Gives what is wrong.
std::string Check(DBImpl* db, const Compaction* compaction, const Job& job, const std::vector<Output>& outputs) {
  const leveldb::InternalKeyComparator& order = db->internal_comparator_;
  Slice least, last;
  for (const auto& files : compaction->inputs_) {
    for (const FileMetaData* file : files) {
      if (least.empty() || order.Compare(file->smallest.Encode(), least) < 0) least = file->smallest.Encode();
      if (last.empty() || order.Compare(file->largest.Encode(), last) > 0) last = file->largest.Encode();
    }
  }
  if (outputs.size() > job.numbers.size()) return "more outputs than numbers";
  for (size_t i = 0; i < outputs.size(); i++) {
    const Output& output = outputs[i];
    const std::string name = "output " + std::to_string(job.numbers[i]) + ": ";
    if (output.smallest.size() < 8 || output.largest.size() < 8) return name + "a key is too short";
    if (order.Compare(output.smallest, output.largest) > 0) return name + "keys are out of order";
    if (i > 0 && order.Compare(outputs[i - 1].largest, output.smallest) >= 0) return name + "overlaps the one before";
    if (order.Compare(output.smallest, least) < 0 || order.Compare(output.largest, last) > 0)
      return name + "keys are not of the inputs";
    const std::string wrong = CheckTable(db, job.numbers[i], output);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

void TakeOver(DBImpl* db, State* state, const std::vector<Output>& outputs) {
  for (const Output& output : outputs) {
    state->outputs.emplace_back();
    State::Output& taken = state->outputs.back();
    taken.number = output.number;
    taken.file_size = output.size;
    taken.smallest.DecodeFrom(output.smallest);
    taken.largest.DecodeFrom(output.largest);
    state->total_bytes += output.size;
    leveldb::Log(db->options_.info_log, "Generated table #%llu@%d: %llu keys, %llu bytes",
                 static_cast<unsigned long long>(output.number), state->compaction->level(),
                 static_cast<unsigned long long>(output.entries), static_cast<unsigned long long>(output.size));
  }
}

uint64_t NextFault(bool is_minor) {
  const int ordered = fault.load();
  if (((ordered & ORBIT_LEVELDB_OF_MEMTABLES) != 0) != is_minor) return 0;
  uint32_t left = fault_count.load();
  while (left > 0 && !fault_count.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0 ? static_cast<uint64_t>(ordered & ~ORBIT_LEVELDB_OF_MEMTABLES) : 0;
}

enum class End { kDone, kShutDown, kNot };

// With the mutex held, which is released meanwhile. kDone: the outputs are in the state.
End Try(DBImpl* db, State* state, uint64_t number) {
  Job job;
  leveldb::Logger* log = db->options_.info_log;
  if (const char* why = MakeJob(db, state, &job)) {
    leveldb::Log(log, "orbit: not for the orbit: %s", why);
    state->smallest_snapshot = 0;
    return End::kNot;
  }
  job.fault = NextFault(false);
  db->mutex_.Unlock();
  std::vector<Output> outputs;
  std::string wrong = RunInOrbit(db, state->compaction, job, &outputs);
  if (wrong.empty()) wrong = Check(db, state->compaction, job, outputs);
  const bool is_shut_down = db->shutting_down_.load(std::memory_order_acquire);
  if (wrong.empty()) {
    TakeOver(db, state, outputs);
  } else if (!is_shut_down) {
    failures++;
    leveldb::Log(log, "orbit: compaction, try %llu of %llu: %s", static_cast<unsigned long long>(number),
                 static_cast<unsigned long long>(tries.load()), wrong.c_str());
  }
  db->mutex_.Lock();
  LetGo(db, state, job);
  if (wrong.empty()) return End::kDone;
  state->smallest_snapshot = 0;
  return is_shut_down ? End::kShutDown : End::kNot;
}

}  // namespace

uint64_t MemoryLimit() { return memory_limit.load(); }
uint64_t DeadlineUs() { return deadline_us.load(); }
uint64_t Tries() { return tries.load(); }
uint64_t NextMinorFault() { return NextFault(true); }

}  // namespace orbit_leveldb

// Takes the place of LevelDB's, with its contract: the mutex is held, and again when it returns.
Status DBImpl::DoCompactionWork(CompactionState* state) {
  using orbit_leveldb::End;
  const uint64_t began = env_->NowMicros();
  const int level = state->compaction->level();
  Log(options_.info_log, "Compacting %d@%d + %d@%d files in the orbit", state->compaction->num_input_files(0), level,
      state->compaction->num_input_files(1), level + 1);
  End end = End::kNot;
  for (uint64_t number = 1; end == End::kNot && number <= orbit_leveldb::tries.load(); number++)
    end = orbit_leveldb::Try(this, state, number);
  if (end == End::kNot) {
    orbit_leveldb::own++;
    Log(options_.info_log, "orbit: this compaction is done in LevelDB's own way");
    return LevelDbOwnWay(this, state);
  }
  Status status;
  if (end == End::kShutDown) {
    status = Status::IOError("Deleting DB during compaction");
  } else {
    CompactionStats stats;
    stats.micros = static_cast<int64_t>(env_->NowMicros() - began);
    stats.bytes_read = static_cast<int64_t>(orbit_leveldb::BytesRead(state->compaction));
    stats.bytes_written = static_cast<int64_t>(state->total_bytes);
    stats_[level + 1].Add(stats);
    status = InstallCompactionResults(state);
    orbit_leveldb::compactions++;
  }
  if (!status.ok()) RecordBackgroundError(status);
  leveldb::VersionSet::LevelSummaryStorage summary;
  Log(options_.info_log, "compacted to: %s", versions_->LevelSummary(&summary));
  return status;
}

extern "C" void orbit_leveldb_set_limits(const orbit_leveldb_limits* limits) {
  if (limits->memory != 0) orbit_leveldb::memory_limit = limits->memory;
  if (limits->deadline_us != 0) orbit_leveldb::deadline_us = limits->deadline_us;
  if (limits->tries != 0) orbit_leveldb::tries = limits->tries;
}

extern "C" void orbit_leveldb_get_counters(orbit_leveldb_counters* counters) {
  orbit_counters of_orbit;
  orbit* orbit = orbit_leveldb::the_orbit.load();
  counters->compactions = orbit_leveldb::compactions.load();
  counters->failures = orbit_leveldb::failures.load();
  counters->own = orbit_leveldb::own.load();
  counters->memtables = orbit_leveldb::memtables.load();
  counters->pid = orbit != nullptr && orbit_stats(orbit, &of_orbit) == 0 ? of_orbit.pid : 0;
  counters->is_running = orbit_leveldb::is_running.load();
  orbit_leveldb::CountMinor(counters);
}

extern "C" void orbit_leveldb_inject(int fault, uint32_t count) {
  orbit_leveldb::fault = fault;
  orbit_leveldb::fault_count = count;
}
