/*
 * Contexts: twelve threads have one each, one thread after the other; then a context is made while
 * another has run for long: what both get from then on.
 */
#include "orbit_hijack.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define STACK 65536
#define LEAD 300000000l /* cycles that the first has when the second is made */
#define RACE 300000000l

static volatile long first_before, second;
static volatile int ends;

static void nothing(void *unused) { (void)unused; }

static void *have_one(void *unused) {
    (void)unused;
    struct orbit_context_request request = {nothing, 0, (char *)malloc(STACK) + STACK, 1};
    long id = orbit_context_create(&request);
    if (id > 0) orbit_context_run(0);
    return (void *)(id > 0 ? 1l : 0l);
}

static void race(void *unused) {
    (void)unused;
    while (!ends) ends = orbit_context_cycles(1) - first_before + orbit_context_cycles(second) > RACE;
}

static void lead(void *unused) {
    while (orbit_context_cycles(1) < LEAD) {
    }
    struct orbit_context_request request = {race, 0, (char *)malloc(STACK) + STACK, 1};
    second = orbit_context_create(&request);
    first_before = orbit_context_cycles(1);
    race(unused);
}

int main(void) {
    long made = 0;
    for (int i = 0; i < 12; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, 0, have_one, 0);
        pthread_join(thread, &result);
        made += (long)result;
    }
    struct orbit_context_request request = {lead, 0, (char *)malloc(STACK) + STACK, 1};
    orbit_context_create(&request);
    orbit_context_run(1000000);
    long ours = orbit_context_cycles(1) - first_before, theirs = orbit_context_cycles(second);
    printf("%ld made, %ld percent\n", made, theirs * 100 / (ours + theirs));
    return 0;
}
