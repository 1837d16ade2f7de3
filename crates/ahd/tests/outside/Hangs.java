import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.concurrent.Executors;

/** An HTTP server that hangs as public reports describe it: pool, monitors, cycle; the reports are listed in reports.txt. */
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
