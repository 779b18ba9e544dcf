//! The lab: the file systems' own code on modelled disks, in virtual time.
//!
//! The one idea: an experiment is a function from (systems, scale, seed) to an [`Outcome`], and
//! everything in it was measured by running the code that a mount runs, over a modelled device and
//! a clock that jumps. Same seed, same bytes, whatever the number of cores. `docs/lab.md` tells
//! what each experiment does and which choices were made where the papers leave something open;
//! `README.md` has their titles.
//!
//! | module | what it holds |
//! |---|---|
//! | [`experiment`] | running an experiment: cases on all cores |
//! | [`experiments`] | what there is: the papers' experiments, with their cases, tables, comparisons, reasons |
//! | [`system`], [`log_system`], [`swap_system`], [`parameters`], [`cpu`], [`write_cache`] | what is compared, and what can be set |
//! | [`volume`], [`age`], [`contentless`] | the shape of volumes; making them old; memory without file data |
//! | [`log_volume`], [`calibrate`] | the same for F2FS; what a drive charges |
//! | [`machine`] | one case's machine, from the program down to the drive |
//! | [`paging`], [`memory`], [`processor`] | a machine for several programs: paged memory, one processor, partitions |
//! | [`workload`] | programs that use a volume |
//! | [`program`] | programs that use memory |
//! | [`bounds`] | what no cleaner can do better |
//! | [`layout`] | layout score, pieces of files and directories, pictures |
//! | [`outcome`] | what an experiment gives |
//! | [`seeds`], [`student`], [`diff`] | means over several seeds, and what differs by more than chance |
//! | [`report`] | outcomes as a page, CSV, JSON and pictures |
//! | [`trace`], [`replay`] | block traces, and serving them on a modelled drive |

#![forbid(unsafe_code)]

pub mod age;
pub mod bounds;
pub mod calibrate;
pub mod contentless;
pub mod cpu;
pub mod diff;
pub mod error;
pub mod experiment;
pub mod experiments;
pub mod layout;
pub mod log_system;
pub mod log_volume;
pub mod machine;
pub mod memory;
pub mod outcome;
pub mod paging;
pub mod parameters;
pub mod processor;
pub mod program;
pub mod replay;
pub mod report;
pub mod seeds;
pub mod student;
pub mod swap_system;
pub mod system;
pub mod trace;
pub mod volume;
pub mod window;
pub mod workload;
pub mod write_cache;

pub use error::{LabError, Result};
pub use outcome::Outcome;
