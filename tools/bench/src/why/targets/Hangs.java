// Hangs for `orbit bench why`: monitors|locks.
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.locks.ReentrantLock;

public class Hangs {
    static class Account { }
    static final Account mine = new Account(), yours = new Account();
    static final ReentrantLock accounts = new ReentrantLock(), ledger = new ReentrantLock();
    static final CyclicBarrier both = new CyclicBarrier(2);

    static void await() {
        try { both.await(); } catch (Exception e) { throw new IllegalStateException(e); }
    }

    static void payOrder(Object first, Object second) {
        synchronized (first) { await(); synchronized (second) { } }
    }

    static void lockOrder(ReentrantLock first, ReentrantLock second) {
        first.lock();
        await();
        second.lock();
    }

    public static void main(String[] args) {
        boolean monitors = args[0].equals("monitors");
        System.out.println("ready");
        new Thread(() -> { if (monitors) payOrder(mine, yours); else lockOrder(accounts, ledger); }, "pays").start();
        new Thread(() -> { if (monitors) payOrder(yours, mine); else lockOrder(ledger, accounts); }, "refunds").start();
    }
}
