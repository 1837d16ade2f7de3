// Computes the same thing again and again, and exits with 1 when the result differs.
__attribute__((noinline)) static double compute(volatile double *start)
{
	double x = *start;
	unsigned long n = 1;
	for (int i = 0; i < 100000; i++) {
		n = n * 6364136223846793005ul + (unsigned long)i;
		x = x * 0.99999 + (double)(n >> 40);
	}
	return x;
}
int main(void)
{
	volatile double start = 1.5;
	double expected = compute(&start);
	while (compute(&start) == expected)
		;
	return 1;
}
