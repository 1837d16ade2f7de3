//! Seals: the size cannot change, later writers are rejected, mappings made before continue
//! writing.

use orbit_linux::map::Mapping;
use orbit_linux::memfd;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

#[test]
fn a_sealed_size_stays() {
    let fd = memfd::create("sized", 8192, true).expect("memfd");
    memfd::seal_size(fd.as_fd()).expect("seal");
    let file = File::from(fd);
    for len in [0, 4096, 16384] {
        assert_eq!(file.set_len(len).expect_err("sealed").raw_os_error(), Some(libc::EPERM), "{len}");
    }
    assert_eq!(file.metadata().expect("stat").len(), 8192);
}

#[test]
fn only_old_mappings_write_after_the_seal() {
    let fd = memfd::create("future", 4096, true).expect("memfd");
    let old = Mapping::shared(fd.as_fd(), 4096, true, true).expect("old mapping");
    memfd::seal_future_write(fd.as_fd()).expect("seal");
    // SAFETY: the first byte of the own mapping.
    unsafe { old.as_ptr().write_volatile(5) };
    let e = Mapping::shared(fd.as_fd(), 4096, true, false).expect_err("sealed");
    assert_eq!(e.raw_os_error(), Some(libc::EPERM));
    let reader = Mapping::shared(fd.as_fd(), 4096, false, false).expect("readers may map");
    // SAFETY: as above.
    assert_eq!(unsafe { reader.as_ptr().read_volatile() }, 5);
    assert_eq!(File::from(fd).write(&[1]).expect_err("sealed").raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_file_that_is_not_sealable_takes_no_seals() {
    let fd = memfd::create("open", 4096, false).expect("memfd");
    assert_eq!(memfd::seal_size(fd.as_fd()).expect_err("not sealable").raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_name_with_a_nul_is_refused() {
    assert_eq!(memfd::create("a\0b", 1, false).expect_err("NUL").kind(), std::io::ErrorKind::InvalidInput);
}
