// A task beside a program in Go: an orbit sums numbers that the program changes.
//
// The task is a function in C. An orbit has one thread of the program's, the one that set the
// library up: of Go's runtime it has neither the other threads nor the collector's workers. Go code
// in a task runs until it needs one of them, a collection first of all, and then waits for ever
// (the call ends at its deadline, or as stuck). If a task must be in Go, switch collections off in
// it (debug.SetGCPercent(-1)) and give the orbit a limit of memory and a deadline.
package main

/*
#include <orbit.h>
#include <stdlib.h>

struct request {
	long *numbers;
	long count;
	long crashes;
};

static long sum(void *store, void *args)
{
	struct request *request = args;
	long total = 0;
	(void)store;
	if (request->crashes)
		*(volatile int *)0 = 1;
	for (long i = 0; i < request->count; i++)
		total += request->numbers[i];
	return total;
}

static struct orbit *make(void)
{
	struct orbit_options options = ORBIT_OPTIONS_INIT;
	options.name = "sum";
	options.entry = sum;
	options.deadline_us = 60000000;
	return orbit_create_with(&options);
}

static int call(struct orbit *orbit, struct orbit_area *area, long *numbers, long count, long crashes,
                struct orbit_outcome *outcome)
{
	struct request request = {numbers, count, crashes};
	return orbit_call(orbit, 1, &area, NULL, &request, sizeof request, outcome);
}
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"unsafe"
)

// The orbit and its memory. Set up in init, before main starts goroutines: what other threads hold
// at that moment stays held in every orbit.
var (
	orbit *C.struct_orbit
	area  *C.struct_orbit_area
)

func init() {
	orbit = C.make()
	area = C.orbit_area_create(1<<20, nil)
	if orbit == nil || area == nil {
		fmt.Println(C.GoString(C.orbit_last_error()))
		os.Exit(1)
	}
}

func main() {
	const count = 1000
	memory := (*C.long)(C.orbit_calloc(area, count, C.sizeof_long))
	if memory == nil {
		fmt.Println(C.GoString(C.orbit_last_error()))
		os.Exit(1)
	}
	// Memory of an area is none of the collector's: it is neither moved nor freed by it.
	numbers := unsafe.Slice(memory, count)
	call := func(crashes C.long) {
		var outcome C.struct_orbit_outcome
		if C.call(orbit, area, memory, count, crashes, &outcome) == 0 {
			fmt.Println("sum", outcome.value)
		} else {
			fmt.Println(strings.SplitN(C.GoString(&outcome.text[0]), "\n", 2)[0])
		}
	}
	for number := 0; number < 3; number++ {
		numbers[number] = C.long(10 + number)
		call(0)
	}
	call(1)
	call(0)
}
