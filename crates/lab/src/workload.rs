//! Workloads: programs that use a volume through vfs calls only. `moafs_workload` has what they share with programs on
//! mounted volumes: sizes, Postmark, hot and cold files.
//!
//! Every random choice is drawn from one seeded generator, and documented where it is made. A full
//! volume ends a workload with an error that says how far it came.
//!
//! | module | what it does |
//! |---|---|
//! | [`client`] | a program: vfs calls, and the processor time they cost |
//! | [`create`] | many files of one size, directory by directory or in random directories; large files |
//! | [`overwrite`] | IO-TEST: overwriting files of 32 KiB, uniformly or mostly hot ones |
//! | [`read_all`] | reads every file of every directory in order |
//! | [`records`] | several writers at once, each by synchronous records |
//! | [`postmark`] | Postmark |
//! | [`build`] | compiles a source tree |

pub mod build;
pub mod client;
pub mod create;
pub mod overwrite;
pub mod postmark;
pub mod read_all;
pub mod records;

pub use client::Client;
