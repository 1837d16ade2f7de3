//! Why functions of another process cannot be probed, each with its way out.

/// Why there are no probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The kernel rejects to let this process probe.
    NotPermitted(String),
    /// The kernel has no such facility.
    Unsupported(String),
    /// Too many functions are probed already.
    Full,
    /// The process has ended, or does.
    Ended,
    /// Something else; the text says what was tried and what the kernel answered.
    Failed(String),
}

impl Error {
    /// An error of aya, distinguished by the errno at its end.
    pub(crate) fn of(what: &str, e: &(dyn std::error::Error + 'static)) -> Error {
        let mut text = e.to_string();
        let mut errno = None;
        let mut next = Some(e);
        while let Some(e) = next {
            if let Some(io) = e.downcast_ref::<std::io::Error>() {
                errno = io.raw_os_error().or(errno);
            }
            next = e.source();
            if let Some(inner) = next {
                text = format!("{text}: {inner}");
            }
        }
        match errno {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted(what.to_owned()),
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => Error::Unsupported(format!("{what}: {text}")),
            Some(libc::ESRCH) => Error::Ended,
            _ => Error::Failed(format!("{what}: {text}")),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::NotPermitted(what) => {
                write!(
                    f,
                    "{what} is not permitted: needs root, or CAP_BPF and CAP_PERFMON, and no seccomp filter against it"
                )
            }
            Error::Unsupported(what) => {
                write!(
                    f,
                    "{what}: needs a kernel with CONFIG_UPROBE_EVENTS, CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF"
                )
            }
            Error::Full => write!(f, "{} functions are probed already, and no more can be", crate::SLOTS),
            Error::Ended => f.write_str("the process has ended"),
            Error::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
