//! Facilities of the kernel that need no process of their own to be tested: one module each.

mod futex_wakes_across_processes;
mod memfd_seals_hold;
mod pagemap_continues_where_a_scan_stopped;
mod pagemap_finds_private_copies;
mod pagemap_of_another_process;
mod pagemap_reports_lost_tracking;
mod poll_and_eventfd;
mod processes_compared;
mod raw_fork_children;
mod sockets_pass_messages_and_descriptors;
mod uffd_dontneed_reads_as_written;
mod uffd_huge_page_is_split_exactly;
mod uffd_rejects_hugetlb;
mod uffd_sees_every_written_page;
mod uffd_tracks_writes_by_the_kernel;
