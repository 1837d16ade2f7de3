// Every way out of loops and mutex blocks, for a recorder in place of the library: what the pass
// of rmk_sections.cpp marks, in order.
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;

extern "C" __attribute__((noinline)) void step(int i)
{
    if (i == 3)
        throw std::runtime_error("step");
    fflush(stdout);
}

struct Cleans {
    ~Cleans() { fputs("~ ", stdout); }
};

extern "C" int ways(int way)
{
    for (int i = 10; i < 14; i++) {
        step(i);
        if (way == 1)
            return 1;
        if (way == 2)
            goto out;
        if (way == 3)
            break;
        if (way == 4)
            continue;
        switch (way) {
        case 5:
            return 5;
        case 6:
            return 6;
        }
    }
    return 0;
out:
    return 2;
}

extern "C" void thrown()
{
    for (int i = 0; i < 5; i++)
        step(i);
}

extern "C" void cleaned()
{
    Cleans one;
    for (int i = 0; i < 5; i++)
        step(i);
}

extern "C" void caught_inside()
{
    for (int i = 2; i < 5; i++)
        try {
            step(i);
        } catch (std::exception &) {
            fputs("caught ", stdout);
        }
}

extern "C" void caught_outside()
{
    try {
        for (int i = 2; i < 5; i++)
            step(i);
    } catch (std::exception &) {
        fputs("caught ", stdout);
    }
}

extern "C" void waits()
{
    for (int i = 0; i < 2; i++) {
        usleep(1);
        step(0);
    }
}

extern "C" void forever()
{
    for (int i = 0;; i++) {
        step(0);
        if (i == 2)
            throw 1;
    }
}

extern "C" void again(int n)
{
    for (int i = 0; i < n; i++)
        again(n - 1), step(0);
}

extern "C" int locked(int way)
{
    if (pthread_mutex_lock(&m) != 0)
        return -1;
    step(0);
    if (way == 1) {
        pthread_mutex_unlock(&m);
        return 1;
    }
    pthread_mutex_unlock(&m);
    return 0;
}

extern "C" bool tried()
{
    if (pthread_mutex_trylock(&m))
        return false;
    step(0);
    pthread_mutex_unlock(&m);
    return true;
}

extern "C" void stays() { pthread_mutex_lock(&m); }

int main()
{
    for (int way = 0; way < 7; way++)
        ways(way), puts("");
    for (auto one : {thrown, cleaned, caught_inside, caught_outside, waits, forever}) {
        try {
            one();
        } catch (...) {
        }
        puts("");
    }
    again(2), locked(0), locked(1), puts("");
    tried(), stays(), tried(), puts("");
}
