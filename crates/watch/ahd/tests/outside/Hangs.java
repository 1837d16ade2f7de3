import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

/** An HTTP server that hangs as public reports describe it: pool, monitors, cycle, joins, callback; the reports are listed in reports.txt. */
class Hangs {
    static final Object connections = new Object(), resources = new Object();
    static final class Node { Node next; int key; }
    static volatile int n;

    static void pause(int ms) { try { Thread.sleep(ms); } catch (InterruptedException e) { throw new RuntimeException(e); } }

    static void hang(String how) throws Exception {
        switch (how) {
            // A job of a pool of one thread waits for another job of the same pool.
            case "pool" -> {
                var pool = Executors.newFixedThreadPool(1);
                pool.submit(() -> pool.submit(() -> 1).get()).get();
            }
            // One thread clears the pool, the other gives a resource back: two monitors in two orders.
            case "monitors" -> {
                new Thread(() -> { synchronized (resources) { pause(100); synchronized (connections) { n++; } } }).start();
                synchronized (connections) { pause(300); synchronized (resources) { n++; } }
            }
            // Futures of a pool are joined by jobs of the same pool, as many as it has threads.
            case "joins" -> {
                var few = Executors.newFixedThreadPool(2);
                var all = java.util.stream.IntStream.range(0, 2).mapToObj(i -> CompletableFuture.supplyAsync(() -> {
                    pause(50);
                    return CompletableFuture.supplyAsync(() -> i, few).join();
                }, few)).toList();
                all.forEach(CompletableFuture::join);
            }
            // The thread that would complete the future waits for it in a callback.
            case "callback" -> {
                var loop = Executors.newSingleThreadExecutor();
                var start = new CompletableFuture<Integer>();
                var end = start.thenApply(i -> CompletableFuture.supplyAsync(() -> i + 1, loop).join());
                loop.submit(() -> start.complete(1));
                end.join();
            }
            // What two threads that write to a hash map at once make of a bucket: a list with a cycle.
            default -> {
                var a = new Node();
                a.next = new Node();
                a.next.next = a;
                for (var at = a; at != null && at.key != 7; at = at.next) n++;
            }
        }
    }

    public static void main(String[] args) throws Exception {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 16);
        server.setExecutor(Executors.newFixedThreadPool(4));
        var hits = new HashMap<String, Integer>();
        server.createContext("/", e -> {
            try {
                if (e.getRequestURI().getPath().equals("/hang")) hang(args[1]);
            } catch (Exception error) { throw new RuntimeException(error); }
            synchronized (connections) { hits.merge("all", 1, Integer::sum); }
            e.sendResponseHeaders(200, 2);
            try (var out = e.getResponseBody()) { out.write("ok".getBytes()); }
        });
        server.start();
    }
}
