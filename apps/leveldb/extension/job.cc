// Jobs and results as bytes: numbers as varints, strings with their length in front, by LevelDB's own coding.
#include "job.h"

#include "util/coding.h"

namespace orbit_leveldb {
namespace {

using leveldb::Slice;

void Put(std::string* to, uint64_t value) { leveldb::PutVarint64(to, value); }
void Put(std::string* to, const std::string& text) {
  Put(to, text.size());
  to->append(text);
}
void Put(std::string* to, const Input& input) {
  Put(to, input.number);
  Put(to, input.size);
}
void Put(std::string* to, const Range& range) {
  Put(to, range.size);
  Put(to, range.smallest);
  Put(to, range.largest);
}
void Put(std::string* to, const Output& output) {
  Put(to, output.number);
  Put(to, output.size);
  Put(to, output.entries);
  Put(to, output.smallest);
  Put(to, output.largest);
}
template <class T>
void Put(std::string* to, const std::vector<T>& items) {
  Put(to, uint64_t{items.size()});
  for (const T& item : items) Put(to, item);
}

bool Get(Slice* from, uint64_t* value) { return leveldb::GetVarint64(from, value); }
bool Get(Slice* from, std::string* text) {
  uint64_t size;
  if (!Get(from, &size) || size > from->size()) return false;
  text->assign(from->data(), size);
  from->remove_prefix(size);
  return true;
}
bool Get(Slice* from, Input* input) { return Get(from, &input->number) && Get(from, &input->size); }
bool Get(Slice* from, Range* range) {
  return Get(from, &range->size) && Get(from, &range->smallest) && Get(from, &range->largest);
}
bool Get(Slice* from, Output* output) {
  return Get(from, &output->number) && Get(from, &output->size) && Get(from, &output->entries) &&
         Get(from, &output->smallest) && Get(from, &output->largest);
}
template <class T>
bool Get(Slice* from, std::vector<T>* items) {
  uint64_t count;
  // Each item takes a byte at least: no count makes this allocate more than came.
  if (!Get(from, &count) || count > from->size()) return false;
  for (uint64_t i = 0; i < count; i++) {
    items->emplace_back();
    if (!Get(from, &items->back())) return false;
  }
  return true;
}

// The same fields in the same order, for both directions.
template <class J, class F>
bool EachNumber(J& job, F each) {
  return each(job.smallest_snapshot) && each(job.max_output_size) && each(job.max_overlap) && each(job.block_size) &&
         each(job.restart_interval) && each(job.compression) && each(job.bloom_bits) && each(job.is_paranoid) &&
         each(job.fault);
}

}  // namespace

std::string Encode(const Job& job) {
  std::string bytes;
  Put(&bytes, job.directory);
  Put(&bytes, job.sources);
  Put(&bytes, job.deeper);
  Put(&bytes, job.numbers);
  EachNumber(job, [&](uint64_t value) { return Put(&bytes, value), true; });
  return bytes;
}

std::string Encode(const std::vector<Output>& outputs) {
  std::string bytes;
  Put(&bytes, outputs);
  return bytes;
}

bool Decode(const char* bytes, size_t size, Job* job) {
  Slice from(bytes, size);
  return Get(&from, &job->directory) && Get(&from, &job->sources) && Get(&from, &job->deeper) &&
         Get(&from, &job->numbers) && EachNumber(*job, [&](uint64_t& value) { return Get(&from, &value); }) &&
         from.empty();
}

bool Decode(const char* bytes, size_t size, std::vector<Output>* outputs) {
  Slice from(bytes, size);
  return Get(&from, outputs) && from.empty();
}

}  // namespace orbit_leveldb
