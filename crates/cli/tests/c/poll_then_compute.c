// Sleeps a few times and then computes for five seconds, as a batch job that waits for its input:
// no hang.
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(void)
{
	volatile unsigned long x = 0;
	for (int i = 0; i < 5; i++) usleep(100000);
	for (double end = now() + 5; now() < end;)
		for (int i = 0; i < 10000; i++) x += i * i % 7;
	return 0;
}
