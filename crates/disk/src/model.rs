//! Modelled disks: what a drive of a given make would have taken, in virtual time.
//!
//! The one idea: a drive is a pure state machine. Given the instant and the command it answers when the command starts
//! and ends and what the time went to; nothing in it waits, draws a number or looks at a clock. [`ModelDisk`] puts that
//! answer on a runtime's clock and keeps the contents, so that a file system runs over it unchanged.
//!
//! Invariants:
//! 1. Times are whole nanoseconds. Floating point occurs only in the seek curve, rounded once per seek.
//! 2. The parts of a [`Service`] add up to its length.
//! 3. Same specification, same commands, same answers: on every machine.
//!
//! Not modelled: remapped sectors, thermal recalibration, spindle variation, power states, errors. `docs/models.md`
//! says what is, with units and measured values.
//!
//! | module | what it holds |
//! |---|---|
//! | [`spec`] | drives as parameter files: the built-in ones, users' own, single parameters set |
//! | [`service`] | [`Command`], [`Service`], [`Totals`] |
//! | [`hdd`] | hard disks: geometry, seek curve, mechanics, buffer |
//! | [`queue`] | what waits at the host and at the drive, and who goes next |
//! | [`disk`] | [`ModelDisk`]: a drive as a [`Disk`](crate::Disk) |

pub mod disk;
pub mod hdd;
pub mod queue;
pub mod service;
pub mod spec;

pub use disk::{Contents, ModelDisk, Served};
pub use hdd::Drive;
pub use queue::{DriveQueue, HostQueue, Policy};
pub use service::{Command, Service, Totals, Verb};
pub use spec::{DriveSpec, SpecError};
