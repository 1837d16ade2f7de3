/* The task of Sum.java, and its way there. Build: cc -shared -fPIC sum_jni.c -o libsum.so -lorbit,
 * with the include directories of the JDK. */
#include <jni.h>
#include <orbit.h>
#include <stdio.h>
#include <string.h>

struct request {
    long *numbers;
    long count;
    long crashes;
};

static struct orbit *orbit;
static struct orbit_area *area;
static long *numbers;

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

JNIEXPORT jobject JNICALL Java_Sum_setUp(JNIEnv *java, jclass class, jint bytes)
{
    struct orbit_options options = ORBIT_OPTIONS_INIT;
    (void)class;
    options.name = "sum";
    options.entry = sum;
    /* There is no deadline unless one is given. */
    options.deadline_us = 60000000;
    if ((orbit = orbit_create_with(&options)) && (area = orbit_area_create(1 << 20, NULL)) &&
        (numbers = orbit_calloc(area, 1, (size_t)bytes)))
        return (*java)->NewDirectByteBuffer(java, numbers, bytes);
    (*java)->FatalError(java, orbit_last_error());
    return NULL;
}

JNIEXPORT jstring JNICALL Java_Sum_call(JNIEnv *java, jclass class, jint count, jboolean crashes)
{
    struct request request = {numbers, count, crashes};
    struct orbit_outcome outcome;
    char text[64];
    (void)class;
    if (orbit_call(orbit, 1, &area, NULL, &request, sizeof request, &outcome) == 0) {
        snprintf(text, sizeof text, "sum %ld", outcome.value);
        return (*java)->NewStringUTF(java, text);
    }
    /* The first line: the call stack follows. */
    outcome.text[strcspn(outcome.text, "\n")] = 0;
    return (*java)->NewStringUTF(java, outcome.text);
}
