// What the pass knows of functions by their names: which wait for work, which acquire and release,
// which are too cheap to make a loop worth a mark.
#ifndef RMK_SECTIONS_NAMES_H
#define RMK_SECTIONS_NAMES_H

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSwitch.h"

namespace names {

/// Waits for a condition, in which its mutex is released.
inline bool waitsForCondition(llvm::StringRef name)
{
    return llvm::StringSwitch<bool>(name)
        .Cases("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait", true)
        .Cases("cnd_wait", "cnd_timedwait", true)
        .Default(false);
}

/// May wait without an end of its own, in a program that is well: for a client, a child, a thread,
/// a signal, the clock.
inline bool waits(llvm::StringRef name)
{
    return waitsForCondition(name) ||
        llvm::StringSwitch<bool>(name)
            .Cases("accept", "accept4", "select", "pselect", "poll", "ppoll", true)
            .Cases("epoll_wait", "epoll_pwait", "epoll_pwait2", "io_getevents", "io_uring_wait_cqe", true)
            .Cases("recv", "recvfrom", "recvmsg", "recvmmsg", "read", "readv", "mq_receive", "msgrcv", true)
            .Cases("fgets", "fgetc", "getc", "getchar", "getline", "getdelim", "fread", true)
            .Cases("__isoc99_scanf", "__isoc99_fscanf", "scanf", "fscanf", true)
            .Cases("wait", "wait3", "wait4", "waitpid", "waitid", "pthread_join", "thrd_join", true)
            .Cases("sem_wait", "sem_timedwait", "sem_clockwait", "pthread_barrier_wait", true)
            .Cases("sigwait", "sigwaitinfo", "sigtimedwait", "sigsuspend", "pause", true)
            .Cases("sleep", "usleep", "nanosleep", "clock_nanosleep", "thrd_sleep", true)
            .Default(false);
}

/// Acquires the lock that is its first argument; the function that releases it, empty for others.
inline llvm::StringRef released(llvm::StringRef acquires)
{
    return llvm::StringSwitch<llvm::StringRef>(acquires)
        .Cases("pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_timedlock", "pthread_mutex_unlock")
        .Cases("pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pthread_rwlock_unlock")
        .Cases("pthread_rwlock_tryrdlock", "pthread_rwlock_trywrlock", "pthread_rwlock_unlock")
        .Cases("pthread_spin_lock", "pthread_spin_trylock", "pthread_spin_unlock")
        .Cases("mtx_lock", "mtx_trylock", "mtx_timedlock", "mtx_unlock")
        .Default("");
}

/// Acquires only where it answers 0.
inline bool mayFail(llvm::StringRef acquires)
{
    return acquires.find("try") != llvm::StringRef::npos || acquires.find("timed") != llvm::StringRef::npos;
}

/// Takes about as long as a pair of marks.
inline bool isCheap(llvm::StringRef name)
{
    return llvm::StringSwitch<bool>(name)
        .Cases("strlen", "strnlen", "strcmp", "strncmp", "strchr", "strrchr", "memcmp", "memchr", true)
        .Cases("memcpy", "memmove", "memset", "strcpy", "strncpy", "strcasecmp", "strncasecmp", true)
        .Cases("tolower", "toupper", "__ctype_b_loc", "__ctype_tolower_loc", "__ctype_toupper_loc", true)
        .Cases("htons", "ntohs", "htonl", "ntohl", "__errno_location", true)
        .Default(false);
}

} // namespace names

#endif
