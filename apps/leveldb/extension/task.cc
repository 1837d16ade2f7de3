// The task, in the orbit: merges the inputs of a job into new tables, leaving out entries that nobody can read any more.
//
// It has nothing of the database's memory. Tables are read and written by LevelDB's own public classes. What it
// wrote goes back as one update; files of a try that failed are removed by LevelDB as obsolete.
#include <orbit.h>

#include <memory>

#include "db/dbformat.h"
#include "db/filename.h"
#include "db/memtable.h"
#include "job.h"
#include "leveldb/env.h"
#include "leveldb/filter_policy.h"
#include "leveldb/iterator.h"
#include "leveldb/options.h"
#include "leveldb/table.h"
#include "leveldb/table_builder.h"
#include "orbit_leveldb.h"

namespace orbit_leveldb {
namespace {

using leveldb::Env;
using leveldb::InternalKeyComparator;
using leveldb::Iterator;
using leveldb::ParsedInternalKey;
using leveldb::Slice;
using leveldb::Status;

// Entries after which a fault happens: within the first output.
constexpr uint64_t kFaultAfter = 500;

// The entries of tables that follow one another, one open at a time.
class Source {
 public:
  Source(const Job& job, const leveldb::Options& options, const std::vector<Input>& inputs)
      : job_(job), options_(options), inputs_(inputs) {
    read_.verify_checksums = job.is_paranoid != 0;
    read_.fill_cache = false;
    OpenUntilValid();
  }
  bool Valid() const { return entries_ && entries_->Valid() && status_.ok(); }
  Slice key() const { return entries_->key(); }
  Slice value() const { return entries_->value(); }
  const Status& status() const { return status_; }
  void Next() {
    entries_->Next();
    if (!entries_->Valid()) {
      status_ = entries_->status();
      OpenUntilValid();
    }
  }

 private:
  void OpenUntilValid() {
    while (status_.ok() && next_ < inputs_.size()) {
      entries_.reset();
      table_.reset();
      const Input& input = inputs_[next_++];
      status_ = Open(input);
      if (!status_.ok()) return;
      entries_.reset(table_->NewIterator(read_));
      entries_->SeekToFirst();
      if (entries_->Valid()) return;
      status_ = entries_->status();
    }
  }
  Status Open(const Input& input) {
    leveldb::RandomAccessFile* file = nullptr;
    Status status = options_.env->NewRandomAccessFile(leveldb::TableFileName(job_.directory, input.number), &file);
    if (!status.ok())
      // Databases of versions before 1.14 have this name.
      status = options_.env->NewRandomAccessFile(leveldb::SSTTableFileName(job_.directory, input.number), &file);
    if (!status.ok()) return status;
    file_.reset(file);
    leveldb::Table* table = nullptr;
    status = leveldb::Table::Open(options_, file, input.size, &table);
    table_.reset(table);
    return status;
  }

  const Job& job_;
  const leveldb::Options& options_;
  const std::vector<Input>& inputs_;
  leveldb::ReadOptions read_;
  size_t next_ = 0;
  Status status_;
  // In this order: the table reads the file, the iterator the table.
  std::unique_ptr<leveldb::RandomAccessFile> file_;
  std::unique_ptr<leveldb::Table> table_;
  std::unique_ptr<Iterator> entries_;
};

// Decides for each entry, in order, whether anybody can read it.
class Retention {
 public:
  explicit Retention(const Job& job) : job_(job), at_(job.deeper.size(), 0) {}

  bool IsObsolete(const Slice& key) {
    ParsedInternalKey entry;
    if (!leveldb::ParseInternalKey(key, &entry)) {
      // Unreadable keys stay, as in LevelDB: to lose them would hide damage.
      has_key_ = false;
      return false;
    }
    if (!has_key_ || entry.user_key != Slice(user_key_)) {
      user_key_.assign(entry.user_key.data(), entry.user_key.size());
      has_key_ = true;
      newer_ = leveldb::kMaxSequenceNumber;
    }
    // A newer entry of this key is visible to every reader there is.
    const bool is_hidden = newer_ <= job_.smallest_snapshot;
    newer_ = entry.sequence;
    return is_hidden || (entry.type == leveldb::kTypeDeletion && entry.sequence <= job_.smallest_snapshot &&
                         !MayLieDeeper(entry.user_key));
  }

 private:
  // Keys come in ascending order, so each level is passed over once.
  bool MayLieDeeper(const Slice& user_key) {
    for (size_t level = 0; level < job_.deeper.size(); level++) {
      const std::vector<Range>& tables = job_.deeper[level];
      size_t& at = at_[level];
      while (at < tables.size() && leveldb::ExtractUserKey(tables[at].largest).compare(user_key) < 0) at++;
      if (at < tables.size() && leveldb::ExtractUserKey(tables[at].smallest).compare(user_key) <= 0) return true;
    }
    return false;
  }

  const Job& job_;
  std::vector<size_t> at_;
  std::string user_key_;
  bool has_key_ = false;
  uint64_t newer_ = 0;
};

// Writes outputs, a new one when the last is large enough or overlaps too much of level + 2.
class Writer {
 public:
  Writer(const Job& job, const leveldb::Options& options, const InternalKeyComparator& order)
      : job_(job), options_(options), order_(order) {}
  ~Writer() {
    if (builder_) builder_->Abandon();
  }

  // For every entry, also those left out: ends an output before this key if it must not reach so far.
  Status Before(const Slice& key) {
    const bool ends = OverlapsTooMuch(key) && builder_ && outputs_.size() < job_.numbers.size();
    return ends ? Finish() : Status::OK();
  }

  Status Add(const Slice& key, const Slice& value) {
    if (!builder_) {
      Status status = Open();
      if (!status.ok()) return status;
      outputs_.back().smallest = key.ToString();
    }
    outputs_.back().largest.assign(key.data(), key.size());
    builder_->Add(key, value);
    if (builder_->FileSize() >= job_.max_output_size && outputs_.size() < job_.numbers.size()) return Finish();
    return builder_->status();
  }

  Status Finish() {
    if (!builder_) return Status::OK();
    Status status = builder_->Finish();
    outputs_.back().size = builder_->FileSize();
    outputs_.back().entries = builder_->NumEntries();
    builder_.reset();
    if (status.ok()) status = file_->Sync();
    if (status.ok()) status = file_->Close();
    file_.reset();
    return status;
  }

  std::vector<Output>& outputs() { return outputs_; }

 private:
  Status Open() {
    leveldb::WritableFile* file = nullptr;
    outputs_.emplace_back();
    outputs_.back().number = job_.numbers[outputs_.size() - 1];
    Status status =
        options_.env->NewWritableFile(leveldb::TableFileName(job_.directory, outputs_.back().number), &file);
    if (!status.ok()) return status;
    file_.reset(file);
    builder_.reset(new leveldb::TableBuilder(options_, file));
    return status;
  }

  bool OverlapsTooMuch(const Slice& key) {
    if (job_.deeper.empty()) return false;
    const std::vector<Range>& tables = job_.deeper[0];
    for (; passed_ < tables.size() && order_.Compare(key, tables[passed_].largest) > 0; passed_++)
      if (has_entry_) overlap_ += tables[passed_].size;
    has_entry_ = true;
    if (overlap_ <= job_.max_overlap) return false;
    overlap_ = 0;
    return true;
  }

  const Job& job_;
  const leveldb::Options& options_;
  const InternalKeyComparator& order_;
  std::vector<Output> outputs_;
  std::unique_ptr<leveldb::WritableFile> file_;
  std::unique_ptr<leveldb::TableBuilder> builder_;
  size_t passed_ = 0;
  uint64_t overlap_ = 0;
  bool has_entry_ = false;
};

Source* FirstOf(const std::vector<std::unique_ptr<Source>>& sources, const InternalKeyComparator& order) {
  Source* first = nullptr;
  for (const auto& source : sources)
    if (source->Valid() && (first == nullptr || order.Compare(source->key(), first->key()) < 0)) first = source.get();
  return first;
}

Status Compact(const Job& job, const leveldb::Options& options, const InternalKeyComparator& order, Writer* writer) {
  std::vector<std::unique_ptr<Source>> sources;
  for (const auto& inputs : job.sources) sources.emplace_back(new Source(job, options, inputs));
  Retention retention(job);
  uint64_t count = 0;
  while (Source* first = FirstOf(sources, order)) {
    Status status = writer->Before(first->key());
    if (status.ok() && !retention.IsObsolete(first->key())) status = writer->Add(first->key(), first->value());
    if (!status.ok()) return status;
    first->Next();
    if (++count == kFaultAfter) DoFault(job.fault);
  }
  for (const auto& source : sources)
    if (!source->status().ok()) return source->status();
  return writer->Finish();
}

// To be read by LevelDB, which trusts none of it.
void Push(const std::string& bytes) {
  orbit_update* update = orbit_update_create();
  orbit_update_add_data(update, bytes.data(), bytes.size());
  orbit_push(update);
  orbit_update_free(update);
}

// How tables of this database are written.
struct Tables {
  explicit Tables(const Job& job)
      : order(leveldb::BytewiseComparator()),
        bloom(job.bloom_bits ? leveldb::NewBloomFilterPolicy(static_cast<int>(job.bloom_bits)) : nullptr),
        filter(bloom.get()) {
    options.comparator = &order;
    options.filter_policy = bloom ? &filter : nullptr;
    options.env = Env::Default();
    options.block_size = job.block_size;
    options.block_restart_interval = static_cast<int>(job.restart_interval);
    options.compression = static_cast<leveldb::CompressionType>(job.compression);
    options.paranoid_checks = job.is_paranoid != 0;
  }
  const InternalKeyComparator order;
  const std::unique_ptr<const leveldb::FilterPolicy> bloom;
  const leveldb::InternalFilterPolicy filter;
  leveldb::Options options;
};

// Writes out a memtable of main: its skip list lies in an area, and is walked where it lies, by a memtable of our own that begins there.
Status WriteMemtable(const Job& job, const MinorArguments& arguments, const InternalKeyComparator& order, Writer* writer) {
  using Node = leveldb::MemTable::Table::Node;
  leveldb::MemTable* memtable = new leveldb::MemTable(order);
  memtable->Ref();
  const_cast<Node*&>(memtable->table_.head_) = static_cast<Node*>(const_cast<void*>(arguments.head));
  memtable->table_.max_height_ = static_cast<int>(arguments.height);
  std::unique_ptr<Iterator> entries(memtable->NewIterator());
  Status status;
  uint64_t count = 0;
  for (entries->SeekToFirst(); status.ok() && entries->Valid(); entries->Next()) {
    status = writer->Add(entries->key(), entries->value());
    if (++count == kFaultAfter) DoFault(job.fault);
  }
  entries.reset();
  memtable->Unref();
  return status.ok() ? writer->Finish() : status;
}

long Report(const Job& job, const Status& status, Writer* writer) {
  if (!status.ok()) {
    Push(status.ToString());
    return kInputOutput;
  }
  if (job.fault == ORBIT_LEVELDB_WRONG_RESULT)
    for (Output& output : writer->outputs()) output.largest = output.smallest, output.entries++;
  Push(Encode(writer->outputs()));
  return kDone;
}

}  // namespace

long RunTask(void*, void* raw) {
  const Arguments* arguments = static_cast<const Arguments*>(raw);
  Job job;
  if (!Decode(arguments->job, arguments->size, &job) || job.numbers.empty()) return kBadJob;
  const Tables tables(job);
  Writer writer(job, tables.options, tables.order);
  return Report(job, Compact(job, tables.options, tables.order, &writer), &writer);
}

long RunMinorTask(void*, void* raw) {
  MinorArguments arguments;
  memcpy(&arguments, raw, sizeof arguments);
  Job job;
  if (!Decode(static_cast<const char*>(raw) + sizeof arguments, arguments.size, &job) || job.numbers.empty()) return kBadJob;
  const Tables tables(job);
  Writer writer(job, tables.options, tables.order);
  return Report(job, WriteMemtable(job, arguments, tables.order, &writer), &writer);
}

}  // namespace orbit_leveldb
