// A program that uses LevelDB, for the tests: writes, reads back, prints a hash of the contents and what happened.
//
//   load DIRECTORY writes SEED COUNT FAULT TIMES     COUNT writes, all of them from SEED; TIMES tries do the harm FAULT
//                                                    FAULT kill: kill -9 of the orbit in TIMES tries;
//                                                    close: ends while the orbit compacts; stay: waits for ever then
//   load DIRECTORY fill COUNT                        COUNT writes of 100 bytes in the order of their keys, LevelDB's own settings
//   load DIRECTORY check                             opens, verifies, prints the hash
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/write_batch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#ifdef IN_ORBIT
#include "orbit_leveldb.h"
#endif

namespace {

constexpr int kKeys = 40000;

void Require(bool holds, const std::string& what) {
  if (holds) return;
  fprintf(stderr, "load: %s\n", what.c_str());
  exit(1);
}

uint64_t Hash(uint64_t hash, const std::string& text) {
  for (unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return (hash ^ text.size()) * 1099511628211u;
}

uint64_t state;
uint64_t Draw() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

// Every entry, with checksums verified.
uint64_t HashOf(leveldb::DB* db, uint64_t* count) {
  leveldb::ReadOptions read;
  read.verify_checksums = true;
  std::unique_ptr<leveldb::Iterator> entries(db->NewIterator(read));
  uint64_t hash = 14695981039346656037u;
  *count = 0;
  for (entries->SeekToFirst(); entries->Valid(); entries->Next(), ++*count)
    hash = Hash(Hash(hash, entries->key().ToString()), entries->value().ToString());
  Require(entries->status().ok(), entries->status().ToString());
  return hash;
}

// What was written must be there, and nothing else.
uint64_t HashOf(const std::map<std::string, std::string>& model) {
  uint64_t hash = 14695981039346656037u;
  for (const auto& entry : model) hash = Hash(Hash(hash, entry.first), entry.second);
  return hash;
}

void Write(leveldb::DB* db, int count, std::map<std::string, std::string>* model) {
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; i++) {
    char key[32];
    snprintf(key, sizeof key, "key%08d", static_cast<int>(Draw() % kKeys));
    const auto began = std::chrono::steady_clock::now();
    leveldb::Status status;
    if (Draw() % 8 == 0) {
      status = db->Delete(leveldb::WriteOptions(), key);
      model->erase(key);
    } else {
      std::string value(100 + Draw() % 400, '\0');
      for (char& byte : value) byte = static_cast<char>(Draw());
      status = db->Put(leveldb::WriteOptions(), key, value);
      (*model)[key] = value;
    }
    Require(status.ok(), status.ToString());
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
  }
  printf("write_seconds %.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  std::sort(times.begin(), times.end());
  if (!times.empty())
    printf("write_p50_us %.1f\nwrite_p999_us %.1f\nwrite_max_us %.0f\n", times[times.size() / 2],
           times[times.size() * 999 / 1000], times.back());
}

// As LevelDB's own bench fills a database.
void Fill(leveldb::DB* db, int count) {
  const std::string value(100, 'v');
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; i++) {
    char key[32];
    snprintf(key, sizeof key, "%016d", i);
    const leveldb::Status status = db->Put(leveldb::WriteOptions(), key, value);
    Require(status.ok(), status.ToString());
  }
  printf("write_seconds %.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

// CPU time of this process, and its largest size.
void ReportUse() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  printf("cpu_ms %ld\nresident_kib %ld\n",
         (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000,
         used.ru_maxrss);
}

#ifdef IN_ORBIT
// kill -9 of the orbit in so many tries, of memtables or of major compactions. Each hangs, so none ends before it is killed.
void KillWhileItRuns(uint64_t tries, bool is_minor) {
  orbit_leveldb_counters now = {};
  for (uint64_t kills = 0, failures = 0; failures < tries;) {
    const bool is_running = is_minor ? now.is_minor_running : now.is_running;
    const pid_t pid = is_minor ? now.minor_pid : now.pid;
    // The next kill waits until the try of the last one has failed.
    if (kills == failures && is_running && pid > 0 && kill(pid, SIGKILL) == 0) kills++;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    orbit_leveldb_get_counters(&now);
    failures = is_minor ? now.minor_failures : now.failures;
  }
}

// Once the orbit compacts: closes the database, or waits to be killed.
[[noreturn]] void EndEarly(const std::string& how, std::unique_ptr<leveldb::DB> db) {
  orbit_leveldb_counters now = {};
  while (!now.is_running || now.pid == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    orbit_leveldb_get_counters(&now);
  }
  printf("orbit %d\n", now.pid);
  fflush(stdout);
  while (how == "stay") pause();
  db.reset();
  exit(0);
}

void Report() {
  orbit_leveldb_counters now;
  orbit_leveldb_get_counters(&now);
  // CPU time of the orbits' processes, nanoseconds.
  unsigned long long orbit_cpu = 0;
  for (const int32_t pid : {now.pid, now.minor_pid}) {
    const std::string path = "/proc/" + std::to_string(pid) + "/schedstat";
    FILE* file = fopen(path.c_str(), "r");
    unsigned long long cpu = 0;
    if (file == nullptr) continue;
    if (fscanf(file, "%llu", &cpu) == 1) orbit_cpu += cpu;
    fclose(file);
  }
  printf("orbit_cpu_ms %llu\n", orbit_cpu / 1000000);
  printf("compactions %llu\nfailures %llu\nown %llu\nmemtables %llu\n", static_cast<unsigned long long>(now.compactions),
         static_cast<unsigned long long>(now.failures), static_cast<unsigned long long>(now.own),
         static_cast<unsigned long long>(now.memtables));
  printf("minor_pages %llu\n", static_cast<unsigned long long>(now.minor_pages));
  printf("minor %llu\nminor_failures %llu\nminor_own %llu\n", static_cast<unsigned long long>(now.minor),
         static_cast<unsigned long long>(now.minor_failures), static_cast<unsigned long long>(now.minor_own));
}

int FaultOf(const std::string& name) {
  const char* names[] = {"none", "segv", "hang", "memory", "recursion", "wrong"};
  for (int i = 0; i < 6; i++)
    if (name == names[i]) return i;
  return 0;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  Require(argc == 3 || argc == 4 || argc == 7,
          "usage: load DIRECTORY check | load DIRECTORY fill COUNT | load DIRECTORY writes SEED COUNT FAULT TIMES");
  leveldb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  if (argc != 4) {
    options.write_buffer_size = 256 << 10;
    options.max_file_size = 1 << 20;
  }
  std::unique_ptr<const leveldb::FilterPolicy> bloom(leveldb::NewBloomFilterPolicy(10));
  options.filter_policy = bloom.get();
  leveldb::DB* opened = nullptr;
  leveldb::Status status = leveldb::DB::Open(options, argv[1], &opened);
  Require(status.ok(), status.ToString());
  std::unique_ptr<leveldb::DB> db(opened);
  uint64_t count = 0;
  if (argc == 4) {
    Fill(db.get(), atoi(argv[3]));
#ifdef IN_ORBIT
    Report();
#endif
    ReportUse();
  }
  if (argc == 7) {
    std::map<std::string, std::string> model;
    state = strtoull(argv[3], nullptr, 10);
#ifdef IN_ORBIT
    // "minor-segv": when a memtable is written.
    std::string fault = argv[5];
    const bool is_minor = fault.compare(0, 6, "minor-") == 0;
    if (is_minor) fault.erase(0, 6);
    std::thread killer;
    orbit_leveldb_limits limits = {};
    // Enough for what is good, little enough to be reached soon.
    limits.memory = 128 << 20;
    const bool ends_early = fault == "close" || fault == "stay";
    if (fault == "hang") limits.deadline_us = 2 * 1000 * 1000;
    orbit_leveldb_set_limits(&limits);
    const int harm = ends_early || fault == "kill" ? ORBIT_LEVELDB_ENDLESS_LOOP : FaultOf(fault);
    orbit_leveldb_inject(harm | (is_minor ? ORBIT_LEVELDB_OF_MEMTABLES : 0), static_cast<uint32_t>(atoi(argv[6])));
    if (fault == "kill") killer = std::thread(KillWhileItRuns, atoi(argv[6]), is_minor);
#endif
    Write(db.get(), atoi(argv[4]), &model);
#ifdef IN_ORBIT
    if (ends_early) EndEarly(fault, std::move(db));
#endif
    db->CompactRange(nullptr, nullptr);
#ifdef IN_ORBIT
    if (killer.joinable()) killer.join();
    Report();
#endif
    ReportUse();
    Require(HashOf(db.get(), &count) == HashOf(model), "the database is not what was written");
  }
  printf("hash %llx\n", static_cast<unsigned long long>(HashOf(db.get(), &count)));
  printf("entries %llu\n", static_cast<unsigned long long>(count));
  return 0;
}
