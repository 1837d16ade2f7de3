// Hangs as public reports describe them, by name; the reports are listed in reports.txt.
#include "../recorded/mark.h"
#include <dlfcn.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>

// A signal's handler formats the time while the interrupted code does.
static char line[64];
static void logs(int s) {
    time_t t = time(NULL);
    strftime(line, sizeof line, "%c", localtime(&t));
    (void)s;
}
static void handler_localtime(void) {
    signal(SIGALRM, logs);
    ms(2000);
    mark();
    ualarm(900, 300);
    for (time_t t = 0;; t++) logs(0);
}

// The pool's destructor sets its flag without the lock, between a worker's check and its wait.
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static volatile int ends, checked, jobs;
static void *worker(void *x) {
    for (;;) {
        pthread_mutex_lock(&m);
        while (!jobs) {
            if (ends) return x;
            checked = 1;
            if (jobs < 0 || getenv("SLOW_CHECK")) ms(30);
            pthread_cond_wait(&c, &m);
        }
        jobs--;
        pthread_mutex_unlock(&m);
        ms(2);
    }
}
static void pool_destructor(void) {
    setenv("SLOW_CHECK", "1", 1);
    pthread_t t;
    pthread_create(&t, NULL, worker, NULL);
    for (int i = 0; i < 40; i++) {
        pthread_mutex_lock(&m);
        jobs++;
        pthread_cond_signal(&c);
        pthread_mutex_unlock(&m);
        ms(60);
    }
    checked = 0;
    pthread_mutex_lock(&m);
    jobs++;
    pthread_cond_signal(&c);
    pthread_mutex_unlock(&m);
    while (!checked) ms(1);
    ends = 1;
    pthread_cond_broadcast(&c);
    mark();
    pthread_join(t, NULL);
}

// Three processes write to each other in a ring and none reads on.
static void all_write(void) {
    int p[3][2];
    for (int i = 0; i < 3; i++) pipe(p[i]);
    ms(2000);
    int me = fork() == 0 ? 1 : fork() == 0 ? 2 : 0;
    for (int i = 0; i < 3; i++) {
        if (i != me) close(p[i][1]);
        if (i != (me + 2) % 3) close(p[i][0]);
    }
    static char block[5000];
    if (me == 0) mark();
    for (;;) write(p[me][1], block, sizeof block);
}

// A client's thread polls a connection that the other side has closed, and never takes it out of
// its set.
static int to_poll;
static void *client(void *x) {
    int e = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN}, got;
    epoll_ctl(e, EPOLL_CTL_ADD, to_poll, &v);
    for (char b;;) {
        if (epoll_wait(e, &got, 1, -1) == 1 && got.events & EPOLLIN && !(got.events & EPOLLHUP)) read(to_poll, &b, 1);
    }
    return x;
}
static void closed_peer(void) {
    int s[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, s);
    to_poll = s[0];
    pthread_t t;
    pthread_create(&t, NULL, client, NULL);
    for (int i = 0; i < 200; i++) {
        write(s[1], "x", 1);
        ms(20);
    }
    mark();
    close(s[1]);
    for (;;) ms(500);
}

// No descriptor is left: accept fails, the connection stays in the queue, and poll returns at once.
static int listener;
static void *connects(void *x) {
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &size);
    for (int i = 0; i < 400; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        connect(fd, (struct sockaddr *)&at, size);
        if (i < 200) close(fd);
        if (i == 200) mark();
        ms(15);
    }
    for (;;) ms(1000);
    return x;
}
static void no_descriptor(void) {
    struct rlimit few = {40, 40};
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    bind(listener, (struct sockaddr *)&any, sizeof any);
    listen(listener, 500);
    struct pollfd all[512] = {{listener, POLLIN, 0}};
    nfds_t n = 1;
    pid_t client = fork();
    if (client == 0) { connects(NULL); _exit(0); }
    setrlimit(RLIMIT_NOFILE, &few);
    for (;;) {
        poll(all, n, -1);
        if (all[0].revents) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) all[n++] = (struct pollfd){fd, POLLIN, 0};
        }
        char byte;
        for (nfds_t i = 1; i < n; i++)
            if (all[i].revents && read(all[i].fd, &byte, 1) <= 0) { close(all[i].fd); all[i] = all[--n]; }
    }
}

// A library's constructor takes a lock whose holder is about to load a library itself.
static void *loads(void *path) {
    ms(200);
    dlopen(path, RTLD_NOW);
    return NULL;
}
void loaded_hook(void) {
    pthread_mutex_lock(&m);
    pthread_mutex_unlock(&m);
}
static void loader_lock(void) {
    char folder[] = "/tmp/orbit-outside-XXXXXX", command[400], path[100];
    mkdtemp(folder);
    snprintf(path, sizeof path, "%s/l.so", folder);
    snprintf(command, sizeof command,
             "printf 'void loaded_hook(void); __attribute__((constructor)) void f(void){loaded_hook();}' |"
             "gcc -shared -fPIC -x c - -o %s", path);
    if (system(command)) return;
    ms(2000);
    pthread_t t;
    pthread_mutex_lock(&m);
    mark();
    pthread_create(&t, NULL, loads, path);
    ms(600);
    dlopen("libm.so.6", RTLD_NOW | RTLD_NOLOAD);
    dlopen(path, RTLD_NOW);
    pthread_mutex_unlock(&m);
    pthread_join(t, NULL);
}

// A signal's handler allocates memory while the code that it interrupts does.
static volatile unsigned sizes;
static void allocates(int s) {
    char *p = malloc(1000 + sizes++ % 3000);
    if (p) free(p);
    (void)s;
}
static void *allocates_too(void *x) {
    for (;;) { free(malloc(5000)); ms(1); }
    return x;
}
static void handler_malloc(void) {
    pthread_t t;
    signal(SIGALRM, allocates);
    mallopt(M_ARENA_MAX, 1);
    pthread_create(&t, NULL, allocates_too, NULL);
    ms(2000);
    mark();
    ualarm(900, 300);
    for (;;) {
        void *p[64];
        for (int i = 0; i < 64; i++) p[i] = malloc(2000 + 64 * i);
        for (int i = 0; i < 64; i++) free(p[i]);
    }
}

// The last of the workers leaves on an error, and nobody says so to those that wait for all of
// them.
static int done;
static void *part(void *x) {
    for (int round = 0; round < 50; round++) ms(20);
    if ((long)x == 3) return x;
    pthread_mutex_lock(&m);
    done++;
    pthread_cond_broadcast(&c);
    while (done < 4) pthread_cond_wait(&c, &m);
    pthread_mutex_unlock(&m);
    return x;
}
static void dead_worker(void) {
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, part, (void *)i);
    ms(1100);
    mark();
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

// The handler of failures runs its dump once, and the dump fails.
static pthread_once_t dumped = PTHREAD_ONCE_INIT;
static void dumps(void) {
    mark();
    raise(SIGSEGV);
}
static void fails(int s) {
    pthread_once(&dumped, dumps);
    signal(s, SIG_DFL);
}
static void once_in_handler(void) {
    struct sigaction a = {.sa_handler = fails, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &a, NULL);
    for (int i = 0; i < 100; i++) ms(20);
    raise(SIGSEGV);
}

// Two threads log under a lock, and so does the handler that shuts the program down.
static pthread_mutex_t channel = PTHREAD_MUTEX_INITIALIZER;
static void writes(int s) {
    pthread_mutex_lock(&channel);
    ms(2);
    pthread_mutex_unlock(&channel);
    if (s) exit(0);
}
static void *writer(void *x) {
    for (;;) {
        writes(0);
        ms(10);
    }
    return x;
}
static void handler_channel(void) {
    pthread_t t;
    pthread_create(&t, NULL, writer, NULL);
    for (int i = 0; i < 100; i++) {
        writes(0);
        ms(10);
    }
    signal(SIGALRM, writes);
    pthread_mutex_lock(&channel);
    mark();
    raise(SIGALRM);
}

// At its end the first thread gives its turn away until all others have left; those that wait never
// do.
static volatile int left;
static void *lasts(void *x) {
    pthread_mutex_lock(&m);
    for (;;) pthread_cond_wait(&c, &m);
    return x;
}
static void exit_yields(void) {
    pthread_t t;
    for (int i = 0; i < 10; i++) pthread_create(&t, NULL, lasts, NULL);
    for (int i = 0; i < 100; i++) ms(20);
    mark();
    while (left < 10) sched_yield();
}

int main(int n, char **a) {
    if (!strcmp(a[n - 1], "once_in_handler")) once_in_handler();
    if (!strcmp(a[n - 1], "handler_channel")) handler_channel();
    if (!strcmp(a[n - 1], "exit_yields")) exit_yields();
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(a[n - 1], "handler_localtime")) handler_localtime();
    if (!strcmp(a[n - 1], "pool_destructor")) pool_destructor();
    if (!strcmp(a[n - 1], "all_write")) all_write();
    if (!strcmp(a[n - 1], "closed_peer")) closed_peer();
    if (!strcmp(a[n - 1], "no_descriptor")) no_descriptor();
    if (!strcmp(a[n - 1], "loader_lock")) loader_lock();
    if (!strcmp(a[n - 1], "handler_malloc")) handler_malloc();
    if (!strcmp(a[n - 1], "dead_worker")) dead_worker();
}
