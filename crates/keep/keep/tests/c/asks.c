/* asks FOLDER: a server of one connection on the unix socket FOLDER/socket. Each command is a byte,
 * answered with `k`; what it has learned stays in memory. `?` answers all of it. */
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static long learned[26];
static int timer = -1;

static void on_alarm(int sig) { learned['a' - 'a'] += sig == SIGALRM; }
static void on_timer(int sig) { learned['t' - 'a'] += sig == SIGUSR1; }

/* What the answer of a call is to replace. */
static void fill_stack(void)
{
    volatile char bytes[6000];
    memset((void *)bytes, 0x5a, sizeof bytes);
}

static long number_in(FILE *file)
{
    long number = -1;
    if (file && fscanf(file, "%ld", &number) != 1)
        number = -2;
    if (file)
        fclose(file);
    return number;
}

static long learn(char what, int client)
{
    switch (what) {
    case 'i': { /* an interface */
        struct ifreq of = {.ifr_name = "lo"};
        int tcp = socket(AF_INET, SOCK_STREAM, 0), got = ioctl(tcp, SIOCGIFMTU, &of);
        close(tcp);
        return got ? -1 : of.ifr_mtu;
    }
    case 'q': { /* what the client has not read yet */
        int bytes = -1;
        ioctl(client, TIOCOUTQ, &bytes);
        return bytes;
    }
    case 'l': { /* a lock of another process */
        int file = open("number", O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        int got = fcntl(file, F_GETLK, &lock);
        close(file);
        return got ? -1 : lock.l_type;
    }
    case 'x': {
        struct statx of;
        return statx(AT_FDCWD, "number", 0, STATX_SIZE, &of) ? -1 : (long)of.stx_size;
    }
    case 'r': {
        char to[64];
        return readlink("link", to, sizeof to);
    }
    case 'v': {
        char to[5] = "";
        struct iovec iov = {to, 4};
        int file = open("number", O_RDONLY);
        long got = preadv(file, &iov, 1, 0);
        close(file);
        return got == 4 ? atol(to) : -1;
    }
    case 'u': {
        struct sysinfo of;
        return sysinfo(&of) ? -1 : of.uptime * 100 + of.procs;
    }
    case 'z': { /* ticks of the processor and of the clock */
        struct tms of;
        return times(&of);
    }
    case 'p': { /* room on a disk */
        struct statfs of;
        return statfs(".", &of) ? -1 : (long)of.f_bfree;
    }
    case 'e': {
        unsigned short number;
        return getentropy(&number, sizeof number) ? -1 : number;
    }
    case 'm': return learned['m' - 'a'] * 01000 + umask(077);
    case 'c': return chdir("below") ? -1 : learned['c' - 'a'] + 1;
    case 'w': alarm(1); return learned['w' - 'a'];
    case 'b': { /* a signal to itself, which it blocks */
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN);
        sigprocmask(SIG_BLOCK, &set, NULL);
        return pthread_kill(pthread_self(), SIGRTMIN);
    }
    case 'f': { /* a timer by descriptor, that expires once */
        struct itimerspec in = {.it_value = {.tv_nsec = 1000000}};
        if (timer == -1)
            timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        timerfd_settime(timer, 0, &in, NULL);
        return learned['f' - 'a'];
    }
    case 'g': { /* how often it has expired */
        uint64_t times = 0;
        return read(timer, &times, sizeof times) == sizeof times ? learned['g' - 'a'] + (long)times
                                                                 : learned['g' - 'a'];
    }
    case 't': { /* a timer that sends a signal once */
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec in = {.it_value = {.tv_nsec = 1000000}};
        timer_t made;
        timer_create(CLOCK_MONOTONIC, &event, &made);
        timer_settime(made, 0, &in, NULL);
        return learned['t' - 'a'];
    }
    case 's': return number_in(fopen("number", "r")); /* by stdio */
    case 'd': {
        DIR *folder = opendir("below");
        long count = 0;
        while (folder && readdir(folder))
            count++;
        if (folder)
            closedir(folder);
        return count;
    }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc != 2 || chdir(argv[1]) || bind(listener, (void *)&name, sizeof name) || listen(listener, 8))
        return 2;
    umask(022);
    signal(SIGALRM, on_alarm);
    signal(SIGUSR1, on_timer);
    int client = accept(listener, NULL, NULL);
    for (;;) {
        char command, all[1024] = "", *to = all;
        struct pollfd input = {.fd = client, .events = POLLIN};
        if (poll(&input, 1, -1) != 1)
            continue;
        if (read(client, &command, 1) != 1)
            return 7;
        if (command == '?') {
            for (int i = 0; i < 26; i++)
                to += sprintf(to, "%ld ", learned[i]);
            write(client, strcat(all, "\n"), (size_t)(to - all) + 1);
            continue;
        }
        fill_stack();
        /* Signals that come meanwhile count too. */
        long is = learn(command, client);
        learned[command - 'a'] = is;
        write(client, "k", 1);
    }
}
