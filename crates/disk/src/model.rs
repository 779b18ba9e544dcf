//! Modelled disks: the time a drive of a given model would have taken, in virtual time.
//!
//! Design: a drive is a pure state machine. Given the time and the command, it answers when the command starts and ends
//! and how the time was spent; it neither waits nor reads a clock. [`ModelDisk`] maps that answer to a runtime's clock
//! and keeps the contents, so that a file system runs over it unchanged.
//!
//! Invariants:
//! 1. Times are whole nanoseconds. Floating point occurs only in the seek curve, rounded once per seek.
//! 2. The parts of a [`Service`] add up to its length.
//! 3. Same specification, same commands, same answers: on every machine.
//!
//! Not modelled: remapped sectors, thermal recalibration, spindle variation, power states, errors. `docs/models.md`
//! describes the models, with units and measured values.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`] | drives as parameter files: the built-in ones, users' own, single parameters set |
//! | [`service`] | [`Command`], [`Service`], [`Totals`] |
//! | [`drive`] | [`Drive`]: any of the following |
//! | [`hdd`] | hard disks: geometry, seek curve, mechanics, buffer |
//! | [`flash`] | what SSDs and cards share: chips, page-mapped and log-block translation |
//! | [`ssd`] | solid state disks: link, write buffer, commands side by side |
//! | [`sd`] | SD cards: allocation units, parts of pages |
//! | [`queue`] | commands that wait at the host and at the drive, and the choice of the next one |
//! | [`disk`] | [`ModelDisk`]: a drive as a [`Disk`](crate::Disk) |

pub mod disk;
pub mod drive;
pub mod flash;
pub mod hdd;
mod parameter;
pub mod queue;
pub mod sd;
pub mod service;
pub mod spec;
pub mod ssd;

pub use disk::{Contents, ModelDisk, Served};
pub use drive::Drive;
pub use flash::FlashCounters;
pub use queue::{DriveQueue, HostQueue, Policy};
pub use service::{Command, Service, Totals, Verb};
pub use spec::{DriveKind, DriveSpec, SpecError};
