//! Certificates of nodes, made by openssl, for tests of what proves itself by them.

use crate::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority of its own and the certificates that it has signed. Its files go with it.
pub struct Authority {
    folder: Folder,
}

impl Authority {
    /// Makes one. Nothing where openssl is missing: the caller skips its test and says so.
    ///
    /// # Panics
    /// If openssl is there and fails.
    pub fn new() -> Option<Authority> {
        Command::new("openssl").arg("version").output().ok()?;
        let authority = Authority { folder: Folder::new("authority") };
        authority.run("ca", "nodes", &["-addext", "basicConstraints=critical,CA:TRUE"]);
        Some(authority)
    }

    /// The file with its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Signs a certificate for a node: `names` are further subjectAltNames (`URI:...`). Returns the
    /// files of certificate and key.
    ///
    /// # Panics
    /// If openssl fails.
    pub fn sign(&self, node: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let all: String = names.iter().map(|name| format!(",{name}")).collect();
        let (ca, key, names) = (path("ca.pem"), path("ca.key"), format!("subjectAltName=DNS:{node}{all}"));
        let extended = "extendedKeyUsage=clientAuth,serverAuth";
        let plain = "basicConstraints=critical,CA:FALSE";
        let signed = ["-CA", &ca, "-CAkey", &key, "-addext", &names, "-addext", extended, "-addext", plain];
        self.run(node, node, &signed)
    }

    fn run(&self, file: &str, name: &str, more: &[&str]) -> (PathBuf, PathBuf) {
        let path = |ending: &str| self.folder.path().join(format!("{file}.{ending}"));
        let (certificate, key) = (path("pem"), path("key"));
        let subject = format!("/CN={name}");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", &subject])
            .args(more)
            .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate])
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (certificate, key)
    }
}
