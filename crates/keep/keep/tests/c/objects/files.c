/* Descriptors and what they refer to. */
#include "objects.h"
#include <dirent.h>
#include <fcntl.h>
#include <pty.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

static int fd, other, ends[2];
static char bytes[4096];

static void make_file(int flags)
{
    fd = open("file", flags | O_CREAT, 0644);
    IS(fd != -1 && write(fd, "0123456789", 10) == 10);
}

static int is_open(int number) { return fcntl(number, F_GETFD) != -1; }
static off_t offset(int number) { return lseek(number, 0, SEEK_CUR); }

static void offset_make(void) { make_file(O_RDWR); }
static void offset_change(void) { IS(lseek(fd, 3, SEEK_SET) == 3); }
static void offset_check(void) { IS(offset(fd) == 10); }

static void append_make(void) { make_file(O_WRONLY | O_APPEND); }
static void append_change(void) { IS(write(fd, "more", 4) == 4); }
static void append_check(void)
{
    struct stat st;
    IS(fstat(fd, &st) == 0 && st.st_size == 10);
}

static void opened_make(void) { make_file(O_RDWR); }
static void opened_change(void) { IS((other = open("/dev/null", O_RDONLY)) > fd); }
static void opened_check(void) { IS(!is_open(fd + 1)); }

static void closed_read_make(void)
{
    make_file(O_RDWR);
    close(fd);
    fd = open("file", O_RDONLY);
    IS(read(fd, bytes, 4) == 4);
}
static void closed_change(void) { close(fd); }
static void closed_read_check(void) { IS(read(fd, bytes, 6) == 6 && !memcmp(bytes, "456789", 6)); }

static void closed_write_make(void) { make_file(O_RDWR); }
static void closed_write_check(void) { IS(offset(fd) == 10 && write(fd, "x", 1) == 1); }

static void closed_deleted_make(void)
{
    make_file(O_RDWR);
    unlink("file");
}
static void closed_deleted_check(void) { IS(pread(fd, bytes, 10, 0) == 10 && !memcmp(bytes, "0123456789", 10)); }

static void deleted_change(void) { IS(lseek(fd, 0, SEEK_SET) == 0); }
static void deleted_check(void) { IS(offset(fd) == 10); }

static void reused_make(void) { make_file(O_RDWR); }
static void reused_change(void)
{
    close(fd);
    IS(open("/dev/zero", O_RDONLY) == fd);
}
static void reused_check(void) { IS(pread(fd, bytes, 10, 0) == 10 && bytes[1] == '1'); }

static void dup_make(void)
{
    make_file(O_RDWR);
    other = dup(fd);
}
static void dup_change(void) { close(other); }
static void dup_check(void)
{
    IS(lseek(fd, 5, SEEK_SET) == 5);
    IS(offset(other) == 5);
}
static void dup_both_change(void)
{
    close(other);
    close(fd);
}

static void cloexec_make(void) { make_file(O_RDWR); }
static void cloexec_change(void) { IS(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0); }
static void cloexec_check(void) { IS(fcntl(fd, F_GETFD) == 0); }

static void flags_make(void) { make_file(O_RDWR); }
static void flags_change(void) { IS(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK) == 0); }
static void flags_check(void) { IS((fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK)) == 0); }

static void folder_make(void) { IS((fd = open("/proc/self", O_RDONLY | O_DIRECTORY)) != -1); }
static void folder_change(void)
{
    DIR *dir = fdopendir(dup(fd));
    IS(dir && readdir(dir));
    closedir(dir);
}
static void folder_check(void) { IS(offset(fd) == 0); }

static void path_make(void) { IS((fd = open("/", O_PATH | O_DIRECTORY)) != -1); }
static void path_change(void) { bytes[0] = 1; }
static void path_check(void) { IS(faccessat(fd, "proc", F_OK, 0) == 0 && bytes[0] == 0); }

static void device_make(void) { IS((fd = open("/dev/zero", O_RDONLY)) != -1); }
static void device_check(void) { IS(read(fd, bytes, 4) == 4); }

static void flock_make(void)
{
    make_file(O_RDWR);
    IS(flock(fd, LOCK_EX) == 0);
}
static void flock_change(void) { IS(flock(fd, LOCK_UN) == 0); }
static void flock_check(void)
{
    int again = open("file", O_RDWR);
    IS(flock(again, LOCK_EX | LOCK_NB) == -1);
}
static void flock_new_make(void) { make_file(O_RDWR); }
static void flock_new_change(void) { IS(flock(fd, LOCK_EX) == 0); }
static void flock_new_check(void)
{
    int again = open("file", O_RDWR);
    IS(flock(again, LOCK_EX | LOCK_NB) == 0);
}

static struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 3};
static const struct flock NONE = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

static void posix_lock_make(void)
{
    make_file(O_RDWR);
    IS(fcntl(fd, F_SETLK, &range) == 0);
}
static void posix_lock_change(void) { IS(fcntl(fd, F_SETLK, &NONE) == 0); }
static void posix_lock_check(void)
{
    /* A lock of an open file is in the way of one of a process. */
    int again = open("file", O_RDWR);
    struct flock asked = range;
    IS(fcntl(again, F_OFD_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_start == 2 && asked.l_len == 3);
}

static void ofd_lock_make(void)
{
    make_file(O_RDWR);
    IS(fcntl(fd, F_OFD_SETLK, &range) == 0);
}
static void ofd_lock_change(void) { IS(fcntl(fd, F_OFD_SETLK, &NONE) == 0); }
static void ofd_lock_check(void) { posix_lock_check(); }

static void lease_make(void)
{
    make_file(O_RDWR);
    close(fd);
    IS((fd = open("file", O_RDONLY)) != -1);
    NEEDS(fcntl(fd, F_SETLEASE, F_RDLCK) == 0);
}
static void lease_change(void) { IS(fcntl(fd, F_SETLEASE, F_UNLCK) == 0); }
static void lease_check(void) { IS(fcntl(fd, F_GETLEASE) == F_RDLCK); }

static uint64_t word;

static void eventfd_make(void)
{
    fd = eventfd(5, EFD_NONBLOCK);
    IS(fd != -1);
}
static void eventfd_change(void)
{
    word = 4;
    IS(write(fd, &word, 8) == 8);
}
static void eventfd_check(void) { IS(read(fd, &word, 8) == 8 && word == 5); }
static void eventfd_read_change(void) { IS(read(fd, &word, 8) == 8); }
static void semaphore_make(void) { IS((fd = eventfd(3, EFD_NONBLOCK | EFD_SEMAPHORE)) != -1); }
static void semaphore_check(void)
{
    for (int i = 0; i < 3; i++)
        IS(read(fd, &word, 8) == 8);
    IS(read(fd, &word, 8) == -1);
}

static const struct itimerspec LATER = {.it_value = {1000, 0}, .it_interval = {7, 0}}, OFF = {0};

static void timerfd_make(void)
{
    fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    IS(fd != -1 && timerfd_settime(fd, 0, &LATER, NULL) == 0);
}
static void timerfd_change(void) { IS(timerfd_settime(fd, 0, &OFF, NULL) == 0); }
static void timerfd_check(void)
{
    struct itimerspec now;
    IS(timerfd_gettime(fd, &now) == 0 && now.it_value.tv_sec > 900 && now.it_interval.tv_sec == 7);
}
static void timerfd_expired_make(void)
{
    const struct itimerspec soon = {.it_value = {0, 1000}};
    fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    IS(fd != -1 && timerfd_settime(fd, 0, &soon, NULL) == 0);
    usleep(20000);
}
static void timerfd_expired_change(void) { IS(read(fd, &word, 8) == 8 && word == 1); }
static void timerfd_expired_check(void) { IS(read(fd, &word, 8) == 8 && word == 1); }

static sigset_t set_of(int sig)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    return set;
}
static void signalfd_make(void)
{
    sigset_t set = set_of(SIGUSR1), both = set;
    sigaddset(&both, SIGUSR2);
    sigprocmask(SIG_BLOCK, &both, NULL);
    IS((fd = signalfd(-1, &set, SFD_NONBLOCK)) != -1);
}
static void signalfd_change(void)
{
    sigset_t set = set_of(SIGUSR2);
    IS(signalfd(fd, &set, 0) == fd);
}
static void signalfd_check(void)
{
    struct signalfd_siginfo info;
    raise(SIGUSR2);
    IS(read(fd, &info, sizeof info) == -1);
    raise(SIGUSR1);
    IS(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
}

static int epoll;
static void epoll_make(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcull};
    epoll = epoll_create1(0);
    fd = eventfd(1, EFD_NONBLOCK);
    other = eventfd(1, EFD_NONBLOCK);
    IS(epoll != -1 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}
static void epoll_change(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    IS(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, other, &event) == 0);
}
static void epoll_check(void)
{
    struct epoll_event found[4];
    IS(epoll_wait(epoll, found, 4, 0) == 1 && found[0].data.u64 == 0x123456789abcull);
}
static void epoll_closed_change(void) { close(epoll); }
static void epoll_target_change(void) { close(fd); }

static void inotify_make(void)
{
    IS((fd = inotify_init1(IN_NONBLOCK)) != -1 && (other = inotify_add_watch(fd, ".", IN_CREATE)) != -1);
}
static void inotify_change(void) { IS(inotify_rm_watch(fd, other) == 0); }
static void inotify_check(void)
{
    close(open("new", O_CREAT | O_WRONLY, 0644));
    IS(read(fd, bytes, sizeof bytes) > 0);
    IS(((struct inotify_event *)bytes)->mask == IN_CREATE);
}

static void memfd_make(void) { IS((fd = memfd_create("object", 0)) != -1 && write(fd, "abc", 3) == 3); }
static void memfd_check(void) { IS(offset(fd) == 3 && pread(fd, bytes, 3, 0) == 3 && !memcmp(bytes, "abc", 3)); }

static void pipe_make(void) { IS(pipe2(ends, O_NONBLOCK) == 0 && write(ends[1], "held", 4) == 4); }
static void pipe_change(void) { IS(read(ends[0], bytes, 10) == 4); }
static void pipe_check(void) { IS(read(ends[0], bytes, 10) == 4 && !memcmp(bytes, "held", 4)); }
static void pipe_written_change(void) { IS(write(ends[1], "more", 4) == 4); }
static void pipe_full_make(void)
{
    IS(pipe2(ends, O_NONBLOCK) == 0);
    for (int i = 0; i < 16; i++) {
        memset(bytes, 'a' + i, sizeof bytes);
        IS(write(ends[1], bytes, sizeof bytes) == sizeof bytes);
    }
}
static void pipe_full_change(void)
{
    for (int i = 0; i < 5; i++)
        IS(read(ends[0], bytes, sizeof bytes) == sizeof bytes);
}
static void pipe_full_check(void)
{
    for (int i = 0; i < 16; i++)
        IS(read(ends[0], bytes, sizeof bytes) == sizeof bytes && bytes[0] == 'a' + i && bytes[4095] == 'a' + i);
}
static void fifo_make(void)
{
    IS(mkfifo("fifo", 0600) == 0 && (ends[0] = ends[1] = open("fifo", O_RDWR | O_NONBLOCK)) != -1 && write(ends[1], "held", 4) == 4);
}
static void pipe_closed_change(void)
{
    close(ends[0]);
    close(ends[1]);
}
static void pipe_closed_check(void) { pipe_check(); }

static struct termios at_start;
static void pty_make(void)
{
    IS(openpty(&other, &fd, NULL, NULL, NULL) == 0 && tcgetattr(fd, &at_start) == 0);
}
static void pty_change(void)
{
    struct termios raw = at_start;
    cfmakeraw(&raw);
    IS(tcsetattr(fd, TCSANOW, &raw) == 0);
}
static void pty_check(void)
{
    struct termios now;
    IS(tcgetattr(fd, &now) == 0 && now.c_lflag == at_start.c_lflag && now.c_iflag == at_start.c_iflag);
}

const struct object_case FILES[] = {
    {"file-offset", offset_make, offset_change, offset_check},
    {"file-append", append_make, append_change, append_check},
    {"fd-opened-since", opened_make, opened_change, opened_check},
    {"fd-read-closed", closed_read_make, closed_change, closed_read_check},
    {"fd-write-closed", closed_write_make, closed_change, closed_write_check},
    {"fd-deleted-closed", closed_deleted_make, closed_change, closed_deleted_check},
    {"file-deleted", closed_deleted_make, deleted_change, deleted_check},
    {"fd-reused", reused_make, reused_change, reused_check},
    {"fd-dup-closed", dup_make, dup_change, dup_check},
    {"fd-dup-both-closed", dup_make, dup_both_change, dup_check},
    {"fd-cloexec", cloexec_make, cloexec_change, cloexec_check},
    {"fd-flags", flags_make, flags_change, flags_check},
    {"folder-offset", folder_make, folder_change, folder_check},
    {"fd-path", path_make, path_change, path_check},
    {"device-closed", device_make, closed_change, device_check},
    {"lock-flock", flock_make, flock_change, flock_check},
    {"lock-flock-new", flock_new_make, flock_new_change, flock_new_check},
    {"lock-posix", posix_lock_make, posix_lock_change, posix_lock_check},
    {"lock-ofd", ofd_lock_make, ofd_lock_change, ofd_lock_check},
    {"lease", lease_make, lease_change, lease_check},
    {"eventfd-written", eventfd_make, eventfd_change, eventfd_check},
    {"eventfd-read", eventfd_make, eventfd_read_change, eventfd_check},
    {"eventfd-closed", eventfd_make, closed_change, eventfd_check},
    {"eventfd-semaphore", semaphore_make, eventfd_change, semaphore_check},
    {"timerfd", timerfd_make, timerfd_change, timerfd_check},
    {"timerfd-closed", timerfd_make, closed_change, timerfd_check},
    {"timerfd-expired", timerfd_expired_make, timerfd_expired_change, timerfd_expired_check},
    {"signalfd", signalfd_make, signalfd_change, signalfd_check},
    {"epoll", epoll_make, epoll_change, epoll_check},
    {"epoll-closed", epoll_make, epoll_closed_change, epoll_check},
    {"epoll-target-closed", epoll_make, epoll_target_change, epoll_check},
    {"inotify", inotify_make, inotify_change, inotify_check},
    {"memfd-offset", memfd_make, deleted_change, memfd_check},
    {"memfd-closed", memfd_make, closed_change, memfd_check},
    {"pipe-read", pipe_make, pipe_change, pipe_check},
    {"pipe-written", pipe_make, pipe_written_change, pipe_check},
    {"pipe-full", pipe_full_make, pipe_full_change, pipe_full_check},
    {"pipe-closed", pipe_make, pipe_closed_change, pipe_closed_check},
    {"fifo", fifo_make, pipe_change, pipe_check},
    {"pty-settings", pty_make, pty_change, pty_check},
    {0},
};
