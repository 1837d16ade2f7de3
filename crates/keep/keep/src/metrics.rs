//! Figures as Prometheus reads them, over HTTP.

use crate::board::{Board, Row};
use crate::report::RUNGS;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long a reader may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The address that `--metrics` gives: a port alone is on loopback.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        Err(_) => text
            .parse()
            .map_err(|_| format!("{text:?} is no address: write 9105 (on loopback), 0.0.0.0:9105 or [::1]:9105")),
    }
}

/// Answers readers from now on, in a thread that ends with this process. Returns the address, with
/// the port that was free if 0 was asked for.
pub(crate) fn serve(address: SocketAddr, board: &Board) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let board = board.clone();
    std::thread::Builder::new().name("keep-metrics".into()).spawn(move || {
        for reader in listener.incoming() {
            match reader {
                // A client that goes away early has not wanted the rest.
                Ok(reader) => drop(answer(reader, &board)),
                Err(_) => std::thread::sleep(REQUEST_TIMEOUT / 20),
            }
        }
    })?;
    Ok(bound)
}

/// Whatever the request: there is one page.
fn answer(mut reader: TcpStream, board: &Board) -> io::Result<()> {
    reader.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    reader.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = [0u8; 4096];
    let mut len = 0;
    while len < request.len() && !request[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        match reader.read(&mut request[len..])? {
            0 => break,
            n => len += n,
        }
    }
    let body = text(&board.rows());
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
    write!(reader, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The page.
fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &dyn Fn(&Row) -> Vec<(String, f64)>| {
        let _ = writeln!(out, "# HELP orbit_keep_{name} {help}\n# TYPE orbit_keep_{name} {kind}");
        for row in rows {
            let program = row.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            for (labels, value) in values(row) {
                let _ = writeln!(out, "orbit_keep_{name}{{pid=\"{}\",program=\"{program}\"{labels}}} {value}", row.pid);
            }
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    metric("checkpoints_total", "counter", "Checkpoints taken.", &|r| one(r.figures.checkpoints as f64));
    metric("checkpoints_put_off_total", "counter", "Checkpoints put off: a call was under way.", &|r| {
        one(r.figures.put_off as f64)
    });
    metric("pause_seconds", "summary", "How long a checkpoint stops the program, of the last 4096.", &|r| {
        let [p50, p99] = [r.figures.pause_p50_us, r.figures.pause_p99_us].map(|us| us / 1e6);
        vec![(",quantile=\"0.5\"".into(), p50), (",quantile=\"0.99\"".into(), p99)]
    });
    metric("pages_total", "counter", "Pages copied.", &|r| one(r.figures.pages as f64));
    metric("held_bytes", "gauge", "Memory held for pages of checkpoints.", &|r| one(r.figures.held_bytes as f64));
    metric("hangs_total", "counter", "Hangs that another process has found.", &|r| one(r.figures.hangs as f64));
    metric("restarts_total", "counter", "Starts after a death.", &|r| one(r.figures.restarts as f64));
    metric("crashes_total", "counter", "Crashes and hangs, by the way of recovery.", &|r| {
        let by_rung = RUNGS.iter().zip(r.figures.by_rung);
        by_rung.map(|(rung, count)| (format!(",rung=\"{rung}\""), count as f64)).collect()
    });
    metric("crash_causes_total", "counter", "Crash positions, by whether a replay alone has helped.", &|r| {
        let causes = [("transient", r.figures.transient), ("deterministic", r.figures.deterministic)];
        causes.map(|(cause, count)| (format!(",cause=\"{cause}\""), count as f64)).into()
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figures;
    use std::process::{Command, Stdio};

    #[test]
    fn a_port_alone_is_on_loopback() {
        assert_eq!(address("9105"), Ok(SocketAddr::from(([127, 0, 0, 1], 9105))));
        assert_eq!(address("0.0.0.0:9105"), Ok(SocketAddr::from(([0, 0, 0, 0], 9105))));
        assert!(address("localhost").is_err());
    }

    #[test]
    fn each_figure_has_help_type_and_labels() {
        let figures = Figures { checkpoints: 7, by_rung: [1; RUNGS.len()], ..Figures::default() };
        let row = Row { pid: 4711, name: "a\"b".into(), mode: "log".into(), is_kept: true, generations: 2, figures };
        let text = text(&[row]);
        assert!(text.contains(
            "# TYPE orbit_keep_checkpoints_total \
            counter\norbit_keep_checkpoints_total{pid=\"4711\",program=\"a\\\"b\"} 7\n"
        ));
        assert!(text.contains("orbit_keep_crashes_total{pid=\"4711\",program=\"a\\\"b\",rung=\"drop\"} 1\n"));
    }
    #[test]
    fn the_page_passes_promtool() {
        let row = |pid| Row {
            pid,
            name: "a\"b\\c\nd".into(),
            mode: "log".into(),
            is_kept: true,
            generations: 2,
            figures: Figures { pause_p99_us: 1.5, ..Figures::default() },
        };
        let page = text(&[row(4711), row(4712)]);
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = promtool.spawn() else {
            println!("SKIP: needs promtool (Debian's prometheus)");
            return;
        };
        child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("read");
        let done = child.wait_with_output().expect("a child");
        let said = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(done.status.success() && said.is_empty(), "{said}\n{page}");
    }
}
