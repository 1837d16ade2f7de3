//! Services in the kernel that the host has loaded: the BPF object, its agent, its handles and its
//! owner.

use orbit_linux::pidfd;
use orbit_services::budget::Budget;
use orbit_services::grant::Granted;
use orbit_services::{Account, Error, GrantRequest, Host, Kernel, KernelSpec, Kind, Result};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Real-time priority of the agents that apply what these services ask for, where the host may have
/// one.
const PRIORITY: i32 = 98;

/// A service to load.
#[derive(Debug)]
pub struct Wanted {
    /// For messages.
    pub name: String,
    /// The process it belongs to.
    pub owner: i32,
    /// Shown in lists: the verifier bounds the program, and the kernel does not say what it takes.
    pub budget: Budget,
    /// Time between two ticks.
    pub period: Option<Duration>,
    /// What it gets.
    pub arguments: Vec<u8>,
    /// The processor of its ticks.
    pub cpu: usize,
    /// Nothing is set, the log says what would be.
    pub dry_run: bool,
}

/// A loaded one.
#[derive(Debug)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// The process it belongs to.
    pub owner: i32,
    /// As it was asked for.
    pub budget: Budget,
    life: OwnedFd,
    kernel: Kernel,
    grants: Vec<Granted>,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub struct Kernels {
    loaded: BTreeMap<u64, Loaded>,
    next: u64,
}

impl Kernels {
    /// Loads one. Answers its number: `k1`.
    ///
    /// # Errors
    /// `Invalid` without ticks; `NotFound` when the owner is gone; those of [`Kernel::load`] and
    /// [`Host::grant`].
    pub fn load(&mut self, host: &mut Host, wanted: Wanted, grants: &[GrantRequest], object: &[u8]) -> Result<String> {
        let Wanted { name, owner, budget, period, arguments, cpu, dry_run } = wanted;
        let period = period.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("service {name:?}: ticks start its program: give --on tick=TIME"))
        })?;
        let gone = |_| Error::new(Kind::NotFound, format!("service {name:?}: its owner, process {owner}, is gone"));
        let life = pidfd::open(owner).map_err(gone)?;
        let grants = host.grant(owner, grants)?;
        grants.iter().for_each(|granted| granted.belongs_to(&name, dry_run));
        let spec =
            KernelSpec { name: name.clone(), period, arguments, grants: grants.clone(), cpu, priority: PRIORITY };
        match Kernel::load(spec, object) {
            Ok(kernel) => {
                self.next += 1;
                self.loaded.insert(self.next, Loaded { name, owner, budget, life, kernel, grants });
                Ok(format!("k{}", self.next))
            }
            Err(error) => {
                host.release(&grants);
                Err(error)
            }
        }
    }

    /// The number of one that is loaded.
    pub fn find(&self, text: &str) -> Option<u64> {
        let number = text.strip_prefix('k')?.parse().ok()?;
        self.loaded.contains_key(&number).then_some(number)
    }

    /// Detaches one, and puts back what it set.
    pub fn unload(&mut self, host: &mut Host, number: u64) {
        if let Some(Loaded { kernel, grants, .. }) = self.loaded.remove(&number) {
            drop(kernel);
            host.release(&grants);
        }
    }

    /// All of them.
    pub fn unload_all(&mut self, host: &mut Host) {
        while let Some(number) = self.loaded.keys().next().copied() {
            self.unload(host, number);
        }
    }

    /// Unloads those whose owner has exited. Answers which.
    pub fn tend(&mut self, host: &mut Host) -> Vec<String> {
        let ended: Vec<u64> =
            self.loaded.iter().filter(|(_, one)| pidfd::has_ended(one.life.as_fd())).map(|(nth, _)| *nth).collect();
        ended.iter().for_each(|number| self.unload(host, *number));
        ended.into_iter().map(|number| format!("k{number}")).collect()
    }

    /// All, with what they used.
    pub fn list(&self) -> impl Iterator<Item = (String, &Loaded, Account)> {
        self.loaded.iter().map(|(number, one)| (format!("k{number}"), one, one.kernel.account()))
    }
}
