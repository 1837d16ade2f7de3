//! How the agent stands, for a service manager that asked for it: the protocol of `sd_notify(3)`.

/// Says to a service manager that asked for it how the agent stands.
pub fn notify(text: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() else { return };
    let _ = socket.set_nonblocking(true);
    let text = match text.strip_prefix("RELOADING=1") {
        Some(_) => format!("{text}\nMONOTONIC_USEC={}", orbit_linux::clock::monotonic_ns() / 1000),
        None => text.to_owned(),
    };
    // A manager that does not read takes the silence for a hang.
    let _ = match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|to| socket.send_to_addr(text.as_bytes(), &to))
        }
        None => socket.send_to(text.as_bytes(), path),
    };
}
