//! [`Drive`]: serves one command after the other, for every kind of drive.

use moafs_runtime::Time;

use super::flash::FlashCounters;
use super::hdd::{self, Background};
use super::sd;
use super::service::{Command, Service};
use super::spec::{DriveSpec, SpecError};
use super::ssd;

/// A drive of any kind.
// One drive per disk: nothing is gained by making the smaller kinds smaller.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)]
pub enum Drive {
    /// A hard disk ([`hdd`]).
    Hdd(hdd::HddDrive),
    /// A solid state disk ([`ssd`]).
    Ssd(ssd::SsdDrive),
    /// An SD card ([`sd`]).
    Sd(sd::SdDrive),
}

impl Drive {
    /// Makes a drive at time 0: at rest, its buffer empty, a flash drive preconditioned as its specification says.
    ///
    /// # Errors
    /// [`SpecError::Value`] for a specification that was not checked and is not sound.
    pub fn new(spec: &DriveSpec) -> Result<Drive, SpecError> {
        Ok(match spec {
            DriveSpec::Hdd(spec) => Drive::Hdd(hdd::HddDrive::new(spec)?),
            DriveSpec::Ssd(spec) => Drive::Ssd(ssd::SsdDrive::new(spec)?),
            DriveSpec::Sd(spec) => Drive::Sd(sd::SdDrive::new(spec)?),
        })
    }

    /// Returns the capacity in sectors.
    pub fn sectors(&self) -> u64 {
        match self {
            Drive::Hdd(drive) => drive.sectors(),
            Drive::Ssd(drive) => drive.sectors(),
            Drive::Sd(drive) => drive.sectors(),
        }
    }

    /// Returns the time at which the drive takes the next command: when earlier ones are done or, if it works on
    /// several at once, as soon as it can begin one more.
    pub fn free_at(&self) -> Time {
        match self {
            Drive::Hdd(drive) => drive.free_at(),
            Drive::Ssd(drive) => drive.free_at(),
            Drive::Sd(drive) => drive.free_at(),
        }
    }

    /// Serves a command that arrived at `now`; times do not go back from call to call. It begins at the later of `now`
    /// and [`free_at`](Self::free_at).
    ///
    /// # Panics
    /// If the command goes beyond the end of the drive.
    pub fn execute(&mut self, now: Time, command: Command) -> Service {
        let end = command.at.0.checked_add(command.sectors);
        let sectors = self.sectors();
        assert!(end.is_some_and(|end| end <= sectors), "{command:?} goes beyond sector {sectors}");
        match self {
            Drive::Hdd(drive) => drive.execute(now, command),
            Drive::Ssd(drive) => drive.execute(now, command),
            Drive::Sd(drive) => drive.execute(now, command),
        }
    }

    /// Returns the nanoseconds that `command`, begun at `now`, would take until its first sector has passed under the
    /// head, without the buffer. On flash every address is equally near.
    pub fn positioning_ns(&self, now: Time, command: &Command) -> u64 {
        match self {
            Drive::Hdd(drive) => drive.positioning_ns(now, command),
            Drive::Ssd(_) | Drive::Sd(_) => 0,
        }
    }

    /// Returns true if the buffer answers `command` without an access to the media, in its state
    /// after the last command.
    pub fn answers_from_buffer(&self, command: &Command) -> bool {
        match self {
            Drive::Hdd(drive) => drive.answers_from_buffer(command),
            Drive::Ssd(_) | Drive::Sd(_) => false,
        }
    }

    /// Returns a hard disk's background work, as computed up to its last command. Flash drives work for commands only:
    /// zeros.
    pub fn background(&self) -> Background {
        match self {
            Drive::Hdd(drive) => drive.background(),
            Drive::Ssd(_) | Drive::Sd(_) => Background::default(),
        }
    }

    /// Returns the number of written sectors that a power cut would lose, as computed up to the
    /// last command.
    pub fn dirty_sectors(&self) -> u64 {
        match self {
            Drive::Hdd(drive) => drive.dirty_sectors(),
            Drive::Ssd(drive) => drive.dirty_sectors(),
            Drive::Sd(drive) => drive.dirty_sectors(),
        }
    }

    /// Returns the operations of the flash below; `None` for a hard disk.
    pub fn flash(&self) -> Option<FlashCounters> {
        match self {
            Drive::Hdd(_) => None,
            Drive::Ssd(drive) => Some(drive.flash()),
            Drive::Sd(drive) => Some(drive.flash()),
        }
    }
}
