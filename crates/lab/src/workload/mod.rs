//! Workloads: programs that use a volume through vfs calls only.
//!
//! Every random choice is drawn from one seeded generator, and documented where it is made. A full volume ends a workload
//! with an error that says how far it came.
//!
//! | module | what it does |
//! |---|---|
//! | [`client`] | a program: vfs calls, and the processor time they cost |
//! | [`sizes`] | distributions of file sizes |
//! | [`create`] | many files of one size, directory by directory or in random directories; large files |
//! | [`read_all`] | reads every file of every directory in order |
//! | [`postmark`] | Postmark, with the paper's parameters |
//! | [`build`] | compiles a source tree |

pub mod build;
pub mod client;
pub mod create;
pub mod postmark;
pub mod read_all;
pub mod sizes;

pub use client::Client;
pub use sizes::Sizes;
