// A program to be entered. It says "ready ADDRESS" and keeps its state at that address; argv[1]
// says what its main thread does. compute: checks a computation with vector and general registers
// for ever. The others: make one call that blocks, which a second thread ends when a line comes in,
// and note its result; then compute.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Not from the kernel's header, which musl's compiler does not find.
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1

static struct {
	volatile uint64_t rounds, wrong, done;
	volatile int64_t result, error;
	volatile uint64_t milliseconds, handled, threads, started;
} state;
static int pipes[2], sockets[2], word, semaphores;
static volatile int listens;
static char *mode;

static double milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

// The same result in each round, from values that stay in registers.
static void compute(void)
{
	double a = 1, b = 0.5, c = 0.25, d = 3;
	uint64_t x = 88172645463325252u, y = 1, z = 2, w = 3;
	for (int i = 0; i < 100000; i++) {
		a = a * 1.000001 + b; b = b * 0.999999 + c; c = c * 1.0000001 - 1e-9; d = d + a * 1e-9;
		x ^= x << 13; x ^= x >> 7; x ^= x << 17; y += x * 3; z ^= y >> 5; w += z;
	}
	static uint64_t first;
	uint64_t sum = x ^ y ^ z ^ w ^ (uint64_t)(a * 1e3) ^ (uint64_t)(b * 1e6) ^ (uint64_t)(c * 1e9) ^ (uint64_t)(d * 1e6);
	uint64_t expected = 0;
	if (!__atomic_compare_exchange_n(&first, &expected, sum, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && expected != sum)
		__atomic_fetch_add(&state.wrong, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&state.rounds, 1, __ATOMIC_SEQ_CST);
}

static void handle(int signal) { (void)signal; state.handled++; }

static void *end_the_call(void *unused)
{
	char line[64];
	struct sembuf up = {0, 1, 0};
	(void)unused;
	listens = 1;
	// Not by stdio, which would map memory in its own time.
	while (read(0, line, sizeof line) > 0) {
		if (!strncmp(line, "exit", 4)) _exit(7);
		__atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, &word, FUTEX_WAKE, 100, 0, 0, 0);
		if (write(pipes[1], "x", 1) < 0 || write(sockets[1], "x", 1) < 0) _exit(8);
		if (semaphores > 0) semop(semaphores, &up, 1);
		if (!strcmp(mode, "pause") || !strncmp(mode, "sig", 3)) kill(getpid(), SIGUSR2);
	}
	return 0;
}

static long block(void)
{
	char byte;
	struct epoll_event event = {.events = EPOLLIN};
	struct timespec second = {1, 0}, minute = {60, 0};
	struct pollfd waits = {.fd = pipes[0], .events = POLLIN};
	struct sembuf down = {0, -1, 0};
	int e = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(e, EPOLL_CTL_ADD, pipes[0], &event);
	state.started = 1;
	if (!strcmp(mode, "nanosleep")) return nanosleep(&second, 0);
	if (!strcmp(mode, "clock_nanosleep")) {
		clock_gettime(CLOCK_MONOTONIC, &second);
		second.tv_sec++;
		return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &second, 0);
	}
	if (!strcmp(mode, "read")) return read(pipes[0], &byte, 1);
	if (!strcmp(mode, "recv")) return recv(sockets[0], &byte, 1, 0);
	if (!strcmp(mode, "recv_timed")) {
		struct timeval long_time = {60, 0};
		setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
		return recv(sockets[0], &byte, 1, 0);
	}
	if (!strcmp(mode, "epoll_wait")) return epoll_wait(e, &event, 1, -1);
	if (!strcmp(mode, "epoll_second")) return epoll_wait(e, &event, 1, 1000);
	if (!strcmp(mode, "sigtimedwait_second")) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR2);
		return sigtimedwait(&set, 0, &second) == -1 && errno == EAGAIN ? 0 : -1;
	}
	if (!strcmp(mode, "epoll_timed")) {
		long found;
		while ((found = epoll_wait(e, &event, 1, 60000)) < 0 && errno == EINTR) state.handled++;
		return found;
	}
	if (!strcmp(mode, "poll")) return poll(&waits, 1, -1);
	if (!strcmp(mode, "poll_timed")) return poll(&waits, 1, 60000);
	if (!strcmp(mode, "poll_second")) return poll(0, 0, 1000);
	if (!strcmp(mode, "ppoll")) {
		sigset_t set;
		sigemptyset(&set);
		return ppoll(&waits, 1, &minute, &set);
	}
	if (!strcmp(mode, "select")) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(pipes[0], &set);
		return select(pipes[0] + 1, &set, 0, 0, 0);
	}
	// EAGAIN: the word has changed before the call is made again.
	if (!strcmp(mode, "futex")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, 0, 0, 0) && errno != EAGAIN;
	if (!strcmp(mode, "futex_timed")) return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &minute, 0, 0) && errno != EAGAIN;
	if (!strcmp(mode, "semop")) return semop(semaphores, &down, 1);
	if (!strcmp(mode, "pause")) return pause() == -1 && errno == EINTR ? 0 : -1;
	if (!strcmp(mode, "sigsuspend")) {
		sigset_t set;
		sigfillset(&set);
		sigdelset(&set, SIGUSR2);
		return sigsuspend(&set) == -1 && errno == EINTR ? 0 : -1;
	}
	if (!strcmp(mode, "sigtimedwait")) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR2);
		return sigtimedwait(&set, 0, &minute);
	}
	if (!strcmp(mode, "wait")) {
		int status, child = fork();
		if (!child) {
			poll(&waits, 1, -1);
			_exit(0);
		}
		return waitpid(child, &status, 0) == child ? 0 : -1;
	}
	errno = ENOSYS;
	return -1;
}

static void *worker(void *unused)
{
	(void)unused;
	state.threads++;
	for (;;) compute();
	return NULL;
}

static void *sleeper(void *unused)
{
	(void)unused;
	__atomic_fetch_add(&state.threads, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		usleep(1000);
		__atomic_fetch_add(&state.rounds, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void *next_thread(void *unused)
{
	pthread_t thread;
	(void)unused;
	__atomic_fetch_add(&state.rounds, 1, __ATOMIC_SEQ_CST);
	while (pthread_create(&thread, 0, next_thread, 0)) usleep(100);
	pthread_detach(thread);
	return 0;
}

int main(int argc, char **argv)
{
	mode = argc > 1 ? argv[1] : "compute";
	pthread_t thread;
	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) return 9;
	sigset_t usr2;
	sigemptyset(&usr2);
	sigaddset(&usr2, SIGUSR2);
	signal(SIGUSR1, handle);
	signal(SIGUSR2, handle);
	signal(SIGTRAP, handle);
	// The second thread leaves the signal to the first.
	pthread_sigmask(SIG_BLOCK, &usr2, 0);
	if (!strcmp(mode, "semop")) semaphores = semget(IPC_PRIVATE, 1, 0600);
	pthread_create(&thread, 0, end_the_call, 0);
	while (!listens) usleep(100);
	if (strncmp(mode, "sig", 3)) pthread_sigmask(SIG_UNBLOCK, &usr2, 0);
	if (!strcmp(mode, "threads"))
		for (int i = 0; i < atoi(argv[2]); i++) pthread_create(&thread, 0, i % 8 ? sleeper : worker, 0);
	if (!strcmp(mode, "chain"))
		for (int i = 0; i < 2; i++) pthread_create(&thread, 0, next_thread, 0);
	printf("%lx ready\n", (unsigned long)&state);
	fflush(stdout);
	if (strcmp(mode, "compute") && strcmp(mode, "threads") && strcmp(mode, "chain")) {
		double begin = milliseconds();
		errno = 0;
		state.result = block();
		state.error = errno;
		state.milliseconds = milliseconds() - begin;
		if (semaphores > 0) semctl(semaphores, 0, IPC_RMID);
		__atomic_store_n(&state.done, 1, __ATOMIC_SEQ_CST);
	}
	for (;;) {
		compute();
		if (!strcmp(mode, "chain") || !strcmp(mode, "threads")) usleep(1000);
	}
}
