/* A program whose calls that read one of its pages do not return, whatever interrupts them, until a
 * byte comes on its standard input: then another thread fills that page. The main thread computes
 * and checks itself. Prints the address of three words (rounds, wrong results, the address of the
 * page), then "ready". */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t state[3];
static int faults;

static void *fill(void *page)
{
	char byte;
	static char bytes[4096] __attribute__((aligned(4096))) = "/";
	if (read(0, &byte, 1) != 1)
		return 0;
	struct uffdio_copy copy = {.dst = (uintptr_t)page, .src = (uintptr_t)bytes, .len = 4096};
	ioctl(faults, UFFDIO_COPY, &copy);
	for (;;)
		pause();
}

static uint64_t compute(void)
{
	uint64_t n = 1;
	for (int i = 0; i < 100000; i++)
		n = n * 6364136223846793005u + i;
	return n;
}

int main(void)
{
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.range = {(uintptr_t)page, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range)) {
		printf("no userfaultfd\n");
		return 1;
	}
	pthread_t thread;
	pthread_create(&thread, 0, fill, page);
	state[2] = (uintptr_t)page;
	uint64_t expected = compute();
	printf("%lx ready\n", (unsigned long)state);
	fflush(stdout);
	for (;; state[0]++)
		state[1] += compute() != expected;
}
