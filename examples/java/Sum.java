import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A task beside a program in Java: an orbit sums numbers that the program changes.
 *
 * The task is a function in C ({@code sum_jni.c}): an orbit has one thread of the program's, and of
 * the virtual machine none of the threads that compile, collect and bring others to a stop. Java
 * code in a task would wait for one of them for ever.
 *
 * Run with {@code -XX:-UsePerfData}: the virtual machine's counters are shared memory, which is
 * read-only in orbits: what counts there in a task crashes.
 */
public final class Sum {
    static native ByteBuffer setUp(int bytes);

    /** The sum, or what became of the call. */
    static native String call(int count, boolean crashes);

    public static void main(String[] arguments) {
        if (arguments.length != 1 || arguments[0].equals("--help")) {
            System.err.println("usage: java -XX:-UsePerfData Sum LIBRARY");
            System.exit(2);
        }
        System.load(arguments[0]);
        final int count = 1000;
        // Memory of an area: the collector neither moves nor frees it.
        var numbers = setUp(count * 8).order(ByteOrder.nativeOrder()).asLongBuffer();
        for (int number = 0; number < 3; number++) {
            numbers.put(number, 10 + number);
            System.out.println(call(count, false));
        }
        System.out.println(call(count, true));
        System.out.println(call(count, false));
    }
}
