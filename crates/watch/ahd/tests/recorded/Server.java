import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

/** An HTTP server: /hang waits for a monitor that its own child holds (monitor), spins (spin); batch computes without a server. */
class Server {
    static final Object a = new Object(), b = new Object();
    static volatile long n;

    static void pause(int ms) { try { Thread.sleep(ms); } catch (InterruptedException e) { throw new RuntimeException(e); } }

    static void hang(String how) {
        if (how.equals("spin")) for (;;) n++;
        new Thread(() -> { synchronized (b) { pause(100); synchronized (a) { n++; } } }).start();
        synchronized (a) { pause(300); synchronized (b) { n++; } }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("batch")) {
            var pool = Executors.newFixedThreadPool(2);
            for (int i = 0; i < 40; i++) pool.submit(() -> { for (long j = 0, end = System.nanoTime() + 600_000_000L; System.nanoTime() < end; j++) n += j; });
            pool.shutdown();
            return;
        }
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 16);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", e -> {
            var path = e.getRequestURI().getPath();
            if (path.equals("/hang")) hang(args[1]);
            if (path.equals("/slow")) pause(3000);
            var junk = new byte[1 << 20];
            e.sendResponseHeaders(200, 2);
            try (var out = e.getResponseBody()) { out.write(("ok").getBytes()); }
        });
        server.start();
    }
}
