/* The process as a whole, its threads and its children. */
#include "objects.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <unistd.h>

static char text[4096];
static pid_t child;

static void folder_make(void) { IS(mkdir("inside", 0755) == 0); }
static void folder_change(void) { IS(chdir("inside") == 0); }
static void folder_check(void) { IS(access("inside", F_OK) == 0); }
static void umask_make(void) { umask(027); }
static void umask_change(void) { umask(077); }
static void umask_check(void) { IS(umask(0) == 027); }

static struct rlimit limit;
static void rlimit_make(void)
{
    IS(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 200;
    IS(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}
static void rlimit_change(void)
{
    struct rlimit other = {100, limit.rlim_max};
    IS(setrlimit(RLIMIT_NOFILE, &other) == 0);
}
static void rlimit_check(void)
{
    struct rlimit now;
    IS(getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == 200);
}

static void nice_make(void) { errno = 0; }
static void nice_change(void) { IS(nice(5) != -1); }
static void nice_check(void) { IS(getpriority(PRIO_PROCESS, 0) == 0); }
static cpu_set_t cpus;
static void affinity_make(void)
{
    IS(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    NEEDS(CPU_COUNT(&cpus) > 1);
}
static void affinity_change(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &cpus)) {
            CPU_SET(i, &one);
            break;
        }
    IS(sched_setaffinity(0, sizeof one, &one) == 0);
}
static void affinity_check(void)
{
    cpu_set_t now;
    IS(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &cpus));
}
static const struct sched_param NONE = {0};
static void policy_change(void) { IS(sched_setscheduler(0, SCHED_BATCH, &NONE) == 0); }
static void policy_check(void) { IS(sched_getscheduler(0) == SCHED_OTHER); }
static void ioprio_change(void) { IS(syscall(SYS_ioprio_set, 1, 0, 3 << 13) == 0); }
static void ioprio_check(void) { IS(syscall(SYS_ioprio_get, 1, 0) != 3 << 13); }

static void name_make(void) { prctl(PR_SET_NAME, "before"); }
static void name_change(void) { prctl(PR_SET_NAME, "after"); }
static void name_check(void)
{
    prctl(PR_GET_NAME, text);
    IS(!strcmp(text, "before"));
}
static void slack_make(void) { prctl(PR_SET_TIMERSLACK, 70000); }
static void slack_change(void) { prctl(PR_SET_TIMERSLACK, 90000); }
static void slack_check(void) { IS(prctl(PR_GET_TIMERSLACK) == 70000); }
static void death_make(void) { prctl(PR_SET_PDEATHSIG, 10); }
static void death_change(void) { prctl(PR_SET_PDEATHSIG, 0); }
static void death_check(void)
{
    int now = 0;
    IS(prctl(PR_GET_PDEATHSIG, &now) == 0 && now == 10);
}
static void reaper_change(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
static void reaper_check(void)
{
    int now = 9;
    IS(prctl(PR_GET_CHILD_SUBREAPER, &now) == 0 && now == 0);
}
static void dumpable_change(void) { prctl(PR_SET_KEEPCAPS, 1); }
static void dumpable_check(void) { IS(prctl(PR_GET_KEEPCAPS) == 0); }
static void persona_change(void) { personality(ADDR_NO_RANDOMIZE); }
static void persona_check(void) { IS(!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)); }
static void nothing(void) {}

static pid_t group;
static void group_make(void) { group = getpgrp(); }
static void group_change(void) { IS(setpgid(0, 0) == 0); }
static void group_check(void) { IS(getpgrp() == group); }
static pid_t session;
static void session_make(void) { session = getsid(0); }
static void session_change(void) { IS(setsid() != -1); }
static void session_check(void) { IS(getsid(0) == session); }

static void newprivs_change(void) { IS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0); }
static void newprivs_check(void) { IS(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0); }
static void filter(void)
{
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog all = {1, &allow};
    NEEDS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0);
}
static int has_filter(void) { return prctl(PR_GET_SECCOMP) == 2; }
static void seccomp_check(void) { IS(!has_filter()); }
static void seccomp_before_check(void) { IS(has_filter() && text[0] == 0); }
static void text_change(void) { text[0] = 1; }
static void user_make(void) { NEEDS(getuid() == 0); }
static void user_change(void) { IS(setresuid(65534, 65534, 0) == 0); }
static void user_check(void) { IS(geteuid() == 0); }
static void root_change(void) { IS(mkdir("root", 0755) == 0 && chroot("root") == 0); }
static void root_check(void) { IS(access("/proc", F_OK) == 0); }
static void names_change(void) { NEEDS(unshare(CLONE_NEWUTS) == 0 && sethostname("other", 5) == 0); }
static void names_check(void)
{
    gethostname(text, sizeof text);
    IS(strcmp(text, "other"));
}

static volatile int counts[3], ends;
static pthread_t threads[3];
static void *count(void *of)
{
    while (!ends) {
        ++*(volatile int *)of;
        usleep(500);
    }
    return (void *)7;
}
static void thread_make(void)
{
    for (int i = 0; i < 3; i++)
        IS(pthread_create(&threads[i], NULL, count, (void *)&counts[i]) == 0);
    while (!counts[2])
        usleep(100);
}
static void thread_end_change(void)
{
    ends = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}
static void thread_check(void)
{
    IS(!ends);
    int before = counts[1];
    for (int i = 0; i < 20000 && counts[1] < before + 3; i++)
        usleep(1000);
    IS(counts[1] >= before + 3);
    ends = 1;
    for (int i = 0; i < 3; i++) {
        void *status;
        IS(pthread_join(threads[i], &status) == 0 && status == (void *)7);
    }
}
static int thread_count(void)
{
    struct stat st;
    return stat("/proc/self/task", &st) == 0 ? (int)st.st_nlink - 2 : -1;
}
static void thread_new_check(void) { IS(thread_count() == 1); }

static pthread_mutex_t mutex;
static void mutex_make(void)
{
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &robust);
    pthread_mutex_lock(&mutex);
}
static void mutex_change(void) { pthread_mutex_unlock(&mutex); }
static void mutex_check(void) { IS(pthread_mutex_trylock(&mutex) == EBUSY && pthread_mutex_unlock(&mutex) == 0); }

/* A thread that holds a robust mutex when it ends: the next owner gets EOWNERDEAD. */
static void *dies_with_it(void *of)
{
    pthread_mutex_lock(&mutex);
    counts[0] = 1;
    while (!ends)
        usleep(500);
    return of;
}
static void robust_make(void)
{
    mutex_make();
    pthread_mutex_unlock(&mutex);
    IS(pthread_create(&threads[0], NULL, dies_with_it, NULL) == 0);
    while (!counts[0])
        usleep(100);
}
static void robust_change(void)
{
    ends = 1;
    pthread_join(threads[0], NULL);
}
static void robust_check(void)
{
    IS(!ends && pthread_mutex_trylock(&mutex) == EBUSY);
    ends = 1;
    pthread_join(threads[0], NULL);
    IS(pthread_mutex_lock(&mutex) == EOWNERDEAD);
}
static struct { void *next; long offset; void *pending; } list = {&list, 0, 0};
static void robust_list_change(void) { IS(syscall(SYS_set_robust_list, &list, sizeof list) == 0); }
static void robust_list_check(void)
{
    void *head;
    size_t len;
    IS(syscall(SYS_get_robust_list, 0, &head, &len) == 0 && head != &list);
}

static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static int is_set;
static void *waits(void *of)
{
    pthread_mutex_lock(&plain);
    counts[0] = 1;
    while (!is_set)
        pthread_cond_wait(&condition, &plain);
    pthread_mutex_unlock(&plain);
    return of;
}
static void set(void)
{
    pthread_mutex_lock(&plain);
    is_set = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&plain);
    pthread_join(threads[0], NULL);
}
static void futex_make(void)
{
    IS(pthread_create(&threads[0], NULL, waits, NULL) == 0);
    while (!counts[0])
        usleep(100);
    usleep(20000);
}
static void futex_check(void)
{
    IS(!is_set);
    set();
}
static void rseq_make(void) { NEEDS(sched_getcpu() >= 0); }
static void rseq_check(void)
{
    for (int i = 0; i < 1000; i++)
        IS(sched_getcpu() >= 0 && sched_getcpu() < 4096);
    IS(text[0] == 0);
}

static void fork_change(void)
{
    if ((child = fork()) == 0)
        _exit(0);
    IS(child > 0);
}
static void fork_check(void) { IS(waitpid(-1, NULL, 0) == -1 && errno == ECHILD); }
static void reaped_make(void) { fork_change(); }
static void reaped_change(void) { IS(waitpid(child, NULL, 0) == child); }
static void reaped_check(void) { IS(waitpid(child, NULL, 0) == child); }
static void zombie_make(void) { fork_change(); }
static void vfork_change(void)
{
    if ((child = vfork()) == 0)
        _exit(0);
    IS(child > 0);
}

const struct object_case PROCESS[] = {
    {"working-directory", folder_make, folder_change, folder_check},
    {"umask", umask_make, umask_change, umask_check},
    {"rlimit", rlimit_make, rlimit_change, rlimit_check},
    {"nice", nice_make, nice_change, nice_check},
    {"affinity", affinity_make, affinity_change, affinity_check},
    {"scheduling-policy", nothing, policy_change, policy_check},
    {"io-priority", nothing, ioprio_change, ioprio_check},
    {"thread-name", name_make, name_change, name_check},
    {"timer-slack", slack_make, slack_change, slack_check},
    {"parent-death-signal", death_make, death_change, death_check},
    {"subreaper", nothing, reaper_change, reaper_check},
    {"keep-capabilities", nothing, dumpable_change, dumpable_check},
    {"personality", nothing, persona_change, persona_check},
    {"process-group", group_make, group_change, group_check},
    {"session", session_make, session_change, session_check},
    {"no-new-privileges", nothing, newprivs_change, newprivs_check},
    {"seccomp-since", nothing, filter, seccomp_check},
    {"seccomp-before", filter, text_change, seccomp_before_check},
    {"user", user_make, user_change, user_check},
    {"chroot", user_make, root_change, root_check},
    {"namespace", user_make, names_change, names_check},
    {"threads-ended", thread_make, thread_end_change, thread_check},
    {"threads-running", thread_make, text_change, thread_check},
    {"threads-since", nothing, thread_make, thread_new_check},
    {"mutex-robust", mutex_make, mutex_change, mutex_check},
    {"mutex-robust-thread", robust_make, robust_change, robust_check},
    {"robust-list", nothing, robust_list_change, robust_list_check},
    {"futex-woken", futex_make, set, futex_check},
    {"futex-waiting", futex_make, text_change, futex_check},
    {"rseq", rseq_make, text_change, rseq_check},
    {"fork-since", nothing, fork_change, fork_check},
    {"vfork-since", nothing, vfork_change, fork_check},
    {"child-reaped", reaped_make, reaped_change, reaped_check},
    {"child-zombie", zombie_make, text_change, reaped_check},
    {0},
};
