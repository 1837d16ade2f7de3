// Healthy programs that resemble hangs, by name.
#include "mark.h"

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static volatile int jobs;
static sem_t sem;

static pthread_t run(void *(*f)(void *)) { pthread_t t; pthread_create(&t, 0, f, 0); return t; }
static void burn(double s) { double until = now() + s; volatile unsigned long x = 0; while (now() < until) for (int i = 0; i < 10000; i++) x += i; }

// Polls a few times, then computes.
static void poll_compute(void) { for (int i = 0; i < 6; i++) ms(100); burn(12); }

// A pool whose jobs take three seconds now and then.
static void *worker(void *x) { for (;;) { pthread_mutex_lock(&a); while (!jobs) pthread_cond_wait(&c, &a); int n = jobs--; pthread_mutex_unlock(&a); burn(n == 3 ? 3 : 0.002); } return x; }
static void long_jobs(void) { for (int i = 0; i < 3; i++) run(worker); for (int i = 0; i < 900; i++) { ms(20); pthread_mutex_lock(&a); jobs = i % 300 == 299 ? 3 : 1; pthread_cond_signal(&c); pthread_mutex_unlock(&a); } }

// Many threads at one lock that is held for up to three seconds.
static void *convoy(void *x) { for (int i = 0;; i++) { pthread_mutex_lock(&a); ms(i % 7 == 6 ? 1500 : 30); pthread_mutex_unlock(&a); ms(5); } return x; }
static void convoys(void) { for (int i = 0; i < 6; i++) run(convoy); sleep(18); }

// A loop by a timer of three seconds, once learnt with a short one.
static void timers(void) {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec fast = {{0, 20000000}, {0, 20000000}}, slow = {{3, 0}, {3, 0}};
    unsigned long n;
    timerfd_settime(fd, 0, &fast, 0);
    for (int i = 0; i < 200; i++) (void)!read(fd, &n, 8);
    timerfd_settime(fd, 0, &slow, 0);
    for (int i = 0; i < 5; i++) (void)!read(fd, &n, 8);
}

// Idle threads at a condition variable; the first waits for a signal.
static void idle_pool(void) { for (int i = 0; i < 8; i++) run(worker); sigset_t set; sigemptyset(&set); sigaddset(&set, SIGTERM); sigprocmask(SIG_BLOCK, &set, 0); int s; sigwait(&set, &s); }

// Two processes that answer each other after pauses of four seconds.
static void slow_pair(void) { int p[2]; char x; (void)!socketpair(AF_UNIX, SOCK_STREAM, 0, p); int child = fork() == 0; for (int i = 0; i < 4; i++) { if (child) { (void)!read(p[1], &x, 1); sleep(4); (void)!write(p[1], "x", 1); } else { (void)!write(p[0], "x", 1); (void)!read(p[0], &x, 1); } } }

// A leader that waits for connections with a mutex in hand, and followers at the mutex.
static int listener;
static void *follows(void *x) { for (;;) { pthread_mutex_lock(&a); int fd = accept(listener, 0, 0); pthread_mutex_unlock(&a); close(fd); } return x; }
static void leader(void) { listener = socket(AF_INET, SOCK_STREAM, 0); listen(listener, 8); for (int i = 0; i < 4; i++) run(follows); sleep(16); }

// A first thread that ended, and one that continues.
static void *goes_on(void *x) { for (int i = 0; i < 700; i++) ms(20); exit(0); return x; }
static void first_ended(void) { run(goes_on); pthread_exit(0); }

// A worker that a signal's handler wakes, and a first thread that waits for its end.
static void wakes(int s) { (void)s; sem_post(&sem); }
static void *until_woken(void *x) { while (sem_wait(&sem)) {} return x; }
static void until_signal(void) { sem_init(&sem, 0, 0); signal(SIGTERM, wakes); pthread_join(run(until_woken), 0); }

static const struct { const char *name; void (*f)(void); } all[] = {
    {"poll_compute", poll_compute}, {"long_jobs", long_jobs}, {"convoys", convoys}, {"timers", timers}, {"idle_pool", idle_pool}, {"slow_pair", slow_pair}, {"leader", leader}, {"first_ended", first_ended},
    {"until_signal", until_signal},
};

int main(int n, char **args) {
    for (unsigned i = 0; n > 1 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, args[1])) { all[i].f(); return 0; }
    return 2;
}
