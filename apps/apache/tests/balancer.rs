//! The balancer distributes as byrequests does, and no request waits for its task.

use orbit_apache::{Backend, Client, Server, Setup, get, wait_until};

const FACTORS: [u32; 3] = [1, 2, 3];

fn backends() -> Vec<Backend> {
    (0..FACTORS.len()).map(|nth| Backend::start(&format!("backend {nth}"))).collect()
}

fn members(backends: &[Backend]) -> Vec<(u16, u32)> {
    backends.iter().zip(FACTORS).map(|(backend, factor)| (backend.port(), factor)).collect()
}

/// What each backend answered of so many requests, one after the other.
fn distribution(method: &str, requests: usize) -> Option<(Vec<u64>, Server)> {
    let backends = backends();
    let server = Server::start(&Setup::default().balance(method, &members(&backends)))?;
    let mut client = Client::open(server.port()).expect("a connection");
    for nth in 0..requests {
        let answer = client.get("/app/x").expect("an answer");
        assert!(answer.status == 200 && answer.body.starts_with("backend "), "request {nth}: {answer:?}");
    }
    Some((backends.iter().map(Backend::served).collect(), server))
}

#[test]
fn the_same_distribution_as_byrequests() {
    let requests = 1200;
    let Some((ours, server)) = distribution("orbit", requests) else { return };
    let Some((stock, _)) = distribution("byrequests", requests) else { return };
    // Stock is exact after each six requests. Ours takes turns until its first schedule is there,
    // and makes up for it.
    assert_eq!(stock, [200, 400, 600]);
    for (nth, (ours, stock)) in ours.iter().zip(&stock).enumerate() {
        assert!(ours.abs_diff(*stock) <= 3, "backend {nth}: {ours} of {requests} requests, {stock} by byrequests");
    }
    // How many are used once more depends on how loaded the machine is.
    let decided = server.state("ahead") + server.state("repeated");
    assert!(decided > 1000 && server.state("ahead") > 100, "{}", server.get("/orbit").body);
    assert_eq!(server.state("balancer_failed"), 0, "{}", server.log());
}

/// A worker that fails gets no more requests, and gets its share again when it is back; as with
/// byrequests the balancer tries it again after `retry`.
#[test]
fn a_worker_that_is_gone_and_back() {
    let mut backends = backends();
    let members = members(&backends);
    let Some(server) = Server::start(&Setup::default().balance("orbit", &members)) else { return };
    let ask = |times: usize| {
        let mut client = Client::open(server.port()).expect("a connection");
        (0..times).for_each(|_| assert_eq!(client.get("/app/x").expect("an answer").status, 200));
    };
    ask(60);
    drop(backends.pop());
    // Apache finds out by requests on connections that are closed: as in stock those get no answer.
    wait_until("Apache has found out", || {
        let _ = get(server.port(), "/app/x");
        server.log().contains("proxy_http:error") || server.log().contains("proxy:error")
    });
    let _ = (0..5).map(|_| get(server.port(), "/app/x")).collect::<Vec<_>>();
    let before = backends[0].served() + backends[1].served();
    ask(300);
    assert_eq!(backends[0].served() + backends[1].served() - before, 300, "{}", server.log());
    let back = Backend::start_at("backend 2", members[2].0);
    wait_until("it has requests again", || {
        ask(12);
        back.served() > 0
    });
    let before = back.served();
    ask(600);
    assert!(back.served() - before >= 280, "its share is half: {} of 600", back.served() - before);
}

/// Sets are tried in order; a hot standby serves when no other worker does.
#[test]
fn sets_and_standbys() {
    let backends = backends();
    let members = members(&backends);
    let lines = format!(
        "<Proxy balancer://app>\nBalancerMember http://127.0.0.1:{} lbset=0 retry=1\nBalancerMember \
         http://127.0.0.1:{} lbset=1\n\
         BalancerMember http://127.0.0.1:{} status=+H lbset=0\nProxySet lbmethod=orbit\n</Proxy>\nProxyPass /app/ \
         balancer://app/",
        members[0].0, members[1].0, members[2].0
    );
    let Some(server) = Server::start(&Setup::default().line(&lines)) else { return };
    for _ in 0..200 {
        assert_eq!(server.get("/app/x").body, "backend 0");
    }
    let mut backends = backends.into_iter();
    drop(backends.next());
    let mut last = String::new();
    for _ in 0..50 {
        last = server.get("/app/x").body;
    }
    assert_eq!(last, "backend 2", "the standby of its set comes before the next set");
}
